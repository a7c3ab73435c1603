// Package enginetest provides pods with records on disk, and supervisors that do not respond, to
// tests of the engine's packages.
package enginetest

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/log"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/binaries"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/settings"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/engine/store"
	"github.com/berth-cri/berth/pkg/engine/task"
	"github.com/berth-cri/berth/pkg/handler"
)

// Sandbox writes a record below dir, and reads it as a restarted daemon does.
func Sandbox(t *testing.T, dir string, spec pod.SandboxSpec, b pod.Binder) *pod.Sandbox {
	t.Helper()
	id := pod.NewID()
	records, _, err := store.Open[pod.SandboxSpec, pod.SandboxStatus](dir)
	if err == nil {
		_, err = records.Create(id, spec, pod.SandboxStatus{}, store.Relaxed)
	}
	if err == nil {
		records, _, err = store.Open[pod.SandboxSpec, pod.SandboxStatus](dir)
	}
	if err != nil {
		t.Fatal(err)
	}
	o, ok := records.Get(id)
	if !ok {
		t.Fatal("the record is gone")
	}
	return pod.NewSandbox(o, b)
}

// Container returns a container that is recorded as running.
func Container(t *testing.T, s *pod.Sandbox) *pod.Container {
	t.Helper()
	records, _, err := store.Open[pod.ContainerSpec, pod.ContainerStatus](t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	o := test.Value(records.Create(pod.NewID(), pod.ContainerSpec{Sandbox: s.ID()}, pod.ContainerStatus{Phase: pod.PhaseRunning}, store.Relaxed))(t)
	return pod.NewContainer(o, s)
}

// Unresponsive has pods with one supervisor that never reads.
type Unresponsive struct {
	Pods     *pod.Registry
	Settings *settings.Settings
	Tasks    *task.Service
}

// NewUnresponsive returns an Unresponsive and removes its files at the end of the test.
func NewUnresponsive(t *testing.T) *Unresponsive {
	t.Helper()
	state, err := os.MkdirTemp("", "be-") // the paths of sockets must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(state) })
	shims := test.Value(shim.New(shim.Config{State: state, Supervisor: "/none"}))(t)
	t.Cleanup(shims.Close)
	dir := shims.SupervisorDir("deaf")
	test.Must(t, os.Mkdir(dir, 0o700))
	l := test.Value(net.Listen("unix", filepath.Join(dir, "shim.sock")))(t)
	t.Cleanup(func() { _ = l.Close() })
	pods, _, err := pod.Open(t.Context(), t.TempDir(), state)
	if err != nil {
		t.Fatal(err)
	}
	d := &Unresponsive{Pods: pods, Settings: &settings.Settings{}}
	d.Tasks = task.New(d.Pods, &binaries.Binaries{Runtimes: binaries.NewRuntimes(nil, log.L)}, shims)
	return d
}

// Container returns a container, with a directory, of a pod that the supervisor runs.
func (d *Unresponsive) Container(t *testing.T, of handler.Definition) *pod.Container {
	t.Helper()
	of.Type = handler.OCI
	c := Container(t, Sandbox(t, t.TempDir(), pod.SandboxSpec{Definition: &of, Supervisor: "deaf"}, d.Tasks))
	test.Must(t, os.MkdirAll(filepath.Join(d.Pods.ContainerDir(c.ID()), "io"), 0o700))
	return c
}
