package mountpoint

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
)

// place returns a directory with a file system of its own. Mounts below it propagate to
// bind mounts of the directory if propagation is MS_SHARED, and nowhere else.
func place(t *testing.T, propagation uintptr) string {
	t.Helper()
	dir := t.TempDir()
	mustMount(t, "tmpfs", dir, "tmpfs", 0)
	mustMount(t, "", dir, "", unix.MS_PRIVATE)
	mustMount(t, "", dir, "", propagation)
	t.Cleanup(func() {
		test.Check(t, Unmount(dir))
		if left := mountsBelow(t, dir); len(left) > 0 {
			t.Errorf("mounts are left: %q", left)
		}
	})
	return dir
}

func mustMount(t *testing.T, source, target, fstype string, flags uintptr) {
	t.Helper()
	test.Mustf(t, unix.Mount(source, target, fstype, flags, ""), "mount %s", target)
}

// bindOntoItself mounts a directory on itself, as iproute2 does with /run/netns.
func bindOntoItself(t *testing.T, dir string) {
	t.Helper()
	mustMount(t, dir, dir, "", unix.MS_BIND|unix.MS_REC)
	mustMount(t, "", dir, "", unix.MS_SHARED|unix.MS_REC)
}

// mountsBelow returns all mounts at or below dir, including hidden ones.
func mountsBelow(t *testing.T, dir string) []string {
	t.Helper()
	b := test.Value(os.ReadFile("/proc/self/mountinfo"))(t)
	var out []string
	for line := range strings.Lines(string(b)) {
		if at := strings.Fields(line)[4]; at == dir || strings.HasPrefix(at, dir+"/") {
			out = append(out, line)
		}
	}
	return out
}

func pinned(t *testing.T, path string) {
	t.Helper()
	test.Must(t, os.WriteFile(path, nil, 0o444))
	mustMount(t, "/proc/self/ns/uts", path, "", unix.MS_BIND)
}

func gone(t *testing.T, path string) {
	t.Helper()
	test.ErrorIs(t, test.Err(os.Lstat(path)), os.ErrNotExist, "%s is left", path)
}

var propagations = map[string]uintptr{"private": unix.MS_PRIVATE, "shared": unix.MS_SHARED}

// Remove removes a file with all mounts on it, including a mount that another mount hides.
func TestRemoveWhatIsMountedOnUnseen(t *testing.T) {
	for name, propagation := range propagations {
		for times, hide := range map[string]func(t *testing.T, top, dir string){
			"once":  func(t *testing.T, _, dir string) { bindOntoItself(t, dir) },
			"twice": func(t *testing.T, _, dir string) { bindOntoItself(t, dir); bindOntoItself(t, dir) },
			"above": func(t *testing.T, top, _ string) { bindOntoItself(t, top) },
			"elsewhere": func(t *testing.T, top, dir string) {
				other := filepath.Join(top, "other")
				test.Must(t, os.Mkdir(other, 0o755))
				mustMount(t, dir, other, "", unix.MS_BIND|unix.MS_REC)
				mustMount(t, "", other, "", unix.MS_PRIVATE|unix.MS_REC)
			},
		} {
			t.Run(name+"/"+times, func(t *testing.T) {
				top := place(t, propagation)
				dir := filepath.Join(top, "netns")
				test.Must(t, os.Mkdir(dir, 0o755))
				mine, others := filepath.Join(dir, "mine"), filepath.Join(dir, "others")
				pinned(t, mine)
				pinned(t, others)
				hide(t, top, dir)
				host, all := mountsBelow(t, "/proc"), mountsBelow(t, top)
				test.Must(t, Remove(mine))
				gone(t, mine)
				for _, left := range mountsBelow(t, top) {
					if strings.Contains(left, "/mine") {
						t.Errorf("a mount is left: %s", left)
					}
				}
				want := 0
				for _, m := range all {
					if !strings.Contains(m, "/mine") {
						want++
					}
				}
				if got := mountsBelow(t, top); len(got) != want {
					t.Errorf("%d mounts of others, %d before:\n%s", len(got), want, strings.Join(got, ""))
				}
				if now := mountsBelow(t, "/proc"); len(now) != len(host) {
					t.Errorf("mounts of the host are %q, were %q before", now, host)
				}
				test.Checkf(t, Remove(mine), "a second Remove")
				test.Check(t, Remove(others))
			})
		}
	}
}

// RemoveAll removes a directory with hidden mounts in it, but not the files mounted there.
func TestRemoveAllWhereMountsAreUnseen(t *testing.T) {
	top := place(t, unix.MS_PRIVATE)
	state, volume := filepath.Join(top, "state"), filepath.Join(top, "volume")
	rootfs := filepath.Join(state, "c", "rootfs")
	for _, dir := range []string{rootfs, volume} {
		test.Must(t, os.MkdirAll(dir, 0o755))
	}
	kept := filepath.Join(volume, "kept")
	test.Must(t, os.WriteFile(kept, []byte("data"), 0o600))
	mustMount(t, volume, rootfs, "", unix.MS_BIND)
	bindOntoItself(t, state)
	test.Must(t, Unmount(rootfs))
	if err := os.Remove(rootfs); !errors.Is(err, unix.EBUSY) {
		t.Fatalf("rootfs has no hidden mount: %v", err)
	}
	test.Must(t, RemoveAll(filepath.Join(state, "c")))
	gone(t, filepath.Join(state, "c"))
	test.Equal(t, "the mounted file", test.File(t, kept), "data")
}

// Copies of the mount in other mount namespaces do not prevent Remove, and are removed too.
func TestRemoveWhatAnotherMountNamespaceHas(t *testing.T) {
	top := place(t, unix.MS_PRIVATE)
	pin := filepath.Join(top, "pin")
	pinned(t, pin)
	holder := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c", "echo ready; exec cat; :")
	in := test.Value(holder.StdinPipe())(t)
	out := test.Value(holder.StdoutPipe())(t)
	test.Must(t, holder.Start())
	defer func() {
		_ = in.Close()
		_ = holder.Wait()
	}()
	test.Must(t, test.Err(out.Read(make([]byte, 16))))
	test.Must(t, Remove(pin))
	gone(t, pin)
	table := test.Value(os.ReadFile("/proc/" + strconv.Itoa(holder.Process.Pid) + "/mountinfo"))(t)
	if strings.Contains(string(table), pin) {
		t.Error("the other namespace still has the mount")
	}
}

// TestRemoveCovered removes a file that is a mount point, although other mounts cover
// its parent directories.
func TestRemoveCovered(t *testing.T) {
	for name, cover := range map[string]func(t *testing.T, top, dir string){
		"parent": func(t *testing.T, _, dir string) { mustMount(t, "tmpfs", dir, "tmpfs", 0) },
		"parent twice": func(t *testing.T, _, dir string) {
			mustMount(t, "tmpfs", dir, "tmpfs", 0)
			mustMount(t, "tmpfs", dir, "tmpfs", 0)
		},
		"grandparent":       func(t *testing.T, top, _ string) { mustMount(t, "tmpfs", top, "tmpfs", 0) },
		"bound onto itself": func(t *testing.T, _, dir string) { bindOntoItself(t, dir); mustMount(t, "tmpfs", dir, "tmpfs", 0) },
		"parent and grandparent": func(t *testing.T, top, dir string) {
			mustMount(t, "tmpfs", dir, "tmpfs", 0)
			mustMount(t, "tmpfs", top, "tmpfs", 0)
		},
	} {
		for kind, propagation := range map[string]uintptr{"private": unix.MS_PRIVATE, "shared": unix.MS_SHARED} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				top := place(t, propagation)
				dir := filepath.Join(top, "dir")
				for _, d := range []string{dir, filepath.Join(dir, "of-others")} {
					test.Must(t, os.MkdirAll(d, 0o755))
				}
				path, other := filepath.Join(dir, "file"), filepath.Join(dir, "other")
				for _, f := range []string{path, other} {
					test.Must(t, os.WriteFile(f, nil, 0o600))
					mustMount(t, "/proc/self/ns/uts", f, "", unix.MS_BIND)
				}
				below := test.Value(unix.Open(dir, unix.O_PATH|unix.O_CLOEXEC, 0))(t)
				defer unix.Close(below)
				cover(t, top, dir)
				before := len(mountsBelow(t, top))
				for range 2 {
					test.Must(t, RemoveCovered(path))
				}
				var st unix.Stat_t
				test.ErrorIs(t, unix.Fstatat(below, "file", &st, 0), unix.ENOENT, "the removed file")
				test.Checkf(t, unix.Fstatat(below, "other", &st, 0), "another file is gone")
				left := strings.Join(mountsBelow(t, top), "")
				if strings.Contains(left, path+" ") || !strings.Contains(left, other+" ") || strings.Count(left, "\n") >= before {
					t.Errorf("of %d mounts these are left:\n%s", before, left)
				}
			})
		}
	}
}

func TestUnmountBelow(t *testing.T) {
	dir := place(t, unix.MS_PRIVATE)
	beside := filepath.Join(dir, "ab")
	for _, name := range []string{"a/b/c", "ab"} {
		test.Must(t, os.MkdirAll(filepath.Join(dir, name), 0o700))
	}
	top := filepath.Join(dir, "a")
	mustMount(t, "tmpfs", top, "tmpfs", 0)
	test.Must(t, os.MkdirAll(filepath.Join(top, "b/c"), 0o700))
	mustMount(t, "tmpfs", filepath.Join(top, "b"), "tmpfs", 0)
	mustMount(t, "tmpfs", filepath.Join(top, "b"), "tmpfs", 0)
	mustMount(t, "tmpfs", beside, "tmpfs", 0)
	elsewhere := filepath.Join(dir, "elsewhere")
	test.Must(t, os.Symlink(dir, elsewhere))
	before := mountsBelow(t, dir)
	if err := UnmountBelow(elsewhere); err != nil || len(mountsBelow(t, dir)) != len(before) {
		t.Errorf("for the target of a link: %v, %q are left of %q", err, mountsBelow(t, dir), before)
	}
	top = filepath.Join(elsewhere, "a")
	for range 2 {
		test.Must(t, UnmountBelow(top))
		if left := mountsBelow(t, filepath.Join(dir, "a")); len(left) != 1 {
			t.Errorf("at and below the directory there are %q", left)
		}
	}
	if left := mountsBelow(t, beside); len(left) != 1 {
		t.Errorf("beside the directory there are %q", left)
	}
	test.Check(t, UnmountBelow(filepath.Join(dir, "none")))
}
