package supervisor

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/supervisor/journal"
)

// TestUnmountAfterCrun: a crun that was killed in a restore leaves the container's root filesystem
// mounted in the bundle. It must be unmounted before the bundle is removed with its content.
func TestUnmountAfterCrun(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounts need root")
	}
	bundle, rootfs := t.TempDir(), t.TempDir()
	kept := filepath.Join(rootfs, "kept")
	test.Must(t, os.WriteFile(kept, nil, 0o600))
	r := criuRestore{&task{id: "one", dir: t.TempDir(), journal: journal.Task{Bundle: bundle, Options: journal.Options{Root: t.TempDir()}}}}
	test.Mustf(t, r.unmount(), "unmount without a mount")
	at := filepath.Join(bundle, crunRoot)
	test.Must(t, os.Mkdir(at, 0o755))
	test.Must(t, unix.Mount(rootfs, at, "", unix.MS_BIND, ""))
	t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
	test.Must(t, r.unmount())
	test.Checkf(t, os.Remove(bundle), "remove the bundle, which must be empty")
	test.Check(t, test.Err(os.Stat(kept)))
}

// A restore that fails before it calls the runtime leaves no configuration of CRIU in the bundle.
func TestFailedPrepareRemovesConfig(t *testing.T) {
	bundle := t.TempDir()
	tk := &task{id: "one", dir: t.TempDir(), supervisor: &supervisor{ctx: t.Context()}, journal: journal.Task{Bundle: bundle, Checkpoint: t.TempDir()}}
	r := criuRestore{tk}
	tk.starter = r
	test.Must(t, os.MkdirAll(filepath.Join(r.files().Work, "once.conf"), 0o700)) // cannot be written
	test.ErrorIs(t, test.Err(tk.launch(t.Context())), unix.EISDIR, "launch")
	test.EqualLists(t, "files in the bundle", test.Value(os.ReadDir(bundle))(t), nil)
}
