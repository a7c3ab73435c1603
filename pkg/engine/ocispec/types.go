package ocispec

import (
	"strconv"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/probe"
)

// Node has the facts of this machine and of this process that a spec depends on, besides the
// request. DetectNode fills it once; a test sets it. Build accesses the machine only through the
// function fields.
type Node struct {
	// CgroupUnified is true on cgroup v2.
	CgroupUnified bool
	// Seccomp, AppArmor and SELinux report what the kernel enforces.
	Seccomp  bool
	AppArmor bool
	SELinux  bool
	// Capabilities are those that this process may grant, as CAP_NAMEs. Nil means all that the
	// runtime supports.
	Capabilities []string
	// MinOOMScoreAdj is the lowest oom_score_adj that this process may set: -1000 with
	// CAP_SYS_RESOURCE, else its current one.
	MinOOMScoreAdj int
	// HugetlbController and SwapController report which cgroup controllers exist. Limits without a
	// controller are ignored.
	HugetlbController bool
	SwapController    bool
	// UnprivilegedPorts and UnprivilegedICMP let pods with their own network bind ports below 1024,
	// and ping, without capabilities.
	UnprivilegedPorts bool
	UnprivilegedICMP  bool
	// Kernel is the release of the node's kernel.
	Kernel string
	// KernelRRO reports that the kernel has recursive read-only mounts (5.12).
	KernelRRO bool
	// CgroupMountOptions are the options of the host's cgroup2 file system that a mount without a
	// cgroup namespace must repeat (nsdelegate, memory_recursiveprot).
	CgroupMountOptions []string
	// Hostname is the node's, for pods that share its UTS namespace.
	Hostname string

	// HostDevices lists all devices of the node, for privileged containers.
	HostDevices func() ([]specs.LinuxDevice, error)
	// Devices lists the devices at a host path (one, or all in a directory) with their paths below
	// a container path.
	Devices func(hostPath, containerPath string) ([]specs.LinuxDevice, error)
	// ResolvePath follows symbolic links of a host path.
	ResolvePath func(path string) (string, error)
	// DefaultSeccomp returns the profile for RuntimeDefault; nil means the built-in one.
	DefaultSeccomp func() (*SeccompProfile, error)
	// ReadFile reads a Localhost seccomp profile.
	ReadFile func(path string) ([]byte, error)
	// AppArmorLoaded reports whether a profile of that name is loaded.
	AppArmorLoaded func(profile string) (bool, error)
}

// Sandbox is the part of a pod that a container's spec depends on.
type Sandbox struct {
	ID         string
	Config     *runtimeapi.PodSandboxConfig
	Definition *handler.Definition
	// ShowsResolver mounts the pod's resolv.conf in the sandbox process too. VM shims configure
	// the machine's resolver with it.
	ShowsResolver bool
	// NetNS, IPCNS and UTSNS are paths of mounted namespaces; empty if the pod uses the host's, or
	// if the process PID holds them.
	NetNS, IPCNS, UTSNS string
	// UserNS is the path of the mounted user namespace of a pod that has one.
	UserNS string
	// PID is the sandbox process in the host's PID namespace; 0 means none.
	PID int
	// Hostname is the pod's; empty means the node's.
	Hostname string
	// HostsPath, HostnamePath, ResolvConfPath and ShmPath are the sandbox's files on the host. An
	// empty path is not mounted; without ShmPath a container gets its own /dev/shm.
	HostsPath, HostnamePath, ResolvConfPath, ShmPath string
	// ProcessLabel and MountLabel are the sandbox's SELinux labels.
	ProcessLabel, MountLabel string
}

// Container is the input of a container's spec. Build only reads it and keeps no reference, but
// shares its strings.
type Container struct {
	ID      string
	Name    string
	Config  *runtimeapi.ContainerConfig
	Sandbox Sandbox
	// ImageName is the reference that the pod requested; ImageID is Image.id.
	ImageName, ImageID string
	Image              imagespec.ImageConfig
	// User is the result of ResolveUser.
	User User
	// CgroupsPath is linux.cgroupsPath in the form of the node's cgroup driver.
	CgroupsPath string
	// TargetPID is the process that has the PID namespace to join with mode TARGET.
	TargetPID int
	Runtime   *probe.Runtime
	// Base is the handler's base_runtime_spec, nil for berth's own defaults.
	Base *specs.Spec
	// ImageMounts maps the cleaned container path of each image volume to the host directory where
	// the engine mounted the image, with mapped ids for pods with a user namespace.
	ImageMounts map[string]string
	// Volumes are those that the image defines; they are writable.
	Volumes                  []DefinedVolume
	ProcessLabel, MountLabel string
	// CRIUConfig is the configuration file for CRIU when the container is checkpointed; if empty,
	// berth sets none.
	CRIUConfig string
	// OwnIPC gives the container its own IPC namespace instead of the pod's.
	OwnIPC bool
}

// DefinedVolume is a volume that the image of a container defines.
type DefinedVolume struct {
	// Path is in the container: absolute, clean, and without links.
	Path string
	// Source is the container's own directory on the host.
	Source string
}

// SandboxProcess is the input of the spec of a sandbox's own process.
type SandboxProcess struct {
	Sandbox
	// PausePath is the program inside the root filesystem.
	PausePath   string
	CgroupsPath string
	Runtime     *probe.Runtime
	// MemoryLimit is the pod's limit in bytes, which a runtime with its own kernel uses as the size
	// of its memory; 0 means the node's.
	MemoryLimit uint64
	// Base is the handler's base_runtime_spec. Only its hooks and rlimits apply: the rest is for
	// containers.
	Base *specs.Spec
}

// User is a container's user, resolved in its root filesystem.
type User struct {
	UID, GID uint32
	// AdditionalGids are sorted and include GID.
	AdditionalGids []uint32
	// Username is empty if the image has no name for UID.
	Username string
	// Home is the user's home directory in the image; empty without one.
	Home string
}

func procNS(pid int, kind string) string { return "/proc/" + strconv.Itoa(pid) + "/ns/" + kind }

func deref[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
