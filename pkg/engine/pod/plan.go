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

// Plan has the parts of a sandbox. It is decided once.
type Plan struct {
	Process bool `json:"process,omitempty"`
	// Kernel is the kind of kernel that the containers run on.
	Kernel probe.KernelKind `json:"kernel,omitempty"`
	// Net, IPC and UTS select the namespaces to create.
	Net bool `json:"net,omitempty"`
	IPC bool `json:"ipc,omitempty"`
	UTS bool `json:"uts,omitempty"`
	// User is the pod's user namespace; nil is the host's.
	User *namespaces.User `json:"user,omitempty"`
	// Hostname is empty if the pod uses the node's.
	Hostname string `json:"hostname,omitempty"`
	// Runtime is the name that the runtime reports.
	Runtime string `json:"runtime,omitempty"`
	// Version is the runtime's version.
	Version string `json:"version,omitempty"`
}

// NewPlan decides the parts of a sandbox. The rules are in the CRI's NamespaceOption; the pod has a
// UTS namespace if it has its own network.
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
		d.OwnShim() || !p.Kernel.Facts().HostProcesses // these need a sandbox process
	p.User = podUser(c)
	return p
}

// NamespaceRequest requests the namespaces of the plan, with the pod's sysctls.
func (p Plan) NamespaceRequest(dir, netPath string, sysctls map[string]string) namespaces.Request {
	r := namespaces.Request{Dir: dir, Net: p.Net, IPC: p.IPC, UTS: p.UTS, User: p.User, Hostname: p.Hostname, Sysctls: sysctls}
	if p.Net {
		r.NetPath = netPath
	}
	return r
}

// podUser is the user namespace that a pod requests; nil is the host's.
func podUser(c *runtimeapi.PodSandboxConfig) *namespaces.User {
	uids, gids := ocispec.UserMappings(c)
	if len(uids) != 1 || len(gids) != 1 {
		return nil
	}
	return &namespaces.User{UIDs: uids[0], GIDs: gids[0]}
}

// Chown makes the root of the pod the owner of a file. Without a user namespace it already is.
func (p *Plan) Chown(path string) error {
	if p.User == nil {
		return nil
	}
	uid, gid := p.Root()
	return os.Lchown(path, int(uid), int(gid))
}

// Root returns the ids on the host of the pod's root.
func (p *Plan) Root() (uid, gid uint32) {
	if p.User == nil {
		return 0, 0
	}
	return p.User.UIDs.HostID, p.User.GIDs.HostID
}

// UserNamespace is the plan's user namespace in the CRI's form; nil is the host's.
func (p *Plan) UserNamespace() *runtimeapi.UserNamespace {
	if p.User == nil {
		return nil
	}
	mapping := func(m specs.LinuxIDMapping) []*runtimeapi.IDMapping {
		return []*runtimeapi.IDMapping{{HostId: m.HostID, ContainerId: m.ContainerID, Length: m.Size}}
	}
	return &runtimeapi.UserNamespace{Uids: mapping(p.User.UIDs), Gids: mapping(p.User.GIDs)}
}

// MakePodDir creates the directory of a sandbox or a container. Users of the host have no access,
// because mounts below it may contain setuid programs and writable shared memory.
func (p *Plan) MakePodDir(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if p.User == nil {
		return nil
	}
	// The root of a pod with a user namespace has access: its runtime resolves the sources of
	// mounts as that user.
	_, gid := p.Root()
	return errors.Join(os.Lchown(dir, 0, int(gid)), os.Chmod(dir, 0o710))
}
