package sandbox

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/containerd/log"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/binaries"
	"github.com/berth-cri/berth/pkg/engine/enginetest"
	"github.com/berth-cri/berth/pkg/engine/events"
	"github.com/berth-cri/berth/pkg/engine/hooks"
	"github.com/berth-cri/berth/pkg/engine/network"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/reserve"
	"github.com/berth-cri/berth/pkg/engine/rootfs"
	"github.com/berth-cri/berth/pkg/engine/settings"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/engine/store"
	"github.com/berth-cri/berth/pkg/engine/task"
	"github.com/berth-cri/berth/pkg/handler"
)

// orderBed runs and stops sandboxes. Only their records are real; the Runner records the
// calls to other packages in order.
type orderBed struct {
	*runs
	*enginetest.Runner
	sandbox *pod.Sandbox
}

// others replaces the other packages that sandboxes call.
type others struct {
	networks // nil: only Teardown is called
	*enginetest.Runner
}

func (o others) End(context.Context, *pod.Container) error    { return o.Record("end container") }
func (o others) Remove(context.Context, *pod.Container) error { return o.Record("remove container") }
func (o others) Teardown(context.Context, network.Pod, *network.Result) error {
	return o.Record("disconnect")
}
func (o others) Hold(string)    { _ = o.Record("hold") }
func (o others) Release(string) { _ = o.Record("release") }

// exited is a Runner whose process has exited.
type exited struct{ *enginetest.Runner }

func (exited) Exit(context.Context, string) (pod.Exit, error) { return pod.Exit{Status: 137}, nil }

// The exit code of the process is recorded for containerd's events.
func TestWatchRecordsTheExit(t *testing.T) {
	b := newOrderBed(t, pod.SandboxSpec{Plan: pod.Plan{Process: true}}, pod.SandboxStatus{Phase: pod.PhaseReady, PID: 7})
	b.sandbox.Runner.Tasks = exited{b.Runner}
	b.processes.Watch(b.sandbox)
	if st := b.sandbox.Status(); st.Phase != pod.PhaseStopped || st.PID != 0 || st.ExitCode != 137 {
		t.Errorf("recorded is %+v", st)
	}
}

func newOrderBed(t *testing.T, spec pod.SandboxSpec, status pod.SandboxStatus) *orderBed {
	t.Helper()
	pods, _, err := pod.Open(t.Context(), t.TempDir(), t.TempDir())
	test.Must(t, err)
	shims := test.Value(shim.New(shim.Config{State: t.TempDir(), Supervisor: "/none"}))(t)
	t.Cleanup(shims.Close)
	runner := &enginetest.Runner{Fails: map[string]error{}}
	b := &binaries.Binaries{Runtimes: binaries.NewRuntimes(nil, log.L)}
	rest := others{Runner: runner}
	service := New(Deps{
		Pods: pods, Binaries: b, Settings: &settings.Settings{}, Tasks: task.New(pods, b, shims), Rootfs: rootfs.New(pods, nil),
		Events: events.NewAnnouncer(events.NewBroker(), pods, nil), Hooks: hooks.New(hooks.NewSubjects(pods), nil),
		Network: rest, Shims: rest, Containers: rest,
	})
	spec.Definition = &handler.Definition{Name: "fake", Type: handler.OCI}
	spec.Config.Msg = &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: "n", Namespace: "ns", Uid: "u"}}
	o := test.Value(pods.Sandboxes.Create(pod.NewID(), spec, status, store.Relaxed))(t)
	return &orderBed{runs: service.runs, Runner: runner, sandbox: pod.NewSandbox(o, runner)}
}

// reserveName reserves the name of the sandbox, as RunPodSandbox does.
func (b *orderBed) reserveName(t *testing.T) {
	t.Helper()
	test.Must(t, b.Pods.Names.Reserve(reserve.SandboxName(b.sandbox.Config().GetMetadata()), b.sandbox.ID()))
}

func (b *orderBed) nameIsFree() bool {
	name := reserve.SandboxName(b.sandbox.Config().GetMetadata())
	free := b.Pods.Names.Reserve(name, "another") == nil
	b.Pods.Names.Release(name, "another")
	return free
}

// Containers stop before the sandbox process, and the process before the network is
// disconnected. A failed step ends the stop, and the next stop repeats all steps. A sandbox
// that was stopped completely is not touched again.
func TestStopOrder(t *testing.T) {
	all := []string{"StopOrKill", "end container", "End", "disconnect"}
	for fails, want := range map[string][]string{
		"":              all,
		"StopOrKill":    {"StopOrKill"},
		"end container": {"StopOrKill", "end container"},
		"End":           {"StopOrKill", "end container", "End"},
		"disconnect":    all,
	} {
		t.Run("fails: "+fails, func(t *testing.T) {
			b := newOrderBed(t, pod.SandboxSpec{Plan: pod.Plan{Process: true}}, pod.SandboxStatus{Phase: pod.PhaseReady, Tried: true})
			b.Pods.Index.AddSandbox(b.sandbox)
			o := test.Value(b.Pods.Containers.Create(pod.NewID(), pod.ContainerSpec{Sandbox: b.sandbox.ID()}, pod.ContainerStatus{Phase: pod.PhaseRunning}, store.Relaxed))(t)
			b.Pods.Index.AddContainer(pod.NewContainer(o, b.sandbox))
			stop := func() error {
				_, err := b.stops.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: b.sandbox.ID()})
				return err
			}
			if fails != "" {
				b.Fails[fails] = errors.New("it fails")
				if err := stop(); err == nil || b.sandbox.Status().Stopped {
					t.Errorf("stop returned %v, stopped: %v", err, b.sandbox.Status().Stopped)
				}
				test.EqualLists(t, "called", b.Calls(), want)
				test.Fails(t, b.sandbox.Open(), "a sandbox accepts new containers after its stop failed")
				delete(b.Fails, fails)
				want = append(slices.Clone(want), all...)
			}
			for range 2 {
				if err := stop(); err != nil || !b.sandbox.Status().Stopped {
					t.Errorf("stop: %v, stopped: %v", err, b.sandbox.Status().Stopped)
				}
				test.EqualLists(t, "called", b.Calls(), want)
			}
		})
	}
}

// A failed start leaves no record, no reserved name and no hold on a supervisor. A sandbox
// that cannot be rolled back is listed as NOTREADY, so that the kubelet removes it.
func TestRollBackOrder(t *testing.T) {
	for name, c := range map[string]struct {
		fails   []string
		process bool
		want    []string
		left    bool
	}{
		"no supervisor": {[]string{"Prepare"}, false, []string{"hold", "Prepare", "release"}, false},
		// End is called even if the sandbox process was not started.
		"no supervisor, with a process": {[]string{"Prepare"}, true, []string{"hold", "Prepare", "End", "release"}, false},
		"roll-back fails":               {[]string{"Prepare", "End"}, true, []string{"hold", "Prepare", "End"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newOrderBed(t, pod.SandboxSpec{Plan: pod.Plan{Process: c.process}}, pod.SandboxStatus{})
			b.reserveName(t)
			for _, call := range c.fails {
				b.Fails[call] = errors.New(call + " fails")
			}
			err := b.bringUp(t.Context(), b.sandbox, nil)
			if !errors.Is(err, b.Fails["Prepare"]) {
				t.Errorf("bringUp failed with %v, not with the cause", err)
			}
			test.EqualLists(t, "called", b.Calls(), c.want)
			_, recorded := b.Pods.Sandboxes.Get(b.sandbox.ID())
			_, lerr := b.Pods.Index.Sandbox(b.sandbox.ID())
			if listed := lerr == nil; listed != c.left || recorded != c.left || b.nameIsFree() == c.left {
				t.Errorf("listed %v, recorded %v, name free %v; left should be %v", listed, recorded, b.nameIsFree(), c.left)
			}
			if c.left && b.sandbox.State() != runtimeapi.PodSandboxState_SANDBOX_NOTREADY {
				t.Error("the sandbox that is left is ready")
			}
		})
	}
}

// A sandbox that is created after its caller has left is rolled back: no client has its ID,
// so no client would remove it.
func TestRollBackAfterTheCallerLeft(t *testing.T) {
	b := newOrderBed(t, pod.SandboxSpec{}, pod.SandboxStatus{})
	b.reserveName(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	b.On = func(call string) {
		if call == "Prepare" {
			cancel()
		}
	}
	test.ErrorIs(t, b.bringUp(ctx, b.sandbox, nil), context.Canceled, "bringUp after the caller has left")
	if _, there := b.Pods.Sandboxes.Get(b.sandbox.ID()); there || !b.nameIsFree() {
		t.Error("a sandbox is left, but its ID was not returned")
	}
}
