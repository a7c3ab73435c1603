package pod

import (
	"errors"
	"io/fs"
	"os"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/namespaces"
	"github.com/berth-cri/berth/pkg/engine/ocispec"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/probe"
)

// Plan is what a sandbox will consist of. It is decided once.
type Plan struct {
	Process bool `json:"process,omitempty"`
	// Kernel is the kind of kernel that the containers run on.
	Kernel probe.KernelKind `json:"kernel,omitempty"`
	// Net, IPC and UTS say which namespaces are made.
	Net bool `json:"net,omitempty"`
	IPC bool `json:"ipc,omitempty"`
	UTS bool `json:"uts,omitempty"`
	// User is the pod's user namespace; nil is the host's.
	User *namespaces.User `json:"user,omitempty"`
	// Hostname is empty where the pod has the node's.
	Hostname string `json:"hostname,omitempty"`
	// Runtime is the name that the runtime gives itself.
	Runtime string `json:"runtime,omitempty"`
	// Version is the runtime's.
	Version string `json:"version,omitempty"`
}

// NewPlan decides what a sandbox consists of. Rules: CRI proto
// (NamespaceOption); a container's UTS namespace follows the network's.
func NewPlan(c *runtimeapi.PodSandboxConfig, d *handler.Definition, rt *probe.Runtime) Plan {
	opts := c.GetLinux().GetSecurityContext().GetNamespaceOptions()
	p := Plan{
		Kernel:  rt.KernelKind(),
		Net:     opts.GetNetwork() != runtimeapi.NamespaceMode_NODE,
		IPC:     opts.GetIpc() != runtimeapi.NamespaceMode_NODE,
		Runtime: rt.Name,
		Version: rt.Version,
	}
	p.UTS = p.Net
	if p.Net {
		p.Hostname = c.GetHostname()
	}
	p.Process = d.SandboxProcess == handler.SandboxProcessAlways || opts.GetPid() == runtimeapi.NamespaceMode_POD ||
		d.OwnShim() || !rt.Kernel().HostProcesses // which need a first container
	p.User = podUser(c)
	return p
}

// NamespaceRequest asks for the namespaces of the plan with the pod's sysctls in them.
func (p Plan) NamespaceRequest(dir, netPath string, sysctls map[string]string) namespaces.Request {
	r := namespaces.Request{Dir: dir, Net: p.Net, IPC: p.IPC, UTS: p.UTS, User: p.User, Hostname: p.Hostname, Sysctls: sysctls}
	if p.Net {
		r.NetPath = netPath
	}
	return r
}

// podUser is the user namespace that a pod asks for; nil is the host's.
func podUser(c *runtimeapi.PodSandboxConfig) *namespaces.User {
	uids, gids := ocispec.UserMappings(c)
	if len(uids) != 1 || len(gids) != 1 {
		return nil
	}
	return &namespaces.User{UIDs: uids[0], GIDs: gids[0]}
}

// Chown gives a file to the root of the pod. Without a user namespace that is its
// owner already.
func (p *Plan) Chown(path string) error {
	if p.User == nil {
		return nil
	}
	uid, gid := p.Root()
	return os.Lchown(path, int(uid), int(gid))
}

// Root is what root of the pod is on the host.
func (p *Plan) Root() (uid, gid uint32) {
	if p.User == nil {
		return 0, 0
	}
	return p.User.UIDs.HostID, p.User.GIDs.HostID
}

// UserNamespace is that of the plan in the words of the CRI; nil is the host's.
func (p *Plan) UserNamespace() *runtimeapi.UserNamespace {
	if p.User == nil {
		return nil
	}
	mapping := func(m specs.LinuxIDMapping) []*runtimeapi.IDMapping {
		return []*runtimeapi.IDMapping{{HostId: m.HostID, ContainerId: m.ContainerID, Length: m.Size}}
	}
	return &runtimeapi.UserNamespace{Uids: mapping(p.User.UIDs), Gids: mapping(p.User.GIDs)}
}

// MakePodDir makes the directory of a sandbox or a container. What is mounted
// below it may hold setuid programs, which no user of the host may run, and
// shared memory, which none may write.
func (p *Plan) MakePodDir(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if p.User == nil {
		return nil
	}
	// The root of a pod that has users of its own gets in: its runtime looks for what it
	// mounts as that one.
	_, gid := p.Root()
	return errors.Join(os.Lchown(dir, 0, int(gid)), os.Chmod(dir, 0o710))
}
