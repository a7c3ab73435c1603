package capabilities

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berth-cri/berth/internal/test"
)

// A success is remembered forever, a failure for a while.
func TestIDMappingRemembers(t *testing.T) {
	ctx := t.Context()
	dir := filepath.Join(t.TempDir(), "store")
	var m idMapping
	if err := m.probe(ctx, ctx, dir); err == nil {
		t.Fatal("the probe of a missing directory succeeded")
	}
	test.Must(t, os.Mkdir(dir, 0o711))
	test.Fails(t, m.probe(ctx, ctx, dir), "the failure was forgotten at once")
	m.asked = m.asked.Add(-2 * failedProbe)
	test.Checkf(t, m.probe(ctx, ctx, dir), "the probe after the failure expired")
	test.Checkf(t, os.Remove(dir), "the probe left files in its directory")
	m.asked = m.asked.Add(-24 * time.Hour)
	test.Checkf(t, m.probe(ctx, ctx, dir), "the success was forgotten")
}

func TestIDMappingDoesNotWait(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	m := idMapping{done: make(chan struct{})} // a probe that hangs
	test.ErrorIs(t, m.probe(ended, t.Context(), t.TempDir()), context.Canceled, "a probe with an ended context")
}

func TestPassable(t *testing.T) {
	closed := t.TempDir()
	state := filepath.Join(closed, "run", "state")
	test.Must(t, os.MkdirAll(state, 0o711))
	for _, mode := range []os.FileMode{0o700, 0o766} {
		test.Must(t, os.Chmod(closed, mode))
		if err := passable(state); err == nil || !strings.Contains(err.Error(), "chmod o+x "+closed) {
			t.Errorf("mode %o: %v", mode, err)
		}
	}
	// Other users cannot enter the parents of the test's directory either, so open these too.
	for d := closed; d != "/tmp" && d != "/"; d = filepath.Dir(d) {
		test.Must(t, os.Chmod(d, 0o711))
	}
	test.Check(t, passable(state))
	test.ErrorIs(t, passable(state+"x"), os.ErrNotExist, "a missing directory")
}

// When the engine closes, settle waits until a running probe has removed its mounts.
func TestProbeIsOverWhenTheEngineCloses(t *testing.T) {
	var m idMapping
	m.settle(t.Context()) // returns at once: no probe was started
	background, stop := context.WithCancel(t.Context())
	dir := t.TempDir()
	done := m.ask(background, dir)
	stop()
	m.settle(t.Context())
	select {
	case <-done:
	default:
		t.Error("the probe still runs after settle")
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) > 0 {
		t.Errorf("the probe left %q", left)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	(&idMapping{done: make(chan struct{})}).settle(ended) // returns although the probe hangs
}
