package mountpoint

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
)

func count(t *testing.T, path string) (times int, propagation string) {
	t.Helper()
	mounts := test.Value(mountinfo.GetMounts(nil))(t)
	for _, m := range mounts {
		if m.Mountpoint == path {
			times, propagation = times+1, m.Optional
		}
	}
	return times, propagation
}

// Mounts in a directory, made before or after Share, can still be removed by one unmount
// and one unlink each.
func TestShareCoversNothing(t *testing.T) {
	for name, propagation := range propagations {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(place(t, propagation), "netns")
			test.Must(t, os.Mkdir(dir, 0o755))
			old, later := filepath.Join(dir, "old"), filepath.Join(dir, "later")
			pinned(t, old)
			test.Must(t, Share(dir))
			if times, how := count(t, dir); times != 1 || !strings.HasPrefix(how, "shared:") {
				t.Errorf("the directory is mounted %d times, %q", times, how)
			}
			if times, _ := count(t, old); propagation == unix.MS_PRIVATE && times != 1 {
				t.Errorf("the old mount is there %d times", times)
			}
			pinned(t, later)
			// Some tools do this without a check whether the directory is a mount point already.
			bindOntoItself(t, dir)
			for _, path := range []string{old, later} {
				test.Must(t, unix.Unmount(path, 0))
				test.Checkf(t, os.Remove(path), "%s cannot be removed any more", path)
			}
			for {
				if times, _ := count(t, dir); times == 0 {
					break
				}
				test.Must(t, unix.Unmount(dir, unix.MNT_DETACH))
			}
		})
	}
}

// Daemons that start at the same time mount the directory only once.
func TestShareOnce(t *testing.T) {
	dir := filepath.Join(place(t, unix.MS_PRIVATE), "netns")
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			test.Check(t, Share(dir))
		})
	}
	all.Wait()
	if times, _ := count(t, dir); times != 1 {
		t.Errorf("the directory is mounted %d times", times)
	}
}
