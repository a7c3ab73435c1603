package ocispec

import (
	"bytes"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// apparmorFor returns the profile of a container, or "" if the container gets no profile. A
// privileged container gets a profile that is requested by name, but not a default profile.
func apparmorFor(sc *runtimeapi.LinuxContainerSecurityContext, base string, n Node) (string, error) {
	//nolint:staticcheck // The deprecated field is all that old clients send.
	profile := securityProfile(sc.GetApparmor(), sc.GetApparmorProfile())
	if profile == nil && base != "" && n.AppArmor && !sc.GetPrivileged() {
		return base, nil
	}
	switch profile.GetProfileType() {
	case runtimeapi.SecurityProfile_Unconfined:
		return "", nil
	case runtimeapi.SecurityProfile_Localhost:
		return loadedProfile(profile.GetLocalhostRef(), n)
	}
	if !n.AppArmor || sc.GetPrivileged() {
		return "", nil
	}
	return defaultAppArmorProfile, nil
}

func loadedProfile(name string, n Node) (string, error) {
	if !n.AppArmor {
		return "", unmet("apparmor profile %q: this node has no AppArmor", name)
	}
	loaded, err := n.AppArmorLoaded(name)
	if err != nil {
		return "", unmet("apparmor profile %q: %w", name, err)
	}
	if !loaded {
		return "", unmet("apparmor profile %q is not loaded on this node; load it with apparmor_parser", name)
	}
	return name, nil
}

// defaultProfile is the default profile of Docker and containerd. containerd's own generator of the
// profile needs text/template. With text/template, the linker cannot drop unused methods. So the
// profile is embedded.
//
//go:embed default.apparmor
var defaultProfile string

// loadDefaultProfile loads the default profile into the kernel, unless a profile of that name is
// loaded.
func loadDefaultProfile() error {
	if loaded, err := profileLoaded(defaultAppArmorProfile); loaded || err != nil {
		return err
	}
	_, err := os.Stat("/etc/apparmor.d/abi/3.0")
	own, _ := os.ReadFile("/proc/self/attr/current") // if unreadable, the profile omits the daemon's name
	c := exec.Command("apparmor_parser", "--replace", "--skip-cache")
	c.Stdin = strings.NewReader(profileText(err == nil, string(own)))
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("apparmor_parser: %w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

// profileText returns the default profile for a node with or without the 3.0 ABI. The default
// profile allows the daemon to signal containers. own is the profile of the daemon itself, as "name
// (mode)".
func profileText(abi bool, own string) string {
	text := strings.ReplaceAll(defaultProfile, "{name}", defaultAppArmorProfile)
	if name, _, _ := strings.Cut(strings.TrimSpace(own), " "); name != "" {
		text = strings.Replace(text, "{runc,", "{"+name+",runc,", 1)
	}
	if abi {
		text = "abi <abi/3.0>,\n" + text
	}
	return text
}
