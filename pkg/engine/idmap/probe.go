package idmap

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/v2/core/mount"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/namespaces"
)

// probePrefix is the name prefix of Probe's directories.
const probePrefix = "idmap-probe-"

// Probe tests whether user namespaces work here and whether overlays of layers on the filesystem of
// dir can be mapped. It takes some milliseconds. The error contains the step that failed. Only one
// probe at a time may use a directory, because it removes the files of interrupted ones.
func Probe(ctx context.Context, dir string) (err error) {
	left, err := filepath.Glob(filepath.Join(dir, probePrefix+"*"))
	if err != nil {
		return err
	}
	for _, tmp := range left {
		if err := removeProbe(tmp); err != nil {
			return err
		}
	}
	tmp, err := os.MkdirTemp(dir, probePrefix)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, removeProbe(tmp)) }()
	for _, d := range []string{"layers", "layers/a", "layers/b", "upper", "work", "merged"} {
		if err := os.Mkdir(filepath.Join(tmp, d), 0o755); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(tmp, "layers/b/file"), nil, 0o600); err != nil {
		return err
	}
	// Any range without the host's root is suitable.
	const first, size = 1 << 20, 1 << 16
	ids := specs.LinuxIDMapping{HostID: first, Size: size}
	ns, err := namespaces.Create(ctx, namespaces.Request{Dir: filepath.Join(tmp, "ns"), User: &namespaces.User{UIDs: ids, GIDs: ids}})
	if err != nil {
		return err
	}
	merged := filepath.Join(tmp, "merged")
	overlay := mount.Mount{Type: "overlay", Source: "overlay", Options: []string{
		"lowerdir=" + filepath.Join(tmp, "layers/a") + ":" + filepath.Join(tmp, "layers/b"),
		"upperdir=" + filepath.Join(tmp, "upper"), "workdir=" + filepath.Join(tmp, "work"),
	}}
	if err := Mount(ns.User, []mount.Mount{overlay}, merged, filepath.Join(tmp, "scratch")); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(merged, "file"), &st); err != nil {
		return err
	}
	if st.Uid != first || st.Gid != first {
		return fmt.Errorf("a file of user 0 shows up as user %d, want %d: the kernel does not map the IDs of overlay layers", st.Uid, first)
	}
	return nil
}

// removeProbe must unmount everything before it removes files, or it would also remove the content
// of mounts.
func removeProbe(tmp string) error {
	if err := mount.UnmountAll(filepath.Join(tmp, "merged"), unix.MNT_DETACH); err != nil {
		return err
	}
	if err := Forget(filepath.Join(tmp, "scratch")); err != nil {
		return err
	}
	if err := namespaces.Release(filepath.Join(tmp, "ns")); err != nil {
		return err
	}
	return os.RemoveAll(tmp)
}
