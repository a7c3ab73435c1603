package disk

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/plugins/snapshots/erofs"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
)

// A layer that waits for the layer below fails once that layer is removed.
func TestLayerBelowFails(t *testing.T) {
	root := t.TempDir()
	f := test.Value(Open(t.Context(), Config{Root: root, WritableRoot: root, Snapshotter: Overlayfs}))(t)
	defer func() { test.Check(t, f.Close()) }()
	l := f.Layers[Overlayfs]
	ctx, lease, err := f.Lease(InNamespace(t.Context()), nil)
	test.Must(t, err)
	defer f.EndLease(ctx, lease)
	prepare := func(key, chain, parent string) {
		labels := map[string]string{snapshots.LabelSnapshotRef: chain}
		if parent != "" {
			labels[ParentLabel] = parent
		}
		test.Must(t, test.Err(l.Prepare(ctx, key, "", snapshots.WithLabels(labels))))
	}
	prepare("k1", "below", "")
	prepare("k2", "above", "below")
	waited := make(chan error, 1)
	go func() { waited <- l.Wait(ctx, "below") }()
	select {
	case err := <-waited:
		t.Fatalf("Wait did not wait for the layer below: %v", err)
	default:
	}
	test.Must(t, l.Remove(ctx, "k1"))
	test.Fails(t, <-waited, "Wait returned no error after the layer below was removed")
	// Removed layers leave no entries.
	test.Must(t, l.Remove(ctx, "k2"))
	if len(l.Rebases.active) > 0 {
		t.Errorf("entries of removed layers are left: %+v", l.Rebases)
	}
	prepare("k3", "below", "")
	go func() { waited <- l.Wait(ctx, "below") }()
	test.Must(t, l.Commit(ctx, "below", "k3", snapshots.WithLabels(map[string]string{snapshots.LabelSnapshotRef: "below"})))
	test.Checkf(t, <-waited, "wait for a layer that is committed")
	cancelled, cancel := context.WithCancel(ctx)
	prepare("k4", "never", "")
	cancel()
	test.Fails(t, l.Wait(cancelled, "never"), "Wait with a cancelled context returned no error")
	test.Must(t, l.Remove(ctx, "k4"))
}

// Other filesystems than the root's are recorded for the flush, each once.
func TestFlushOfOtherFilesystems(t *testing.T) {
	root, marks := t.TempDir(), t.TempDir()
	f := test.Value(newFlusher(root, marks))(t)
	other := test.Value(os.MkdirTemp("/dev/shm", "berth-flush-"))(t)
	defer func() { test.Must(t, os.RemoveAll(other)) }()
	id, _, err := f.Begin()
	test.Must(t, err)
	for _, dir := range []string{other, root, other} {
		test.Must(t, f.Wrote(id, dir))
	}
	if n := len(f.others[id]); n != 1 {
		t.Errorf("%d other filesystems are recorded, want 1", n)
	}
	f.End(id)
	test.Must(t, f.Flushed(t.Context()))
	if left := test.Value(os.ReadDir(marks))(t); len(left)+len(f.others) > 0 {
		t.Errorf("after the flush there are marks %v and filesystems %v", left, f.others)
	}
}

// The kernel reports a write error only once, so a restarted daemon must remember the failed flush.
func TestFailedFlushIsNotForgotten(t *testing.T) {
	root, marks := filepath.Join(t.TempDir(), "root"), t.TempDir()
	test.Must(t, os.Mkdir(root, 0o700))
	f := test.Value(newFlusher(root, marks))(t)
	id, _, err := f.Begin()
	test.Must(t, err)
	f.End(id)
	test.Must(t, os.Remove(root))
	test.Fails(t, f.Flushed(t.Context()), "the flush of a removed root succeeded")
	test.Must(t, os.Mkdir(root, 0o700))
	again := test.Value(newFlusher(root, marks))(t)
	test.Must(t, again.Recover(slices.Values([]string{"overlayfs"})))
	test.Must(t, again.Flushed(t.Context()))
	if left := test.Value(os.ReadDir(marks))(t); len(left) != 1 || len(again.lost) > 0 {
		t.Errorf("in the same boot there are marks %v, want 1, and lost unpackings %v", left, again.lost)
	}
	again.Boot = "the next"
	test.Must(t, again.Recover(slices.Values([]string{"overlayfs"})))
	if !again.lost[id] {
		t.Error("after a reboot the layers of the failed flush are trusted")
	}
}

func TestErofsOnEarlierKernels(t *testing.T) {
	if _, err := exec.LookPath("mkfs.erofs"); err != nil || !erofs.FindErofs() {
		if os.Getenv("BERTH_TEST_REQUIRE") != "" {
			t.Fatal("mkfs.erofs (erofs-utils) or the kernel's erofs is missing")
		}
		t.Skip("mkfs.erofs (erofs-utils) or the kernel's erofs is missing")
	}
	tree, file, dir := t.TempDir(), filepath.Join(t.TempDir(), "layer.erofs"), t.TempDir()
	test.Must(t, os.WriteFile(filepath.Join(tree, "a"), []byte("of a"), 0o600))
	if out, err := exec.Command("mkfs.erofs", "--quiet", file, tree).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.erofs: %v: %s", err, out)
	}
	m := mount.Mount{Type: "erofs", Source: file, Options: []string{"ro", "loop"}}
	test.Must(t, mountErofs(m, dir, func(string, string, string, uintptr, string) error { return unix.ENOTBLK }))
	defer func() { test.Must(t, mount.UnmountAll(dir, 0)) }()
	if text, err := os.ReadFile(filepath.Join(dir, "a")); string(text) != "of a" {
		t.Errorf("the file in the mount has %q, %v", text, err)
	}
}
