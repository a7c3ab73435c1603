package podcheckpoint

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/podcheckpoint/directory"
	"github.com/berth-cri/berth/pkg/engine/podcheckpoint/manifest"
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

// An interrupted checkpoint is discarded only when no other call uses its directory any more.
func TestInterruptedIsDiscarded(t *testing.T) {
	all := pods(t)
	dir := t.TempDir()
	test.Must(t, os.Chmod(dir, 0o700))
	file := filepath.Join(dir, manifest.ImagesDir, "pages.img")
	test.Must(t, os.MkdirAll(filepath.Dir(file), 0o700))
	test.Must(t, os.WriteFile(file, []byte("memory"), 0o600))
	b := &Service{Deps: Deps{Pods: all}, notes: notes(all.PodCheckpointNotesDir())}
	one := note{pod.NewID(), dir}
	test.Must(t, b.notes.begin(one))
	release := test.Value(directory.Use(dir))(t)
	done := make(chan struct{})
	go func() { b.discard(one); close(done) }()
	select {
	case <-done:
		t.Error("discard returned while the directory is in use")
	case <-time.After(3 * retryInterval):
	}
	if !exists(file) || !exists(b.notes.file(one)) {
		t.Error("the files were removed while the directory is in use")
	}
	release()
	<-done
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 || exists(b.notes.file(one)) {
		t.Errorf("left are %v, %v", left, err)
	}
}

// If the daemon stops while the directory is in use, the note stays for the next start.
func TestInterruptedStaysForTheNextStart(t *testing.T) {
	all := pods(t)
	var stop context.CancelFunc
	all.Background, stop = context.WithCancel(t.Context())
	b := &Service{Deps: Deps{Pods: all}, notes: notes(all.PodCheckpointNotesDir())}
	one := note{pod.NewID(), t.TempDir()}
	test.Must(t, b.notes.begin(one))
	defer test.Value(directory.Use(one.Directory))(t)()
	stop()
	b.discard(one)
	if found, err := b.notes.all(); err != nil || !slices.Contains(found, one) {
		t.Errorf("noted are %v, %v", found, err)
	}
}
