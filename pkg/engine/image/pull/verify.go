package pull

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/containerd/v2/pkg/imageverifier/bindir"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berth-cri/berth/pkg/engine/image/trusted"
)

// Verifiers are programs that approve or reject every image before it is pulled, in containerd's
// protocol: the name and the digest are arguments, the descriptor is on stdin, exit status 0
// approves and stdout is the reason.
type Verifiers struct {
	// BinDir holds the programs and nothing else. It is read at each pull. Every image is approved
	// if BinDir is empty or missing. A pull fails if others can change BinDir or a parent.
	BinDir string
	// Timeout bounds each program. It must be more than 0 if BinDir is set.
	Timeout time.Duration
}

// verifyError means that verifiers rejected a pull or failed.
type verifyError struct{ error }

func (e *verifyError) Unwrap() error { return e.error }

// verifier returns containerd's verifier, or nil without a BinDir.
func (v Verifiers) verifier() (*bindir.ImageVerifier, error) {
	if v.BinDir == "" {
		return nil, nil
	}
	if v.Timeout <= 0 {
		return nil, fmt.Errorf("image verifiers of %s need a timeout longer than %v: %w", v.BinDir, v.Timeout, errdefs.ErrInvalidArgument)
	}
	c := &bindir.Config{BinDir: v.BinDir, MaxVerifiers: -1}
	// The type of this field cannot be named outside of containerd.
	if err := c.PerVerifierTimeout.UnmarshalText([]byte(v.Timeout.String())); err != nil {
		return nil, err
	}
	return bindir.NewImageVerifier(c), nil
}

// verify asks the verifiers whether name, which resolved to target, may be pulled. It does so even
// if target is in the store: the policy may have changed.
func (s *Puller) verify(ctx context.Context, name string, target imagespec.Descriptor) error {
	if s.verifier == nil {
		return nil
	}
	if err := trusted.Verifiers(s.cfg.Verifiers.BinDir); err != nil {
		return err
	}
	result, err := s.verifier.VerifyImage(ctx, name, target)
	if err != nil {
		return &verifyError{err}
	}
	if !result.OK {
		return &verifyError{errors.New(result.Reason)}
	}
	log.G(ctx).WithFields(log.Fields{"name": name, "digest": target.Digest, "reason": result.Reason}).Debug("Image verified")
	return nil
}
