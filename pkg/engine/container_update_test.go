package engine

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/log"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/engine/store"
	"github.com/berth-cri/berth/pkg/handler"
)

// deafCore has one supervisor, with the key "deaf", which never reads.
func deafCore(t *testing.T) *core {
	t.Helper()
	state, err := os.MkdirTemp("", "be-") // the paths of sockets must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(state) })
	shims, err := shim.New(shim.Config{State: state, Supervisor: "/none"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(shims.Close)
	dir := shims.SupervisorDir("deaf")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(dir, "shim.sock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	k := &core{layout: layout{state: state}, settings: &settings{}, shims: shims, background: t.Context()}
	k.tasks = newTasks(k.layout, k.settings, newRuntimes(nil, log.L), shims)
	return k
}

// deafContainer runs, as far as its record says.
func deafContainer(t *testing.T, k *core, d handler.Definition) *container {
	t.Helper()
	d.Type = handler.OCI
	s := newSandbox(reopened(t, t.TempDir(), sandboxSpec{Definition: &d, Supervisor: "deaf"}))
	ctrs, _, err := store.Open[containerSpec, containerStatus](t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	o, err := ctrs.Create(newID(), containerSpec{Sandbox: s.ID()}, containerStatus{Phase: phaseRunning}, store.Relaxed)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(k.containerDir(o.ID()), "io"), 0o700); err != nil {
		t.Fatal(err)
	}
	return newContainer(o, s)
}

// A runtime that takes back nothing must not keep the spec from being put back,
// nor hold up the roll-back past its time.
func TestFailedUpdateLeavesTheOldSpec(t *testing.T) {
	k := deafCore(t)
	c := deafContainer(t, k, handler.Definition{ContainerCreateTimeout: time.Second})
	limit := func(n int64) *specs.LinuxResources {
		return &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &n}}
	}
	spec := &specs.Spec{Linux: &specs.Linux{Resources: limit(1)}}
	u := &undo{}
	if err := newResources(k.layout, k.settings, k.tasks).setResources(t.Context(), u, c, spec, limit(2)); err == nil || !strings.Contains(err.Error(), context.DeadlineExceeded.Error()) {
		t.Fatalf("the update: %v", err)
	}
	holds := func(want int64) {
		t.Helper()
		now, err := readSpec(k.containerDir(c.ID()))
		if err != nil {
			t.Fatal(err)
		}
		if got := *now.Linux.Resources.Memory.Limit; got != want {
			t.Errorf("the spec has %d, want %d", got, want)
		}
	}
	holds(2)
	if err := u.run(); err == nil {
		t.Error("a deaf runtime put the limits back")
	}
	holds(1)
	over, end := context.WithCancel(t.Context())
	end()
	var failed error
	for _, s := range u.steps {
		failed = errors.Join(failed, s.back(over))
	}
	if failed == nil || !strings.Contains(failed.Error(), context.Canceled.Error()) {
		t.Errorf("the roll-back goes on past its time: %v", failed)
	}
}
