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

	"github.com/berth-cri/berth/pkg/engine/pin"
)

// Probe finds out, by doing it, whether user namespaces work here and whether
// overlays of layers on the filesystem of dir can be mapped. It takes some
// milliseconds. The error says what does not work.
func Probe(ctx context.Context, dir string) (err error) {
	tmp, err := os.MkdirTemp(dir, "probe-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	for _, d := range []string{"layers", "layers/a", "layers/b", "upper", "work", "merged"} {
		if err := os.Mkdir(filepath.Join(tmp, d), 0o755); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(tmp, "layers/b/file"), nil, 0o600); err != nil {
		return err
	}
	// Any range that does not hold the host's root will do.
	const first, size = 1 << 20, 1 << 16
	ids := specs.LinuxIDMapping{HostID: first, Size: size}
	names := filepath.Join(tmp, "ns")
	ns, err := pin.Create(ctx, pin.Request{Dir: names, User: &pin.User{UIDs: ids, GIDs: ids}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pin.Release(names)) }()
	merged := filepath.Join(tmp, "merged")
	overlay := mount.Mount{Type: "overlay", Source: "overlay", Options: []string{
		"lowerdir=" + filepath.Join(tmp, "layers/a") + ":" + filepath.Join(tmp, "layers/b"),
		"upperdir=" + filepath.Join(tmp, "upper"), "workdir=" + filepath.Join(tmp, "work"),
	}}
	if err := Mount(ns.User, []mount.Mount{overlay}, merged, filepath.Join(tmp, "scratch")); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, mount.UnmountAll(merged, unix.MNT_DETACH)) }()
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(merged, "file"), &st); err != nil {
		return err
	}
	if st.Uid != first || st.Gid != first {
		return fmt.Errorf("a file of user 0 shows up as user %d, want %d: the kernel does not map the ids of overlay layers", st.Uid, first)
	}
	return nil
}
