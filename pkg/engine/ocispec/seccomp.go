package ocispec

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/probe"
	"github.com/berth-cri/berth/pkg/trust"
)

const localhostPrefix = "localhost/"

// securityProfile returns the profile that a request means: the structured
// field if it is there at all (its zero value is RuntimeDefault), else the
// deprecated string, else nil.
func securityProfile(p *runtimeapi.SecurityProfile, deprecated, field string) (*runtimeapi.SecurityProfile, error) {
	if p == nil {
		switch {
		case deprecated == "":
			return nil, nil
		case deprecated == "runtime/default", deprecated == "docker/default":
			p = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
		case deprecated == "unconfined":
			p = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
		case strings.HasPrefix(deprecated, localhostPrefix):
			p = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: deprecated}
		default:
			return nil, invalid("%s profile %q: use runtime/default, unconfined or localhost/<name>", field, deprecated)
		}
	}
	isLocal := p.GetProfileType() == runtimeapi.SecurityProfile_Localhost
	ref := strings.TrimPrefix(p.GetLocalhostRef(), localhostPrefix)
	switch {
	case isLocal && ref == "":
		return nil, invalid("%s profile Localhost needs a localhost_ref", field)
	case !isLocal && ref != "":
		return nil, invalid("%s profile: localhost_ref %q is for Localhost only", field, ref)
	}
	return &runtimeapi.SecurityProfile{ProfileType: p.GetProfileType(), LocalhostRef: ref}, nil
}

// seccompOf returns the filter of a container; base is what applies when the
// request says nothing. caps is the bounding set, on which the default filter depends.
func seccompOf(p *runtimeapi.SecurityProfile, deprecated string, privileged bool, base *specs.LinuxSeccomp, caps []string, n Node, rt *probe.Runtime) (*specs.LinuxSeccomp, error) {
	if privileged {
		return nil, nil
	}
	profile, err := securityProfile(p, deprecated, "seccomp")
	if err != nil {
		return nil, err
	}
	if profile == nil {
		return base, nil
	}
	if profile.GetProfileType() == runtimeapi.SecurityProfile_Unconfined {
		return nil, nil
	}
	if !n.Seccomp {
		return nil, unmet("seccomp profile %s: this kernel has no seccomp; use Unconfined", profile.GetProfileType())
	}
	if rt.LacksSeccomp() {
		return nil, unmet("seccomp profile %s: %s was built without seccomp; use Unconfined or another handler", profile.GetProfileType(), rt.Path)
	}
	switch profile.GetProfileType() {
	case runtimeapi.SecurityProfile_RuntimeDefault:
		if n.DefaultSeccomp == nil {
			return defaultSeccomp(caps), nil
		}
		local, err := n.DefaultSeccomp()
		if err != nil {
			return nil, err
		}
		return local.filter(seccompFacts{profileArch(), caps, n.Kernel})
	case runtimeapi.SecurityProfile_Localhost:
		local, err := localSeccomp(profile.GetLocalhostRef(), n)
		if err != nil {
			return nil, err
		}
		return local.filter(seccompFacts{profileArch(), caps, n.Kernel})
	default:
		return nil, invalid("seccomp profile type %d is unknown", profile.GetProfileType())
	}
}

// asksLocalSeccomp says whether a container's filter is a profile of the node.
func asksLocalSeccomp(sc *runtimeapi.LinuxContainerSecurityContext) bool {
	if sc.GetPrivileged() {
		return false
	}
	//nolint:staticcheck // The deprecated field is all that old clients send.
	profile, err := securityProfile(sc.GetSeccomp(), sc.GetSeccompProfilePath(), "seccomp")
	return err == nil && profile.GetProfileType() == runtimeapi.SecurityProfile_Localhost
}

// localSeccomp reads a profile of the node.
func localSeccomp(file string, n Node) (*SeccompProfile, error) {
	if !path.IsAbs(file) {
		return nil, invalid("seccomp profile %q must be an absolute path", file)
	}
	if n.ReadFile == nil {
		return nil, unmet("seccomp profile %s: this node has no profiles", file)
	}
	b, err := n.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("seccomp profile: %w: %w", err, errdefs.ErrFailedPrecondition)
	}
	return ParseSeccomp(file, string(b))
}

// readProfile reads a profile of the node. It may belong to another user than root:
// operators of profiles write them under their own. Not every user may write it,
// since all pods that name it would be confined by what he says.
func readProfile(file string) ([]byte, error) { return trust.ReadFile(file, trust.Installed) }

// seccompCache has the default filter for each set of capabilities. Filters
// are large (400 names) and a node's pods have few different sets; a client
// that makes up many only empties the cache.
var seccompCache = struct {
	sync.Mutex
	filters map[string]*specs.LinuxSeccomp
}{filters: map[string]*specs.LinuxSeccomp{}}

const maxSeccompCache = 64

// defaultSeccomp returns containerd's default profile. The result is shared by
// all specs with the same capabilities: replace it, never change it.
func defaultSeccomp(caps []string) *specs.LinuxSeccomp {
	sorted := slices.Sorted(slices.Values(caps))
	key := strings.Join(sorted, ",")
	seccompCache.Lock()
	defer seccompCache.Unlock()
	if f := seccompCache.filters[key]; f != nil {
		return f
	}
	f := seccomp.DefaultProfile(&specs.Spec{Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{Bounding: sorted}}})
	if len(seccompCache.filters) >= maxSeccompCache {
		clear(seccompCache.filters)
	}
	seccompCache.filters[key] = f
	return f
}
