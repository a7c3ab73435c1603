package pull

import (
	"context"
	"net"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/pkg/labels"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
)

// sourced labels fetched content with its repository, as containerd does: mirrors between nodes
// derive from it which blobs they may offer for which repository.
type sourced struct {
	content.Ingester
	labels map[string]string
}

func newSourced(to content.Ingester, name reference.Named) content.Ingester {
	host, repository := reference.Domain(name), reference.Path(name)
	if bare, _, err := net.SplitHostPort(host); err == nil {
		host = bare // as containerd writes it
	}
	key := labels.LabelDistributionSource + "." + host
	if labels.Validate(key, repository) != nil {
		return to // the label would be too long
	}
	return sourced{to, map[string]string{key: repository}}
}

func (s sourced) Writer(ctx context.Context, opts ...content.WriterOpt) (content.Writer, error) {
	w, err := s.Ingester.Writer(ctx, opts...)
	if err != nil {
		return nil, err
	}
	return sourcedWriter{w, s.labels}, nil
}

type sourcedWriter struct {
	content.Writer
	labels map[string]string
}

func (w sourcedWriter) Commit(ctx context.Context, size int64, expected digest.Digest, opts ...content.Opt) error {
	return w.Writer.Commit(ctx, size, expected, append(opts, content.WithLabels(w.labels))...)
}
