package disk

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Worker runs one job in the background on request. Requests during a run share one more run after
// it. With singleflight they would share the run that began before them.
type Worker struct {
	wake chan struct{}

	mu sync.Mutex
	// next is closed at the end of the next run, and when the worker stops.
	next chan struct{}
}

// NewWorker returns a worker. Requests wait until Run is called.
func NewWorker() *Worker { return &Worker{wake: make(chan struct{}, 1), next: make(chan struct{})} }

// Kick requests a run.
func (w *Worker) Kick() { w.Request() }

// Request requests a run. The channel is closed when a run that began after the request has ended,
// or when the worker stops.
func (w *Worker) Request() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
	return w.next
}

// Run serves requests until ctx ends.
func (w *Worker) Run(ctx context.Context, job func(context.Context)) {
	for {
		select {
		case <-ctx.Done():
			w.mu.Lock()
			close(w.next)
			w.mu.Unlock()
			return
		case <-w.wake:
		}
		w.mu.Lock()
		done := w.next
		w.next = make(chan struct{})
		w.mu.Unlock()
		if err := runSafely(ctx, job); err != nil {
			log.G(ctx).WithError(err).Error("Background work on images failed")
		}
		close(done)
	}
}

// runSafely runs a job and returns its panic as an error.
func runSafely(ctx context.Context, job func(context.Context)) (err error) {
	defer Caught(ctx, &err)
	job(ctx)
	return nil
}

// Third-party code handles third-party data here, in goroutines of berth and of containerd. A panic
// there must not end the daemon.

// Caught turns a panic into an error. It must be deferred.
func Caught(ctx context.Context, err *error) {
	if p := recover(); p != nil {
		log.G(ctx).WithField("panic", fmt.Sprint(p)).WithField("stack", string(debug.Stack())).Error("Panic while handling images; please report this with the stack")
		*err = fmt.Errorf("panic while handling images, the log has the stack: %v: %w", p, errdefs.ErrInternal)
	}
}

// Safely returns h with panics turned into errors.
func Safely(h images.HandlerFunc) images.HandlerFunc {
	return func(ctx context.Context, desc imagespec.Descriptor) (children []imagespec.Descriptor, err error) {
		defer Caught(ctx, &err)
		return h(ctx, desc)
	}
}

// IsNoSpace reports a full disk or quota. It also matches the text: some code drops err's type.
func IsNoSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) ||
		strings.Contains(err.Error(), syscall.ENOSPC.Error()) || strings.Contains(err.Error(), syscall.EDQUOT.Error())
}
