package ocispec

import (
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	crierrors "k8s.io/cri-api/pkg/errors"

	"github.com/berth-cri/berth/pkg/engine/mountpoint"
	"github.com/berth-cri/berth/pkg/probe"
)

// HostPathsToCreate lists the host paths of a container's mounts, in order and without repetition.
// The engine creates missing ones as directories, as containerd and CRI-O do; the CRI does not
// define what happens to them.
func HostPathsToCreate(cfg *runtimeapi.ContainerConfig) []string {
	var paths []string
	for _, m := range cfg.GetMounts() {
		if m.GetHostPath() != "" && !isImageMount(m) {
			paths = append(paths, m.GetHostPath())
		}
	}
	return union(nil, paths)
}

func isImageMount(m *runtimeapi.Mount) bool { return m.GetImage().GetImage() != "" }

// containerPath returns a clean absolute path; a relative path is relative to the root.
func containerPath(p string) string { return path.Join("/", p) }

// setMounts adds the mounts to s: the default file systems, the sandbox's files, the requested
// ones, and the volumes of the image. A requested mount overrides all others at its path, and
// default file systems below it; a volume is omitted below any other mount. Parents come before
// children.
func setMounts(s *specs.Spec, c Container, n Node) error {
	sc := c.Config.GetLinux().GetSecurityContext()
	requested := make(map[string]bool, len(c.Config.GetMounts()))
	for _, m := range c.Config.GetMounts() {
		requested[containerPath(m.GetContainerPath())] = true
	}
	var files []specs.Mount
	for _, m := range sandboxFiles(c.Sandbox, sc.GetReadonlyRootfs()) {
		if !requested[m.Destination] {
			files = append(files, m)
			requested[m.Destination] = true
		}
	}

	hostSysfs(s.Mounts, c.Sandbox.Config, c.Runtime, n)
	var out, volumes []specs.Mount
	for _, m := range append(s.Mounts, cgroupMount(c, n)) {
		m.Destination = containerPath(m.Destination)
		// A base spec made by `ctr oci spec` has a tmpfs on /run that would hide the image's files.
		if m.Destination == "/run" || covered(requested, m.Destination) {
			continue
		}
		if sc.GetPrivileged() && slices.Contains(kernelFilesystems, m.Type) {
			m.Options = writable(m.Options)
		}
		out = append(out, m)
	}
	out = append(out, files...)
	for _, m := range c.Config.GetMounts() {
		om, err := requestedMount(s, m, c, n)
		if err != nil {
			return err
		}
		out = append(out, om)
	}
	for _, v := range c.Volumes {
		// Mounts of the base spec, the pod and the request override the volume.
		if !slices.ContainsFunc(out, func(m specs.Mount) bool { return below(v.Path, m.Destination) }) {
			volumes = append(volumes, bind(v.Source, v.Path, "rprivate", "rw"))
		}
	}
	out = append(out, volumes...)
	slices.SortStableFunc(out, func(a, b specs.Mount) int { return depth(a.Destination) - depth(b.Destination) })
	s.Mounts = out
	return nil
}

// covered reports whether a mount is requested at dst or above it: a default file system at dst
// would hide that mount, or be hidden by it.
func covered(requested map[string]bool, dst string) bool {
	for p := dst; p != "/"; p = path.Dir(p) {
		if requested[p] {
			return true
		}
	}
	return false
}

func depth(p string) int {
	if p == "/" {
		return 0
	}
	return strings.Count(p, "/")
}

func cgroupMount(c Container, n Node) specs.Mount {
	options := []string{"nosuid", "noexec", "nodev", "relatime", "ro"}
	if n.CgroupUnified && c.Config.GetLinux().GetSecurityContext().GetPrivileged() {
		// Without a cgroup namespace this mount shares the host's superblock, and would remove
		// these options for the whole node.
		options = append(options, n.CgroupMountOptions...)
	}
	return specs.Mount{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: options}
}

// kernelFilesystems are writable in a privileged container.
var kernelFilesystems = []string{"proc", "sysfs", "cgroup", "cgroup2"}

func writable(options []string) []string {
	out := slices.Clone(options)
	for i, o := range out {
		if o == "ro" {
			out[i] = "rw"
		}
	}
	return out
}

// sandboxFiles returns the mounts of the files that a pod's containers share.
func sandboxFiles(sb Sandbox, readonly bool) []specs.Mount {
	access := "rw"
	if readonly {
		access = "ro"
	}
	var out []specs.Mount
	for _, f := range []struct{ dst, src, access string }{
		{"/etc/hostname", sb.HostnamePath, access},
		{"/etc/hosts", sb.HostsPath, access},
		{"/etc/resolv.conf", sb.ResolvConfPath, access},
		{"/dev/shm", shmPath(sb), "rw"},
	} {
		if f.src != "" {
			out = append(out, bind(f.src, f.dst, "rprivate", f.access))
		}
	}
	if shmPath(sb) == "" {
		out = append(out, specs.Mount{Destination: "/dev/shm", Type: "tmpfs", Source: "shm",
			Options: []string{"nosuid", "noexec", "nodev", "mode=1777", "size=65536k"}})
	}
	return out
}

func shmPath(sb Sandbox) string {
	if namespaceOptions(sb.Config).GetIpc() == runtimeapi.NamespaceMode_NODE {
		return "/dev/shm"
	}
	return sb.ShmPath
}

func bind(src, dst string, options ...string) specs.Mount {
	return specs.Mount{Source: src, Destination: dst, Type: "bind", Options: append([]string{"rbind"}, options...)}
}

// requestedMount converts one mount of the request, and widens the propagation of the root file
// system if the mount needs it.
func requestedMount(s *specs.Spec, m *runtimeapi.Mount, c Container, n Node) (specs.Mount, error) {
	dst := containerPath(m.GetContainerPath())
	src, err := mountSource(m, dst, c, n)
	if err != nil {
		return specs.Mount{}, err
	}
	propagation, err := mountPropagation(s, m, dst, c.Runtime)
	if err != nil {
		return specs.Mount{}, err
	}
	access, err := mountAccess(m, dst, c.Runtime, n)
	if err != nil {
		return specs.Mount{}, err
	}
	out := bind(src, dst, propagation, access)
	out.Options = union(out.Options, m.GetMountOptions())
	if !isImageMount(m) { // the layers of an image are mapped when it is mounted
		out.UIDMappings = idMappings(m.GetUidMappings())
		out.GIDMappings = idMappings(m.GetGidMappings())
	}
	return out, nil
}

func mountSource(m *runtimeapi.Mount, dst string, c Container, n Node) (string, error) {
	if isImageMount(m) {
		src := c.ImageMounts[dst]
		if src == "" {
			return "", fmt.Errorf("%w: %w", crierrors.ErrImageVolumeMountFailed, unmet("mount %s: image %q is not mounted", dst, m.GetImage().GetImage()))
		}
		return src, nil
	}
	src := m.GetHostPath()
	resolved, err := n.ResolvePath(src)
	if err != nil {
		return "", unmet("mount %s: host_path %q: %w", dst, src, err)
	}
	return resolved, nil
}

// mountPropagation returns the propagation of a mount as an option. It widens the propagation of
// the root file system if the mount needs it, and never narrows it.
func mountPropagation(s *specs.Spec, m *runtimeapi.Mount, dst string, rt *probe.Runtime) (string, error) {
	switch m.GetPropagation() {
	case runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER:
		if s.Linux.RootfsPropagation != "rshared" {
			s.Linux.RootfsPropagation = "rslave"
		}
		return "rslave", nil
	case runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL:
		if !rt.Kernel().HostProcesses {
			return "", unmet("mount %s: propagation Bidirectional needs the host's kernel, but %s runs its own; use HostToContainer or None", dst, rt.Path)
		}
		s.Linux.RootfsPropagation = "rshared"
		return "rshared", nil
	}
	return "rprivate", nil
}

func mountAccess(m *runtimeapi.Mount, dst string, rt *probe.Runtime, n Node) (string, error) {
	if !m.GetRecursiveReadOnly() {
		if m.GetReadonly() {
			return "ro", nil
		}
		return "rw", nil
	}
	switch {
	case !n.KernelRRO:
		return "", fmt.Errorf("%w: %w", crierrors.ErrRROUnsupported, unmet("mount %s: recursive read-only mounts need Linux 5.12", dst))
	case !rt.SupportsRecursiveReadOnly():
		return "", fmt.Errorf("%w: %w", crierrors.ErrRROUnsupported, unmet("mount %s: the runtime does not report support for recursive read-only mounts (mount option rro)", dst))
	}
	return "rro", nil
}

// CheckMounts checks, on this machine, that mounts with propagation have a source that propagates:
// HostToContainer needs a shared or slave mount, Bidirectional a shared one (CRI,
// MountPropagation). The sources of these mounts must exist.
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
		return unmet("mount %s: host_path %q: %w", m.GetContainerPath(), m.GetHostPath(), err)
	}
	info, err := mountpoint.Of(src)
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
