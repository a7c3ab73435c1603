package podcheckpoint

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/enginetest"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/podcheckpoint/directory"
	"github.com/berth-cri/berth/pkg/engine/podcheckpoint/manifest"
	"github.com/berth-cri/berth/pkg/handler"
)

// pods returns an empty registry with its own directories.
func pods(t *testing.T) *pod.Registry {
	t.Helper()
	all, _, err := pod.Open(t.Context(), filepath.Join(t.TempDir(), "root"), filepath.Join(t.TempDir(), "state"))
	test.Must(t, err)
	return all
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// An interrupted checkpoint is discarded only when nothing writes or uses it any more. CRIU can
// outlive the daemon and still write a container, and another call may use the directory.
func TestInterruptedIsDiscarded(t *testing.T) {
	all := pods(t)
	c := enginetest.Container(t, enginetest.Sandbox(t, t.TempDir(), pod.SandboxSpec{Definition: &handler.Definition{}}, &enginetest.Runner{}))
	all.Index.AddContainer(c)
	dir := t.TempDir()
	test.Must(t, os.Chmod(dir, 0o700))
	file := filepath.Join(dir, manifest.ImagesDir, "0", "checkpoint", "pages-1.img")
	test.Must(t, os.MkdirAll(filepath.Dir(file), 0o700))
	test.Must(t, os.WriteFile(file, []byte("memory"), 0o600))
	test.Must(t, os.MkdirAll(all.FrozenDir(c.ID()), 0o700))
	b := &Service{Deps: Deps{Pods: all}, notes: notes(all.PodCheckpointNotesDir())}
	one := note{c.Sandbox.ID(), dir}
	test.Must(t, b.notes.begin(one))
	release := test.Value(directory.Use(dir))(t)
	done := make(chan struct{})
	go func() { b.discard(one); close(done) }()
	stays := func(while string) {
		t.Helper()
		select {
		case <-done:
			t.Errorf("discard returned %s", while)
		case <-time.After(3 * retryInterval):
		}
		if !exists(file) || !exists(b.notes.file(one)) {
			t.Errorf("the files were removed %s", while)
		}
	}
	stays("while a container may be written")
	test.Must(t, os.Remove(all.FrozenDir(c.ID())))
	stays("while the directory is in use")
	release()
	<-done
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 || exists(b.notes.file(one)) {
		t.Errorf("left are %v, %v", left, err)
	}
}

// If the daemon stops before a container is thawed, the note stays for the next start.
func TestInterruptedStaysForTheNextStart(t *testing.T) {
	all := pods(t)
	var stop context.CancelFunc
	all.Background, stop = context.WithCancel(t.Context())
	c := enginetest.Container(t, enginetest.Sandbox(t, t.TempDir(), pod.SandboxSpec{Definition: &handler.Definition{}}, &enginetest.Runner{}))
	all.Index.AddContainer(c)
	test.Must(t, os.MkdirAll(all.FrozenDir(c.ID()), 0o700))
	b := &Service{Deps: Deps{Pods: all}, notes: notes(all.PodCheckpointNotesDir())}
	one := note{c.Sandbox.ID(), t.TempDir()}
	test.Must(t, b.notes.begin(one))
	stop()
	b.discard(one)
	if found, err := b.notes.all(); err != nil || !slices.Contains(found, one) {
		t.Errorf("noted are %v, %v", found, err)
	}
}
