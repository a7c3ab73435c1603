package idmap

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/namespaces"
)

func TestMain(m *testing.M) {
	if os.Getuid() != 0 {
		println("these tests make namespaces and mounts: run them as root")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

const host = 500_000

func userns(t *testing.T) string {
	t.Helper()
	ids := specs.LinuxIDMapping{HostID: host, Size: 65_536}
	dir := filepath.Join(t.TempDir(), "ns")
	ns := test.Value(namespaces.Create(t.Context(), namespaces.Request{Dir: dir, User: &namespaces.User{UIDs: ids, GIDs: ids}}))(t)
	t.Cleanup(func() { test.Check(t, namespaces.Release(dir)) })
	return ns.User
}

// layer creates a directory with a file of user 7.
func layer(t *testing.T, path, file string) string {
	t.Helper()
	test.Must(t, os.MkdirAll(path, 0o755))
	test.Must(t, os.WriteFile(filepath.Join(path, file), []byte(file), 0o644))
	test.Must(t, os.Chown(filepath.Join(path, file), 7, 8))
	return path
}

func mounted(t *testing.T, m mount.Mount) (target string, err error) {
	t.Helper()
	target = t.TempDir()
	scratch := filepath.Join(t.TempDir(), "scratch")
	err = Mount(userns(t), []mount.Mount{m}, target, scratch)
	t.Cleanup(func() { test.Check(t, mount.UnmountAll(target, unix.MNT_DETACH)) })
	// A mount point cannot be removed. If scratch was removed, nothing is mounted there any more.
	test.ErrorIs(t, test.Err(os.Lstat(scratch)), os.ErrNotExist, "scratch is left after Mount")
	return target, err
}

func wantOwner(t *testing.T, path string, uid, gid uint32) {
	t.Helper()
	var st unix.Stat_t
	test.Must(t, unix.Stat(path, &st))
	if st.Uid != uid || st.Gid != gid {
		t.Errorf("%s is owned by %d:%d, want %d:%d", path, st.Uid, st.Gid, uid, gid)
	}
}

func overlay(lower ...string) mount.Mount {
	return mount.Mount{Type: "overlay", Source: "overlay", Options: []string{"lowerdir=" + strings.Join(lower, ":")}}
}

func TestOverlay(t *testing.T) {
	dir := t.TempDir()
	a, b := layer(t, dir+"/1/fs", "a"), layer(t, dir+"/12/fs", "b")
	m := overlay(a, b)
	m.Options = append(m.Options, "upperdir="+layer(t, dir+"/up", "u"), "workdir="+layer(t, dir+"/work", "w"))
	target := test.Value(mounted(t, m))(t)
	for _, name := range []string{"a", "b"} {
		wantOwner(t, filepath.Join(target, name), host+7, host+8)
	}
	// The upper directory is not mapped: its files have the same owners in the overlay.
	wantOwner(t, filepath.Join(target, "u"), 7, 8)
	test.Must(t, os.Chown(filepath.Join(target, "a"), host+1, host+1))
	wantOwner(t, filepath.Join(a, "a"), 7, 8)
	wantOwner(t, dir+"/up/a", host+1, host+1)
	test.Equal(t, "the caller's options became", m.Options[0], "lowerdir="+a+":"+b)
}

func TestReadOnlyOverlay(t *testing.T) {
	dir := t.TempDir()
	target := test.Value(mounted(t, overlay(layer(t, dir+"/1", "a"), layer(t, dir+"/2", "b"))))(t)
	wantOwner(t, filepath.Join(target, "b"), host+7, host+8)
	test.Fails(t, os.WriteFile(filepath.Join(target, "w"), nil, 0o600), "the overlay is writable")
}

func TestBind(t *testing.T) {
	for _, readonly := range []bool{false, true} {
		source := layer(t, t.TempDir()+"/fs", "a")
		m := mount.Mount{Type: "bind", Source: source, Options: []string{"rbind"}}
		if readonly {
			m.Options = append(m.Options, "ro")
		}
		target := test.Value(mounted(t, m))(t)
		wantOwner(t, filepath.Join(target, "a"), host+7, host+8)
		err := os.Chown(filepath.Join(target, "a"), host+1, host+1)
		if readonly != errors.Is(err, unix.EROFS) {
			t.Errorf("read-only %v: chown returns %v", readonly, err)
		}
		if !readonly {
			wantOwner(t, filepath.Join(source, "a"), 1, 1)
		}
	}
}

func bound(t *testing.T, source, target string) error {
	t.Helper()
	err := Bind(userns(t), source, target)
	t.Cleanup(func() { test.Check(t, mount.UnmountAll(target, unix.MNT_DETACH)) })
	return err
}

func TestBindOne(t *testing.T) {
	source := layer(t, t.TempDir()+"/fs", "a")
	target := t.TempDir()
	test.Must(t, bound(t, source, target))
	wantOwner(t, filepath.Join(target, "a"), host+7, host+8)
	test.Must(t, os.Chown(filepath.Join(target, "a"), host+1, host+2))
	wantOwner(t, filepath.Join(source, "a"), 1, 2)

	file := filepath.Join(t.TempDir(), "file")
	test.Must(t, os.WriteFile(file, nil, 0o600))
	test.Must(t, bound(t, filepath.Join(source, "a"), file))
	wantOwner(t, file, host+1, host+2)
}

// The copy has the mounts below the source, including later ones. Unmounting the copy
// does not unmount anything of the source, although the source is shared.
func TestBindFollows(t *testing.T) {
	source, target := t.TempDir(), t.TempDir()
	tmpfs := func(path string) {
		test.Must(t, os.Mkdir(path, 0o755))
		test.Must(t, unix.Mount("tmpfs", path, "tmpfs", 0, ""))
		layer(t, path, "in")
	}
	test.Must(t, unix.Mount(source, source, "", unix.MS_BIND, ""))
	t.Cleanup(func() { test.Check(t, unix.Unmount(source, unix.MNT_DETACH)) })
	test.Must(t, unix.Mount("", source, "", unix.MS_SHARED, ""))
	tmpfs(filepath.Join(source, "before"))
	test.Must(t, bound(t, source, target))
	tmpfs(filepath.Join(source, "after"))
	wantOwner(t, filepath.Join(target, "before", "in"), 7, 8)
	wantOwner(t, filepath.Join(target, "after", "in"), 7, 8)
	test.Must(t, unix.Unmount(target, unix.MNT_DETACH))
	wantOwner(t, filepath.Join(source, "before", "in"), 7, 8)
	wantOwner(t, filepath.Join(source, "after", "in"), 7, 8)
}

func TestBindRefuses(t *testing.T) {
	target := t.TempDir()
	test.Is(t, bound(t, "/proc/self", target), errdefs.IsFailedPrecondition, "a filesystem without mapped ids")
	test.ErrorIs(t, bound(t, target+"/missing", target), os.ErrNotExist, "a missing source")
	test.Fails(t, Bind(target, target, target), "a directory was accepted as a user namespace")
}

func TestMountRefuses(t *testing.T) {
	plain := layer(t, t.TempDir()+"/fs", "a")
	for name, tc := range map[string]struct {
		m  mount.Mount
		is func(error) bool
	}{
		"a filesystem without mapped ids": {mount.Mount{Type: "bind", Source: "/proc/self"}, errdefs.IsFailedPrecondition},
		"an overlay without layers":       {mount.Mount{Type: "overlay", Options: []string{"upperdir=/x"}}, errdefs.IsInvalidArgument},
		"layers without a common parent":  {overlay("/usr/lib", "/var/lib"), errdefs.IsNotImplemented},
		"another type":                    {mount.Mount{Type: "tmpfs"}, errdefs.IsNotImplemented},
		"a missing layer":                 {overlay(plain, plain+"x"), func(err error) bool { return err != nil }},
	} {
		target, err := mounted(t, tc.m)
		if !tc.is(err) {
			t.Errorf("%s: %v", name, err)
		}
		if entries, _ := os.ReadDir(target); len(entries) > 0 {
			t.Errorf("%s: a mount is left", name)
		}
	}
	test.Fails(t, Mount(plain, []mount.Mount{{Type: "bind", Source: plain}}, t.TempDir(), ""), "a directory was accepted as a user namespace")
	test.Is(t, Mount(userns(t), nil, t.TempDir(), ""), errdefs.IsNotImplemented, "no mounts")
}

func TestForget(t *testing.T) {
	scratch := filepath.Join(t.TempDir(), "scratch")
	test.Must(t, Forget(scratch))
	test.Must(t, os.Mkdir(scratch, 0o700))
	test.Must(t, unix.Mount("/usr", scratch, "", unix.MS_BIND, ""))
	test.Must(t, Forget(scratch))
	test.ErrorIs(t, test.Err(os.Lstat(scratch)), os.ErrNotExist, "scratch is left after Forget")
}

func TestAncestor(t *testing.T) {
	for want, paths := range map[string][]string{
		"/a/b":   {"/a/b/c"},
		"/a":     {"/a/b/c", "/a/bc/d", "/a/b/e"},
		"/s":     {"/s/1/fs", "/s/12/fs"},
		"/":      {"/a/b", "/c/d"},
		"/a/b/c": {"/a/b/c/d", "/a/b/c/e/f"},
	} {
		test.Equal(t, fmt.Sprint(paths), ancestor(paths), want)
	}
}

func TestProbe(t *testing.T) {
	dir := t.TempDir()
	test.Must(t, Probe(t.Context(), dir))
	// An overlay cannot be a mapped layer of another overlay.
	target := test.Value(mounted(t, overlay(layer(t, dir+"/1", "a"), layer(t, dir+"/2", "b"))))(t)
	test.Fails(t, Probe(t.Context(), target), "the probe of a read-only directory succeeded")
	upper := overlay(layer(t, dir+"/3", "a"))
	upper.Options = append(upper.Options, "upperdir="+layer(t, dir+"/up", "u"), "workdir="+layer(t, dir+"/work", "w"))
	target = test.Value(mounted(t, upper))(t)
	test.Is(t, Probe(t.Context(), target), errdefs.IsFailedPrecondition, "the probe on an overlay")
	for _, d := range []string{dir, target} {
		if left, _ := filepath.Glob(d + "/*probe*"); len(left) > 0 {
			t.Errorf("left are %v", left)
		}
	}
}

// A daemon that is killed during a probe leaves mounts. The next probe removes them, but
// not the files that are mounted.
func TestProbeAfterAKill(t *testing.T) {
	dir := t.TempDir()
	precious := layer(t, t.TempDir()+"/fs", "file")
	killed := filepath.Join(dir, probePrefix+"1")
	for _, name := range []string{"merged", "scratch"} {
		test.Must(t, os.MkdirAll(filepath.Join(killed, name), 0o755))
		test.Must(t, unix.Mount(precious, filepath.Join(killed, name), "", unix.MS_BIND, ""))
	}
	ids := specs.LinuxIDMapping{HostID: host, Size: 65_536}
	test.Must(t, test.Err(namespaces.Create(t.Context(), namespaces.Request{Dir: filepath.Join(killed, "ns"), User: &namespaces.User{UIDs: ids, GIDs: ids}})))
	test.Must(t, Probe(t.Context(), dir))
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left are %v (%v)", left, err)
	}
	test.Checkf(t, test.Err(os.Stat(filepath.Join(precious, "file"))), "the mounted file is gone")
}
