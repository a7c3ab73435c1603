package disk

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
)

// What others wrote runs here on what others sent, in goroutines of our own and of
// containerd's: none of them may end the daemon.

// Caught turns a panic into an error. It is deferred.
func Caught(ctx context.Context, err *error) {
	if p := recover(); p != nil {
		log.G(ctx).WithField("panic", fmt.Sprint(p)).WithField("stack", string(debug.Stack())).Error("Panic while handling images; please report this with the stack")
		*err = fmt.Errorf("panic while handling images, the log has the stack: %v: %w", p, errdefs.ErrInternal)
	}
}

// Safely is h without its panics.
func Safely(h images.HandlerFunc) images.HandlerFunc {
	return func(ctx context.Context, desc imagespec.Descriptor) (children []imagespec.Descriptor, err error) {
		defer Caught(ctx, &err)
		return h(ctx, desc)
	}
}

// IsNoSpace also reads the text: not every layer between keeps the error.
func IsNoSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) ||
		strings.Contains(err.Error(), syscall.ENOSPC.Error()) || strings.Contains(err.Error(), syscall.EDQUOT.Error())
}
