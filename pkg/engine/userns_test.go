package engine

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A yes is remembered for good, a no for a while.
func TestIDMappingRemembers(t *testing.T) {
	ctx := t.Context()
	dir := filepath.Join(t.TempDir(), "store")
	var m idMapping
	if err := m.probe(ctx, ctx, dir); err == nil {
		t.Fatal("a missing directory passes")
	}
	if err := os.Mkdir(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	if err := m.probe(ctx, ctx, dir); err == nil {
		t.Error("a no is forgotten at once")
	}
	m.asked = m.asked.Add(-2 * failedProbe)
	if err := m.probe(ctx, ctx, dir); err != nil {
		t.Errorf("asked again: %v", err)
	}
	if err := os.Remove(dir); err != nil {
		t.Errorf("the probe left something: %v", err)
	}
	m.asked = m.asked.Add(-24 * time.Hour)
	if err := m.probe(ctx, ctx, dir); err != nil {
		t.Errorf("a yes was forgotten: %v", err)
	}
}

func TestIDMappingDoesNotWait(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	m := idMapping{done: make(chan struct{})} // a probe that hangs
	if err := m.probe(ended, t.Context(), t.TempDir()); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestPodUser(t *testing.T) {
	config := func(u *runtimeapi.UserNamespace) *runtimeapi.PodSandboxConfig {
		return &runtimeapi.PodSandboxConfig{Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{UsernsOptions: u},
		}}}
	}
	for name, c := range map[string]*runtimeapi.PodSandboxConfig{
		"nothing": {}, "no options": config(nil), "old": config(&runtimeapi.UserNamespace{}), "the host's": config(&runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_NODE}),
	} {
		if u := podUser(c); u != nil {
			t.Errorf("%s: %+v", name, u)
		}
	}
	one := []*runtimeapi.IDMapping{{HostId: 7, Length: 9}}
	u := podUser(config(&runtimeapi.UserNamespace{Uids: one, Gids: one}))
	if u == nil || u.UIDs.HostID != 7 || u.GIDs.Size != 9 {
		t.Fatalf("mapped: %+v", u)
	}
	plan := &sandboxPlan{User: u}
	if of := plan.userNamespace(); of.GetUids()[0].GetHostId() != 7 || of.GetUids()[0].GetLength() != 9 || of.GetGids()[0].GetLength() != 9 {
		t.Errorf("the namespace is %v", of)
	}
	if of := (&sandboxPlan{}).userNamespace(); of != nil {
		t.Errorf("the namespace of a pod without is %v", of)
	}
	if uid, gid := plan.root(); uid != 7 || gid != 7 {
		t.Errorf("root is %d:%d", uid, gid)
	}
	if uid, gid := (&sandboxPlan{}).root(); uid != 0 || gid != 0 {
		t.Errorf("root of a pod without is %d:%d", uid, gid)
	}
}

func TestPassable(t *testing.T) {
	closed := t.TempDir()
	state := filepath.Join(closed, "run", "state")
	if err := os.MkdirAll(state, 0o711); err != nil {
		t.Fatal(err)
	}
	for _, mode := range []os.FileMode{0o700, 0o766} {
		if err := os.Chmod(closed, mode); err != nil {
			t.Fatal(err)
		}
		if err := passable(state); err == nil || !strings.Contains(err.Error(), "chmod o+x "+closed) {
			t.Errorf("mode %o: %v", mode, err)
		}
	}
	// Where tests' directories are is nobody else's to enter.
	for d := closed; d != "/tmp" && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	if err := passable(state); err != nil {
		t.Error(err)
	}
	if err := passable(state + "x"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing one: %v", err)
	}
}

// TestProbeIsOverWhenTheEngineCloses has an engine close while a probe has mounts.
func TestProbeIsOverWhenTheEngineCloses(t *testing.T) {
	var m idMapping
	m.settle(t.Context()) // nobody has asked
	background, stop := context.WithCancel(t.Context())
	dir := t.TempDir()
	done := m.ask(background, dir)
	stop()
	m.settle(t.Context())
	select {
	case <-done:
	default:
		t.Error("the probe goes on")
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) > 0 {
		t.Errorf("%q is left", left)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	(&idMapping{done: make(chan struct{})}).settle(ended) // one that hangs keeps nobody
}
