// Package step measures the parts of a call, so that "why was this pod slow" has an
// answer: what does the work names its part, whoever serves the call reads all parts.
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

// The parts that calls have.
const (
	// Queue is the wait for the handler's max_parallel_starts.
	Queue = "queue"
	// Network is what CNI plugins do.
	Network = "network"
	// Plugins are those of NRI and CDI.
	Plugins = "plugins"
	// Rootfs is the container's root filesystem, with its image volumes.
	Rootfs = "rootfs"
	// Runtime is the handler's runtime or shim.
	Runtime = "runtime"
	// Resolve is what a registry says an image's name stands for, with its manifest.
	Resolve = "resolve"
	// Fetch is from the first byte of an image's layers to the last.
	Fetch = "fetch"
	// Unpack is from the first file of an image's layers to the last. It begins while
	// others are fetched.
	Unpack = "unpack"
	// Shared is the wait for a pull that another call had begun.
	Shared = "shared"
)

// Step is a part of a call.
type Step struct {
	Name string
	// Took is the sum, if there were several of the name.
	Took time.Duration
}

// Recorder has the steps of one call. The zero Recorder is ready.
type Recorder struct {
	mu    sync.Mutex
	steps []Step
}

// Steps are those that have ended, in the order of their first ends.
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

// Key is under which a context has its *Recorder as a value. It is exported for
// contexts that hold one themselves.
type Key struct{}

// Of are the steps so far of the call that ctx belongs to.
func Of(ctx context.Context) []Step {
	if r, ok := ctx.Value(Key{}).(*Recorder); ok {
		return r.Steps()
	}
	return nil
}

// Begin begins a part of the call that ctx belongs to. What it returns ends it, once;
// more ends are nothing. The context is for what is done in it.
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

// tracer is who made a span, for those who collect them.
const tracer = "github.com/berth-cri/berth/pkg/step"
