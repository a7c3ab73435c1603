package rootfs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/mountpoint"
)

// busyDir returns the directory of a cgroup, which the kernel does not remove while a
// process is in the cgroup. The directory is busy until release is called.
func busyDir(t *testing.T) (dir string, release func()) {
	t.Helper()
	for _, top := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/pids"} {
		if _, err := os.Stat(filepath.Join(top, "cgroup.procs")); err == nil {
			dir = filepath.Join(top, "berth-residue-"+strconv.Itoa(os.Getpid()))
			break
		}
	}
	if dir == "" {
		t.Skip("no cgroup hierarchy is mounted")
	}
	test.Must(t, os.Mkdir(dir, 0o755))
	inside := exec.Command("sleep", "3600")
	test.Must(t, inside.Start())
	release = func() {
		_ = inside.Process.Kill()
		_ = inside.Wait()
	}
	t.Cleanup(func() {
		release()
		_ = os.Remove(dir)
	})
	test.Must(t, os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(inside.Process.Pid)), 0o600))
	return dir, release
}

// Erase succeeds for a busy directory, and removes it when it is not busy any more.
func TestResidueIsRemovedLater(t *testing.T) {
	dir, release := busyDir(t)
	if err := mountpoint.Remove(dir); !errors.Is(err, unix.EBUSY) {
		t.Fatalf("the directory is not busy: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r := newResidue(ctx)
	r.interval = 5 * time.Millisecond
	test.Must(t, r.Erase(dir, func() error { return mountpoint.Remove(dir) }))
	test.Must(t, test.Err(os.Stat(dir)))
	release()
	test.Retry(t, func() error {
		_, err := os.Stat(dir)
		r.mu.Lock()
		left, retrying := len(r.left), r.retrying
		r.mu.Unlock()
		if errors.Is(err, os.ErrNotExist) && left == 0 && !retrying {
			return nil
		}
		return fmt.Errorf("the directory is still there: %w, %d left, retrying: %t", err, left, retrying)
	})
}

func TestResidueFailsForOtherReasons(t *testing.T) {
	cause := errors.New("the disk is broken")
	r := newResidue(t.Context())
	if err := r.Erase("/x", func() error { return cause }); !errors.Is(err, cause) || len(r.left) > 0 {
		t.Errorf("%v, %d left", err, len(r.left))
	}
}
