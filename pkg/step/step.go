// Package step measures the parts of a call, to answer "why was this pod slow": the code that does
// the work names its part, and the server of the call reads all parts.
//
// A part is a span too if the call is traced. Everything may be called concurrently.
package step

import (
	"context"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// Names of the parts of calls.
const (
	// Queue is the wait for the handler's max_parallel_starts.
	Queue = "queue"
	// Network is the run of CNI plugins.
	Network = "network"
	// Plugins is the run of NRI plugins and CDI.
	Plugins = "plugins"
	// Rootfs is the container's root filesystem, with its image volumes.
	Rootfs = "rootfs"
	// Runtime is the handler's runtime or shim.
	Runtime = "runtime"
	// Resolve is the request to a registry for an image's digest and manifest.
	Resolve = "resolve"
	// Fetch is the time from the first byte of an image's layers to the last.
	Fetch = "fetch"
	// Unpack is the time from the first file of an image's layers to the last. It overlaps Fetch.
	Unpack = "unpack"
	// Shared is the wait for a pull that another call began.
	Shared = "shared"
)

// Step is a part of a call.
type Step struct {
	Name string
	// Took is the sum of the durations of all parts with this name.
	Took time.Duration
}

// Recorder records the steps of one call. Its zero value is ready.
type Recorder struct {
	mu    sync.Mutex
	steps []Step
}

// Steps returns the finished steps, in the order in which they first ended.
func (r *Recorder) Steps() []Step {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.steps)
}

func (r *Recorder) add(name string, took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i := slices.IndexFunc(r.steps, func(s Step) bool { return s.Name == name }); i >= 0 {
		r.steps[i].Took += took
		return
	}
	r.steps = append(r.steps, Step{Name: name, Took: took})
}

// Key is the context key of a *Recorder. It is exported for contexts that hold one themselves.
type Key struct{}

// Of returns the finished steps of the call that ctx belongs to.
func Of(ctx context.Context) []Step {
	if r, ok := ctx.Value(Key{}).(*Recorder); ok {
		return r.Steps()
	}
	return nil
}

// Begin begins a part of the call that ctx belongs to. The first call of end finishes it. The
// returned context is for the work of the part.
func Begin(ctx context.Context, name string) (_ context.Context, end func(err error)) {
	recorder, _ := ctx.Value(Key{}).(*Recorder)
	span := trace.SpanFromContext(ctx)
	traced := span.IsRecording()
	if recorder == nil && !traced {
		return ctx, func(error) {}
	}
	if traced {
		ctx, span = span.TracerProvider().Tracer(tracer).Start(ctx, name)
	}
	begin := time.Now()
	var once sync.Once
	return ctx, func(err error) {
		once.Do(func() {
			if recorder != nil {
				recorder.add(name, time.Since(begin))
			}
			if !traced {
				return
			}
			if err != nil {
				span.SetStatus(codes.Error, err.Error())
			}
			span.End()
		})
	}
}

// tracer names the origin of a span for its collector.
const tracer = "github.com/berth-cri/berth/pkg/step"
