package pod

import (
	"os"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/ocispec"
	"github.com/berth-cri/berth/pkg/engine/pin"
)

// podUser is the user namespace that a pod asks for; nil is the host's.
func podUser(c *runtimeapi.PodSandboxConfig) *pin.User {
	uids, gids := ocispec.UserMappings(c)
	if len(uids) != 1 || len(gids) != 1 {
		return nil
	}
	return &pin.User{UIDs: uids[0], GIDs: gids[0]}
}

// Chown gives a file to the root of the pod. Without a user namespace that is
// who made it.
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
