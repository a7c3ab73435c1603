package ocispec

import (
	"strings"

	"github.com/containerd/containerd/v2/contrib/seccomp"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/probe"
	"github.com/berth-cri/berth/pkg/probe/capability"
	"github.com/berth-cri/berth/pkg/trust"
)

const localhostPrefix = "localhost/"

// securityProfile returns the profile of a request: the structured field if it is set (its zero
// value is RuntimeDefault), else the deprecated string, else nil.
func securityProfile(p *runtimeapi.SecurityProfile, deprecated string) *runtimeapi.SecurityProfile {
	switch {
	case p != nil:
		return &runtimeapi.SecurityProfile{ProfileType: p.GetProfileType(), LocalhostRef: strings.TrimPrefix(p.GetLocalhostRef(), localhostPrefix)}
	case deprecated == "":
		return nil
	case deprecated == "unconfined":
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
	}
	if ref, ok := strings.CutPrefix(deprecated, localhostPrefix); ok {
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: ref}
	}
	return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
}

// seccompOf returns the filter of a container; base applies if the request has none. The default
// filter depends on caps, the bounding set.
func seccompOf(p *runtimeapi.SecurityProfile, deprecated string, privileged bool, base *specs.LinuxSeccomp, caps []string, n Node, rt *probe.Runtime) (*specs.LinuxSeccomp, error) {
	if privileged {
		return nil, nil
	}
	profile := securityProfile(p, deprecated)
	if profile == nil {
		return base, nil
	}
	if profile.GetProfileType() == runtimeapi.SecurityProfile_Unconfined {
		return nil, nil
	}
	if !n.Seccomp {
		return nil, unmet("seccomp profile %s: this kernel has no seccomp; use Unconfined", profile.GetProfileType())
	}
	if rt.Seccomp() == capability.No {
		return nil, unmet("seccomp profile %s: %s was built without seccomp; use Unconfined or another handler", profile.GetProfileType(), rt.Path)
	}
	read := n.DefaultSeccomp
	if profile.GetProfileType() == runtimeapi.SecurityProfile_Localhost {
		read = func() (*SeccompProfile, error) { return localSeccomp(profile.GetLocalhostRef(), n) }
	}
	if read == nil {
		return defaultSeccomp(caps), nil
	}
	local, err := read()
	if err != nil {
		return nil, err
	}
	return local.filter(seccompFacts{profileArch(), caps, n.Kernel})
}

// asksLocalSeccomp reports whether a container requests a profile file of the node (Localhost).
func asksLocalSeccomp(sc *runtimeapi.LinuxContainerSecurityContext) bool {
	if sc.GetPrivileged() {
		return false
	}
	//nolint:staticcheck // The deprecated field is all that old clients send.
	return securityProfile(sc.GetSeccomp(), sc.GetSeccompProfilePath()).GetProfileType() == runtimeapi.SecurityProfile_Localhost
}

func localSeccomp(file string, n Node) (*SeccompProfile, error) {
	b, err := n.ReadFile(file)
	if err != nil {
		return nil, unmet("seccomp profile: %w", err)
	}
	return ParseSeccomp(file, string(b))
}

// readProfile reads a profile of the node. The file may belong to a user other than root, because
// programs that install profiles run as their own users. It must not be writable by every user,
// because it confines all pods that name it.
func readProfile(file string) ([]byte, error) { return trust.ReadFile(file, trust.Installed) }

// defaultSeccomp returns containerd's default profile.
func defaultSeccomp(caps []string) *specs.LinuxSeccomp {
	return seccomp.DefaultProfile(&specs.Spec{Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{Bounding: caps}}})
}
