package task

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/log"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/binaries"
	"github.com/berth-cri/berth/pkg/engine/oomlog"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/engine/store"
	"github.com/berth-cri/berth/pkg/handler"
)

// deadShims are foreign shims that cannot be reached. They record the calls that are made
// about them.
type deadShims struct {
	processes
	calls []string
	fails map[string]error
	lost  error // what a connection fails with
}

func (d *deadShims) note(call string) error {
	d.calls = append(d.calls, call)
	return d.fails[call]
}

func (d *deadShims) StartForeign(context.Context, shim.Start) (shim.Endpoint, *shim.Client, error) {
	return shim.Endpoint{}, nil, d.note("start")
}

func (d *deadShims) Started(context.Context, string) (shim.Endpoint, error) {
	return shim.Endpoint{Address: "answered"}, d.note("find")
}

func (d *deadShims) Foreign(context.Context, shim.Endpoint) (*shim.Client, error) {
	_ = d.note("connect")
	return nil, d.lost
}

func (d *deadShims) DismissForeign(context.Context, shim.Endpoint, *shim.Client, string) error {
	return d.note("dismiss")
}

func (d *deadShims) CleanUpForeign(context.Context, shim.Start) (shim.TaskExit, error) {
	return shim.TaskExit{}, d.note("clean up")
}

func (d *deadShims) ReadLog(shim.Start, shim.Endpoint) error { return d.note("read log") }

func deadShim(t *testing.T, lost error) (*foreign, *deadShims) {
	t.Helper()
	pods, _, err := pod.Open(t.Context(), t.TempDir(), t.TempDir())
	test.Must(t, err)
	spec := pod.SandboxSpec{Definition: &handler.Definition{Type: handler.Shim, Path: "/shim"}, Plan: pod.Plan{Process: true}}
	spec.Config.Msg = &runtimeapi.PodSandboxConfig{}
	o := test.Value(pods.Sandboxes.Create(pod.NewID(), spec, pod.SandboxStatus{Phase: pod.PhaseReady, Shim: &shim.Endpoint{Address: "recorded"}}, store.Relaxed))(t)
	d := &deadShims{lost: lost, fails: map[string]error{}}
	r := &Service{
		pods: pods, binaries: &binaries.Binaries{Runtimes: binaries.NewRuntimes(nil, log.L)}, shims: d, kernelLog: oomlog.New(),
	}
	return pod.NewSandbox(o, r).Runner.Tasks.(*foreign), d
}

// End dismisses a dead shim before it cleans up after the shim, so that the shim creates
// nothing more. A pod whose shim was dismissed is not ready any more.
func TestEndOfADeadShim(t *testing.T) {
	for name, c := range map[string]struct {
		fails string
		want  []string
	}{
		"dismissed":       {"", []string{"connect", "dismiss", "clean up", "dismiss"}},
		"dismissal fails": {"dismiss", []string{"connect", "dismiss"}},
		"clean-up fails":  {"clean up", []string{"connect", "dismiss", "clean up", "dismiss"}},
	} {
		t.Run(name, func(t *testing.T) {
			r, d := deadShim(t, shim.ErrGone)
			d.fails[c.fails] = errors.New("it fails")
			err := r.End(t.Context())
			if failed := c.fails == "dismiss"; (err != nil) != failed {
				t.Errorf("End returned %v", err)
			}
			test.EqualLists(t, "called", d.calls, c.want)
			test.Equal(t, "the pod is ready", r.sandbox.Status().Phase == pod.PhaseReady, c.fails == "dismiss")
		})
	}
}

// A shim that refuses to stop a task is asked again until shimPatience is over, and then
// killed. After that, end is called once more to check that the task is gone.
func TestShimThatRefuses(t *testing.T) {
	r, d := deadShim(t, shim.ErrGone)
	synctest.Test(t, func(t *testing.T) {
		began, asked := time.Now(), 0
		refuses := errors.New("it refuses")
		err := r.StopOrKill(t.Context(), func(context.Context) error {
			asked++
			if len(d.calls) > 0 {
				return nil // the shim is dead
			}
			return refuses
		})
		if err != nil {
			t.Errorf("StopOrKill returned %v", err)
		}
		if took := time.Since(began); took != shimPatience {
			t.Errorf("the shim was killed after %v, not %v", took, shimPatience)
		}
		if want := int(shimPatience/retryInterval) + 1; asked < want-1 || asked > want+1 {
			t.Errorf("asked %d times, want about %d", asked, want)
		}
	})
	test.EqualLists(t, "called", d.calls, []string{"dismiss", "clean up"})
}

// If the caller leaves, the shim is not killed before shimPatience is over.
func TestCallerLeavesShimThatRefuses(t *testing.T) {
	r, d := deadShim(t, shim.ErrGone)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		test.ErrorIs(t, r.StopOrKill(ctx, func(context.Context) error { return errors.New("it refuses") }), context.DeadlineExceeded, "StopOrKill")
	})
	if len(d.calls) > 0 {
		t.Errorf("the shim was killed too early: %q", d.calls)
	}
}

// A container of a dead shim is deleted by cleaning up after the shim, once a second
// connection has failed as well.
func TestDeleteTaskOfADeadShim(t *testing.T) {
	r, d := deadShim(t, shim.ErrGone)
	test.Must(t, r.Delete(t.Context(), "container"))
	test.EqualLists(t, "called", d.calls, []string{"connect", "connect", "clean up"})
	r, d = deadShim(t, errors.New("it answers nonsense"))
	if err := r.Delete(t.Context(), "container"); err == nil || !slices.Equal(d.calls, []string{"connect"}) {
		t.Errorf("a shim that answers: %v after %q", err, d.calls)
	}
}

// An endpoint that a killed daemon did not record is read from the shim's answer.
func TestEndpointOfAKilledDaemon(t *testing.T) {
	r, d := deadShim(t, shim.ErrGone)
	r.sandbox.Record(t.Context(), func(st *pod.SandboxStatus) { st.Shim = nil })
	test.ErrorIs(t, test.Err(r.Client(t.Context())), shim.ErrGone, "Client of a dead shim")
	test.EqualLists(t, "called", d.calls, []string{"find", "connect"})
	d.fails["find"] = errors.New("none was started")
	d.calls = nil
	if err := r.dismiss(t.Context(), nil); err != nil || !slices.Equal(d.calls, []string{"find"}) {
		t.Errorf("nothing to dismiss: %v after %q", err, d.calls)
	}
}
