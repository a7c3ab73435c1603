package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/semaphore"
)

// Fetcher fetches an image's indexes, manifests, configuration and layers. A layer cannot be larger
// than its size in the manifest.
type Fetcher struct {
	remotes.Fetcher
	// layers are the digests of the image's layers.
	layers map[digest.Digest]bool
	// slot lets a pull fetch one large layer at a time.
	slot *semaphore.Weighted
	// connections limits the connections of a pull.
	connections *semaphore.Weighted
	// memory limits the parts that all pulls have in memory.
	memory *semaphore.Weighted
	// external is the client for layers that are not in the registry.
	external *http.Client
}

// Expect sets the layers. It is called before any layer is fetched.
func (f *Fetcher) Expect(layers []imagespec.Descriptor) {
	f.layers = map[digest.Digest]bool{}
	for _, l := range layers {
		f.layers[l.Digest] = true
	}
}

// Fetch implements remotes.Fetcher.
func (f *Fetcher) Fetch(ctx context.Context, desc imagespec.Descriptor) (io.ReadCloser, error) {
	urls := desc.URLs
	// The registry client would fetch the URLs without any limits.
	desc.URLs = nil
	if !f.layers[desc.Digest] {
		return f.Fetcher.Fetch(ctx, desc)
	}
	ctx = context.WithValue(ctx, layerKey{}, &layer{size: desc.Size})
	if !images.IsNonDistributable(desc.MediaType) {
		if desc.Size < inPartsFrom {
			return f.Fetcher.Fetch(ctx, desc)
		}
		return f.inParts(ctx, desc.Size, func(ctx context.Context, offset int64) (io.ReadCloser, error) { return f.from(ctx, desc, offset) }), nil
	}
	var errs []error
	for _, u := range urls {
		body, err := f.get(ctx, u)
		if err == nil {
			return body, nil
		}
		errs = append(errs, err)
	}
	body, err := f.Fetcher.Fetch(ctx, desc)
	if err != nil {
		err = errors.Join(append(errs, err)...)
	}
	return body, err
}

func (f *Fetcher) from(ctx context.Context, desc imagespec.Descriptor, offset int64) (io.ReadCloser, error) {
	body, err := f.Fetcher.Fetch(ctx, desc)
	if err != nil || offset == 0 {
		return body, err
	}
	seeker, ok := body.(io.Seeker)
	if !ok {
		return nil, errors.Join(fmt.Errorf("layer %s cannot be read from its middle: %w", desc.Digest, errdefs.ErrNotImplemented), body.Close())
	}
	if _, err := seeker.Seek(offset, io.SeekStart); err != nil {
		return nil, errors.Join(err, body.Close())
	}
	return body, nil
}

// get fetches a layer from a URL in the manifest.
func (f *Fetcher) get(ctx context.Context, address string) (io.ReadCloser, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" {
		return nil, fmt.Errorf("URL %.100q of the layer is not an http or https URL: %w", address, errdefs.ErrInvalidArgument)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("User-Agent", userAgent)
	resp, err := f.external.Do(r)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		_ = resp.Body.Close()
		return nil, fmt.Errorf("download layer from %s: HTTP status %d: %w", u.Host, resp.StatusCode, errdefs.ErrNotFound)
	}
	return resp.Body, nil
}
