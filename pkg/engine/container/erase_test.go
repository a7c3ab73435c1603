package container

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/containerd/log"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/binaries"
	"github.com/berth-cri/berth/pkg/engine/enginetest"
	"github.com/berth-cri/berth/pkg/engine/events"
	"github.com/berth-cri/berth/pkg/engine/hooks"
	"github.com/berth-cri/berth/pkg/engine/image"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/rootfs"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/engine/store"
	"github.com/berth-cri/berth/pkg/engine/task"
	"github.com/berth-cri/berth/pkg/handler"
)

// After an exit, the log is read to its end, the exit is recorded, the runtime deletes
// the task, and the log's writer is closed, in this order. RemoveContainer repeats a
// failed Delete or CloseLog, and fails as long as the repeated call fails.
func TestOrderAfterAnExit(t *testing.T) {
	for fails, want := range map[string][]string{
		"":         {"FlushLog", "Delete", "CloseLog"},
		"FlushLog": {"FlushLog", "Delete", "CloseLog"},
		"Delete":   {"FlushLog", "Delete"},
		"CloseLog": {"FlushLog", "Delete", "CloseLog"},
	} {
		t.Run("fails: "+fails, func(t *testing.T) {
			runner := &enginetest.Runner{Fails: map[string]error{fails: errors.New("it fails")}}
			b, c := exited(t, runner)
			runner.On = func(call string) {
				test.Equal(t, fmt.Sprintf("at %s the exit is recorded", call), c.Status().Phase == pod.PhaseExited, call != "FlushLog")
			}
			b.exited(c, pod.Exit{Status: 3})
			test.EqualLists(t, "called", runner.Calls(), want)
			if st := c.Status(); st.ExitCode != 3 || st.Erased != (fails == "" || fails == "FlushLog") {
				t.Errorf("exit code %d, erased %v", st.ExitCode, st.Erased)
			}
			s := &stops{b.Deps, b}
			remove := func() error {
				_, err := s.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: c.ID()})
				return err
			}
			if fails == "Delete" || fails == "CloseLog" {
				test.Fails(t, remove(), "RemoveContainer succeeded although %s fails", fails)
				if _, there := b.Pods.Containers.Get(c.ID()); !there {
					t.Fatal("the container's record is gone")
				}
				delete(runner.Fails, fails)
			}
			test.Check(t, remove())
			if _, there := b.Pods.Containers.Get(c.ID()); there {
				t.Error("the container's record is left")
			}
		})
	}
}

// exited returns a container that runs according to its record, and the handling of its exit.
func exited(t *testing.T, runner *enginetest.Runner) (*ends, *pod.Container) {
	t.Helper()
	pods, _, err := pod.Open(t.Context(), t.TempDir(), t.TempDir())
	test.Must(t, err)
	shims := test.Value(shim.New(shim.Config{State: t.TempDir(), Supervisor: "/none"}))(t)
	t.Cleanup(shims.Close)
	images := test.Value(image.Open(t.Context(), image.Config{Root: t.TempDir()}))(t)
	t.Cleanup(func() { _ = images.Close() })
	b := &binaries.Binaries{Runtimes: binaries.NewRuntimes(nil, log.L)}
	s := enginetest.Sandbox(t, t.TempDir(), pod.SandboxSpec{Definition: &handler.Definition{Type: handler.OCI}}, runner)
	pods.Index.AddSandbox(s)
	spec := pod.ContainerSpec{Sandbox: s.ID(), CgroupsPath: "/none", Snapshotter: "native"}
	spec.Config.Msg = &runtimeapi.ContainerConfig{Metadata: &runtimeapi.ContainerMetadata{Name: "c"}}
	o := test.Value(pods.Containers.Create(pod.NewID(), spec, pod.ContainerStatus{Phase: pod.PhaseRunning}, store.Relaxed))(t)
	c := pod.NewContainer(o, s)
	pods.Index.AddContainer(c)
	return &ends{Deps{
		Pods: pods, Binaries: b, Tasks: task.New(pods, b, shims), Images: images, Rootfs: rootfs.New(pods, images),
		Hooks: hooks.New(hooks.NewSubjects(pods), nil), Events: events.NewAnnouncer(events.NewBroker(), pods, nil),
	}}, c
}

// If the exit cannot be recorded, as on a full disk, the task is not deleted: only the
// task still has the exit code.
func TestExitIsNotErasedUnrecorded(t *testing.T) {
	runner := &enginetest.Runner{}
	b, c := exited(t, runner)
	records, err := filepath.Glob(filepath.Join(b.Pods.Root, "records", "containers", c.ID(), "status.json"))
	if err != nil || len(records) != 1 {
		t.Fatalf("records %q, %v", records, err)
	}
	// A directory of this name prevents the file's creation, even for root.
	fresh := filepath.Join(filepath.Dir(records[0]), ".status.json.new", "in the way")
	test.Must(t, os.MkdirAll(fresh, 0o700))
	b.exited(c, pod.Exit{Status: 3})
	if got := runner.Calls(); !slices.Equal(got, []string{"FlushLog"}) || c.Status().Erased || c.Status().ExitCode != 3 {
		t.Errorf("called %q, erased %v", got, c.Status().Erased)
	}
}

// A container that the kernel killed for memory has the reason OOMKilled even if its exit code is lost.
func TestLostExitForMemory(t *testing.T) {
	b, c := exited(t, &enginetest.Runner{})
	b.exited(c, pod.Exit{Unknown: true, OOM: true})
	if st := c.Status(); st.Reason != "OOMKilled" || st.ExitCode != pod.UnknownExitCode {
		t.Errorf("reason %s, exit code %d", st.Reason, st.ExitCode)
	}
}
