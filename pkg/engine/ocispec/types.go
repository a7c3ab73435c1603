package ocispec

import (
	"strconv"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/probe"
)

// Node is what a spec depends on besides the request: facts of this machine and
// of this process. DetectNode fills it once; a test writes it down. The function
// fields are the only ways in which Build looks at the machine.
type Node struct {
	// CgroupUnified is true on cgroup v2.
	CgroupUnified bool
	// Seccomp, AppArmor and SELinux say what the kernel enforces.
	Seccomp  bool
	AppArmor bool
	SELinux  bool
	// AppArmorDefault is the loaded profile that containers get by default,
	// empty when there is none.
	AppArmorDefault string
	// Capabilities are those that this process may give away, as CAP_NAMEs.
	// Nil means all that the runtime knows.
	Capabilities []string
	// MinOOMScoreAdj is the lowest oom_score_adj that this process may set:
	// -1000 with CAP_SYS_RESOURCE, else its own.
	MinOOMScoreAdj int
	// HugetlbController and SwapController say which cgroup controllers exist. Limits of
	// one that does not are ignored.
	HugetlbController bool
	SwapController    bool
	// UnprivilegedPorts and UnprivilegedICMP let pods with a network of their
	// own bind ports below 1024, and ping, without capabilities.
	UnprivilegedPorts bool
	UnprivilegedICMP  bool
	// Kernel is the release of the node's kernel.
	Kernel string
	// KernelRRO says that the kernel has recursive read-only mounts (5.12).
	KernelRRO bool
	// CgroupMountOptions are those of the host's cgroup2 file system that a mount
	// without a cgroup namespace must repeat (nsdelegate, memory_recursiveprot).
	CgroupMountOptions []string
	// Hostname is the node's, for pods that share its UTS namespace.
	Hostname string

	// HostDevices lists all devices of the node, for privileged containers.
	HostDevices func() ([]specs.LinuxDevice, error)
	// Devices lists the devices at a host path (one, or all of a directory) as
	// they shall appear at a container path.
	Devices func(hostPath, containerPath string) ([]specs.LinuxDevice, error)
	// ResolvePath follows symbolic links of a host path.
	ResolvePath func(path string) (string, error)
	// DefaultSeccomp returns the profile that RuntimeDefault means; nil is the
	// built-in one.
	DefaultSeccomp func() (*SeccompProfile, error)
	// ReadFile reads a Localhost seccomp profile.
	ReadFile func(path string) ([]byte, error)
	// AppArmorLoaded reports whether a profile of that name is loaded.
	AppArmorLoaded func(profile string) (bool, error)
}

// Sandbox is what a container's spec needs to know about its pod.
type Sandbox struct {
	ID         string
	Config     *runtimeapi.PodSandboxConfig
	Definition *handler.Definition
	// ShowsResolver: the sandbox process has the pod's resolv.conf, too. VM shims
	// configure the guest's resolver by it.
	ShowsResolver bool
	// NetNS, IPCNS and UTSNS are paths of mounted namespaces; empty where the
	// pod uses the host's, or where PID holds them.
	NetNS, IPCNS, UTSNS string
	// UserNS is the path of the mounted user namespace of a pod that has one.
	UserNS string
	// PID is the sandbox process in the host's PID namespace; 0 means none.
	PID int
	// Hostname is the pod's; empty means the node's.
	Hostname string
	// HostsPath, HostnamePath, ResolvConfPath and ShmPath are the sandbox's
	// files on the host. An empty one is not mounted; without ShmPath a
	// container gets a /dev/shm of its own.
	HostsPath, HostnamePath, ResolvConfPath, ShmPath string
	// ProcessLabel and MountLabel are the sandbox's SELinux labels.
	ProcessLabel, MountLabel string
}

// Container is everything that a container's spec is made of. Build reads it
// and keeps nothing of it, except that strings are shared.
type Container struct {
	ID      string
	Name    string
	Config  *runtimeapi.ContainerConfig
	Sandbox Sandbox
	// ImageName is the reference that the pod asked for; ImageID is Image.id.
	ImageName, ImageID string
	Image              imagespec.ImageConfig
	// User is what ResolveUser found.
	User User
	// CgroupsPath is linux.cgroupsPath in the form of the node's cgroup driver.
	CgroupsPath string
	// TargetPID is the process whose PID namespace is joined with mode TARGET.
	TargetPID int
	Runtime   *probe.Runtime
	// Base is the handler's base_runtime_spec, nil for berth's own defaults.
	Base *specs.Spec
	// ImageMounts has, for each image volume, the cleaned container path and
	// the host directory at which the engine mounted the image, in pods with a
	// user namespace with the ids of that.
	ImageMounts map[string]string
	// Volumes are those that the image defines; the container may write to them.
	Volumes                  []DefinedVolume
	ProcessLabel, MountLabel string
	// CRIUConfig is the file that CRIU shall read when the container is
	// checkpointed; empty is none of berth's.
	CRIUConfig string
	// OwnIPC says that the container gets an IPC namespace of its own where it would join
	// the pod's.
	OwnIPC bool
}

// DefinedVolume is a volume that a container has because its image asks for it.
type DefinedVolume struct {
	// Path is where it is in the container: absolute, clean, and without links.
	Path string
	// Source is the container's own directory on the host.
	Source string
}

// SandboxProcess is everything that the spec of a sandbox's own process is made of.
type SandboxProcess struct {
	Sandbox
	// PausePath is the program inside the root filesystem.
	PausePath   string
	CgroupsPath string
	Runtime     *probe.Runtime
	// MemoryLimit is what the pod may use, in bytes, which a runtime with a kernel of
	// its own takes for the size of its memory; 0 is what the node has.
	MemoryLimit uint64
	// Base is the handler's base_runtime_spec. Only its hooks and rlimits are
	// taken: the rest is meant for containers.
	Base *specs.Spec
}

// User is a container's user, resolved in its root filesystem.
type User struct {
	UID, GID uint32
	// AdditionalGids are sorted and include GID.
	AdditionalGids []uint32
	// Username is empty when the image has no name for UID.
	Username string
	// Home is the user's home directory as the image says, empty when it does not.
	Home string
}

func procNS(pid int, kind string) string { return "/proc/" + strconv.Itoa(pid) + "/ns/" + kind }

func deref[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
