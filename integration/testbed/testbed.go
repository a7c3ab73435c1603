// Package testbed is the base of the integration tests, the demo and the benchmark. It has a
// registry on loopback, images, a CNI network, a real berth process, a CRI client, and snapshots of
// everything that a pod may leave behind on the host.
//
//	reg := testbed.NewRegistry(t, testbed.RegistryOptions{})
//	image := reg.Push(t, "busybox:1", testbed.Busybox(t))
//	berth := testbed.StartBerth(t, testbed.Options{CNI: testbed.NewCNI(t), Registries: []*testbed.Registry{reg}})
//	before := berth.Snapshot(t)
//	pod := berth.Client.RunPod(t, testbed.PodSpec{Handler: "runc", Image: image, Command: []string{"sleep", "600"}})
//	out := pod.Container.Exec(t, "uname", "-r")
//	pod.Remove(t)
//	berth.NoLeaks(t, before)
//
// Cleanups of a T remove everything that the testbed created for this T. Two testbeds on one host
// share only the base chains of iptables. So tests of several packages can run at the same time.
package testbed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
)

// T has the methods of a test that the testbed needs. *testing.T and *testing.B implement T. For
// programs, Run creates a T. Fatalf and Skipf end the calling goroutine.
type T interface {
	Helper()
	Name() string
	Context() context.Context
	Cleanup(func())
	TempDir() string
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Skipf(format string, args ...any)
	Failed() bool
}

// Run creates a T and calls body with this T. Then it runs the cleanups of the T, the last cleanup
// first, and returns all failures. Log lines go to out. The Context of the T is ctx. body should
// return when ctx is done.
func Run(ctx context.Context, name string, out io.Writer, body func(T)) error {
	run := &programRun{ctx: ctx, name: name, out: out}
	run.goexit(func() { body(run) })
	for {
		undo := run.pop()
		if undo == nil {
			return run.err()
		}
		run.goexit(undo)
	}
}

// programRun is the T of a program.
type programRun struct {
	ctx  context.Context
	name string
	out  io.Writer

	mu       sync.Mutex // guards the fields below
	failures []error
	cleanups []func()
}

// goexit calls f in a new goroutine and waits for the goroutine. f may end the goroutine.
func (r *programRun) goexit(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if p := recover(); p != nil {
				r.fail(fmt.Errorf("panic: %v\n%s", p, debug.Stack()))
			}
		}()
		f()
	}()
	<-done
}

func (r *programRun) pop() func() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.cleanups) == 0 {
		return nil
	}
	last := r.cleanups[len(r.cleanups)-1]
	r.cleanups = r.cleanups[:len(r.cleanups)-1]
	return last
}

func (r *programRun) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, err)
}

func (r *programRun) err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return errors.Join(r.failures...)
}

func (r *programRun) Helper() {}

func (r *programRun) Name() string { return r.name }

func (r *programRun) Context() context.Context { return r.ctx }

func (r *programRun) Cleanup(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cleanups = append(r.cleanups, f)
}

func (r *programRun) TempDir() string {
	dir, err := os.MkdirTemp("", "berth-"+r.name+"-")
	if err != nil {
		r.Fatalf("make a temporary directory: %v", err)
	}
	r.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			r.Errorf("remove the temporary directory: %v", err)
		}
	})
	return dir
}

func (r *programRun) Logf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	// There is no other place for a log line that cannot be written.
	_, _ = fmt.Fprintf(r.out, format+"\n", args...)
}

func (r *programRun) Errorf(format string, args ...any) { r.fail(fmt.Errorf(format, args...)) }

func (r *programRun) Fatalf(format string, args ...any) {
	r.fail(fmt.Errorf(format, args...))
	runtime.Goexit()
}

func (r *programRun) Skipf(format string, args ...any) {
	r.Logf(format, args...)
	runtime.Goexit()
}

func (r *programRun) Failed() bool { return r.err() != nil }
