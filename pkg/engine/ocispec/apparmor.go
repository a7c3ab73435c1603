package ocispec

import (
	"fmt"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// apparmorFor returns the profile of a container, "" for none. A profile that
// was asked for by name holds for privileged containers too; the default does not.
func apparmorFor(sc *runtimeapi.LinuxContainerSecurityContext, base string, n Node) (string, error) {
	//nolint:staticcheck // The deprecated field is all that old clients send.
	profile, err := securityProfile(sc.GetApparmor(), sc.GetApparmorProfile(), "apparmor")
	if err != nil {
		return "", err
	}
	if profile == nil && base != "" && n.AppArmor && !sc.GetPrivileged() {
		return base, nil
	}
	switch profile.GetProfileType() {
	case runtimeapi.SecurityProfile_Unconfined:
		return "", nil
	case runtimeapi.SecurityProfile_RuntimeDefault:
		if !n.AppArmor || sc.GetPrivileged() {
			return "", nil
		}
		if n.AppArmorDefault == "" {
			return "", unmet("apparmor: the default profile is not loaded; see the log of berth's startup")
		}
		return n.AppArmorDefault, nil
	case runtimeapi.SecurityProfile_Localhost:
		return loadedProfile(profile.GetLocalhostRef(), n)
	default:
		return "", invalid("apparmor profile type %d is unknown", profile.GetProfileType())
	}
}

func loadedProfile(name string, n Node) (string, error) {
	if !n.AppArmor || n.AppArmorLoaded == nil {
		return "", unmet("apparmor profile %q: this node has no AppArmor", name)
	}
	loaded, err := n.AppArmorLoaded(name)
	if err != nil {
		return "", fmt.Errorf("apparmor profile %q: %w: %w", name, err, errdefs.ErrFailedPrecondition)
	}
	if !loaded {
		return "", unmet("apparmor profile %q is not loaded on this node; load it with apparmor_parser", name)
	}
	return name, nil
}
