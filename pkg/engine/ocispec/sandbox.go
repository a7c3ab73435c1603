package ocispec

import (
	"math"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	// sandboxUID is the user of the sandbox process, which needs no privileges.
	sandboxUID = 65535
	// sandboxOOMScoreAdj makes the kernel kill all other processes of a pod before the sandbox
	// process. The sandbox process holds namespaces of the pod. containerd uses the same value.
	sandboxOOMScoreAdj = -998
	// sandboxCPUShares is the smallest weight of cgroups.
	sandboxCPUShares = 2
)

// BuildSandboxProcess returns the spec of a sandbox's process. This process holds the sandbox's PID
// namespace, or is the pod's first container for a runtime that needs one. The root filesystem of
// the process is "rootfs" in the bundle. It contains one static binary, PausePath. The runtime adds
// mount points there.
func BuildSandboxProcess(sp SandboxProcess, n Node) (*specs.Spec, error) {
	sc := sp.Config.GetLinux().GetSecurityContext()
	s, err := sandboxSpec(sp)
	if err != nil {
		return nil, err
	}
	s.Process.User = sandboxUser(sp.Config)
	s.Process.Args = []string{sp.PausePath}
	s.Process.OOMScoreAdj = clampOOMScoreAdj(sandboxOOMScoreAdj, n)
	if s.Linux.Namespaces, err = sandboxNamespaces(sp.Sandbox); err != nil {
		return nil, err
	}
	if err := setUserNS(s, sp.Sandbox); err != nil {
		return nil, err
	}
	hostSysfs(s.Mounts, sp.Config, sp.Runtime, n)
	if !sp.Runtime.Kernel().HostProcesses {
		// With HostProcesses, berth has already set the sysctls in the pod's namespaces. Some of
		// these sysctls would be refused by runtimes.
		s.Linux.Sysctl = Sysctls(sp.Config, n)
	}
	//nolint:staticcheck // The deprecated field is all that old clients send.
	if s.Linux.Seccomp, err = seccompOf(sc.GetSeccomp(), sc.GetSeccompProfilePath(), sc.GetPrivileged(), nil, nil, n, sp.Runtime); err != nil {
		return nil, err
	}
	setLabels(s, sp.ProcessLabel, sp.MountLabel, sc.GetPrivileged(), sp.Runtime)
	setSandboxHostname(s, sp, n)
	s.Annotations = annotations(nil, sp.Definition, sp.Config, nil, sandboxAnnotations(sp.Sandbox))
	if filtersByAnnotation(s, sp.Runtime, sp.Definition) {
		s.Linux.Seccomp, s.Annotations[annotationGVisorSeccomp] = nil, "true"
	}
	return s, Fit(s, sp.Runtime)
}

// DescribeSandbox returns the spec of a sandbox without a process. The spec has the sandbox's
// hostname, annotations and paths of namespaces. Clients read this spec in the verbose status. No
// runtime uses it.
func DescribeSandbox(sb Sandbox) (*specs.Spec, error) {
	namespaces, err := sandboxNamespaces(sb)
	if err != nil {
		return nil, err
	}
	if sb.UserNS != "" {
		namespaces = append(namespaces, specs.LinuxNamespace{Type: specs.UserNamespace, Path: sb.UserNS})
	}
	namespaces = slices.DeleteFunc(namespaces, func(n specs.LinuxNamespace) bool { return n.Path == "" })
	return &specs.Spec{
		Version: specs.Version, Hostname: sb.Hostname,
		Annotations: annotations(nil, sb.Definition, sb.Config, nil, sandboxAnnotations(sb)),
		Linux:       &specs.Linux{Namespaces: namespaces},
	}, nil
}

// sandboxSpec returns the part of the spec that all sandboxes have. If the handler has a base spec,
// only its hooks and rlimits are used. All other parts of a base spec are for workloads.
func sandboxSpec(sp SandboxProcess) (*specs.Spec, error) {
	s, err := newSpec(nil)
	if err != nil {
		return nil, err
	}
	if sp.Base != nil {
		base, err := newSpec(sp.Base)
		if err != nil {
			return nil, err
		}
		s.Hooks = base.Hooks
		s.Process.Rlimits = base.Process.Rlimits
	}
	s.Root.Readonly = true
	s.Process.Cwd = "/"
	s.Process.Env = []string{defaultPath}
	s.Process.NoNewPrivileges = true
	s.Process.Capabilities = &specs.LinuxCapabilities{}
	s.Linux.CgroupsPath = sp.CgroupsPath
	s.Linux.Resources.CPU = &specs.LinuxCPU{Shares: new(uint64(sandboxCPUShares))}
	if limit := sp.MemoryLimit; limit > 0 && limit <= math.MaxInt64 {
		s.Linux.Resources.Memory = &specs.LinuxMemory{Limit: new(int64(limit))}
	}
	if sp.Config.GetLinux().GetSecurityContext().GetPrivileged() {
		writableSysfs(s.Mounts)
	}
	locked := []string{"rprivate", "ro", "nosuid", "nodev", "noexec"}
	if p := shmPath(sp.Sandbox); p != "" {
		s.Mounts = append(s.Mounts, bind(p, "/dev/shm", locked...))
	}
	if sp.ResolvConfPath != "" && sp.ShowsResolver {
		s.Mounts = append(s.Mounts, bind(sp.ResolvConfPath, "/etc/resolv.conf", locked...))
	}
	slices.SortStableFunc(s.Mounts, func(a, b specs.Mount) int { return depth(a.Destination) - depth(b.Destination) })
	return s, nil
}

// writableSysfs makes sysfs writable for pods with privileged containers. The kernel has one sysfs
// for each network namespace. The first mount of a sysfs decides whether later mounts are writable.
// This mount is the first.
func writableSysfs(mounts []specs.Mount) {
	for i := range mounts {
		if mounts[i].Type == "sysfs" {
			mounts[i].Options = writable(mounts[i].Options)
		}
	}
}

// setSandboxHostname sets the pod's hostname. A pod without a hostname has the hostname of the
// node. A runtime with its own kernel needs this hostname in the spec.
func setSandboxHostname(s *specs.Spec, sp SandboxProcess, n Node) {
	s.Hostname = sp.Hostname
	if s.Hostname == "" && !sp.Runtime.Kernel().HostProcesses {
		s.Hostname = n.Hostname
	}
}

func sandboxUser(cfg *runtimeapi.PodSandboxConfig) specs.User {
	sc := cfg.GetLinux().GetSecurityContext()
	u := specs.User{UID: sandboxUID, GID: sandboxUID}
	if uids, gids := UserMappings(cfg); len(uids) == 1 && len(gids) == 1 {
		u.UID, u.GID = min(u.UID, uids[0].Size-1), min(u.GID, gids[0].Size-1)
	}
	if v := sc.GetRunAsUser(); v != nil {
		u.UID, u.GID = uint32(v.GetValue()), uint32(sc.GetRunAsGroup().GetValue())
	}
	for _, g := range sc.GetSupplementalGroups() {
		u.AdditionalGids = append(u.AdditionalGids, uint32(g))
	}
	return u
}
