package ocispec

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/sys/mountinfo"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// CheckMounts checks, on this machine, that mounts which ask for propagation
// have a source that propagates: HostToContainer needs a shared or slave
// mount, Bidirectional a shared one (CRI, MountPropagation). It costs nothing
// when no mount asks. Host paths must exist.
func CheckMounts(mounts []*runtimeapi.Mount) error {
	for _, m := range mounts {
		if m.GetPropagation() == runtimeapi.MountPropagation_PROPAGATION_PRIVATE || isImageMount(m) {
			continue
		}
		if err := checkPropagation(m); err != nil {
			return err
		}
	}
	return nil
}

func checkPropagation(m *runtimeapi.Mount) error {
	src, err := filepath.EvalSymlinks(m.GetHostPath())
	if err != nil {
		return fmt.Errorf("mount %s: host_path %q: %w: %w", m.GetContainerPath(), m.GetHostPath(), err, errdefs.ErrFailedPrecondition)
	}
	info, err := mountOf(src)
	if err != nil {
		return fmt.Errorf("mount %s: %w", m.GetContainerPath(), err)
	}
	shared, slave := false, false
	for o := range strings.FieldsSeq(info.Optional) {
		shared = shared || strings.HasPrefix(o, "shared:")
		slave = slave || strings.HasPrefix(o, "master:")
	}
	bidirectional := m.GetPropagation() == runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL
	switch {
	case shared, slave && !bidirectional:
		return nil
	case bidirectional:
		return unmet("mount %s: propagation Bidirectional needs a shared mount, and %s is on %s, which is not; run: mount --make-rshared %s", m.GetContainerPath(), src, info.Mountpoint, info.Mountpoint)
	default:
		return unmet("mount %s: propagation HostToContainer needs a shared or slave mount, and %s is on %s, which is neither; run: mount --make-rshared %s", m.GetContainerPath(), src, info.Mountpoint, info.Mountpoint)
	}
}

// mountOf returns the mount that path is on: the deepest, and of those the last.
func mountOf(path string) (*mountinfo.Info, error) {
	infos, err := mountinfo.GetMounts(mountinfo.ParentsFilter(path))
	if err != nil {
		return nil, fmt.Errorf("read the mount table: %w", err)
	}
	var best *mountinfo.Info
	for _, i := range infos {
		if best == nil || len(i.Mountpoint) >= len(best.Mountpoint) {
			best = i
		}
	}
	if best == nil {
		return nil, unmet("%s is not on a mount visible to this process", path)
	}
	return best, nil
}
