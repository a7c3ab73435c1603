package validate

import (
	"math"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func sandboxSecurity(field string, s *runtimeapi.LinuxSandboxSecurityContext) error {
	return first(
		func() error { return sandboxNamespaces(field+".namespace_options", s.GetNamespaceOptions()) },
		func() error { return ids(field, s) },
		func() error {
			if s.GetRunAsGroup() != nil && s.GetRunAsUser() == nil {
				return invalid(field+".run_as_group", "needs run_as_user; set both, or none")
			}
			return nil
		},
		func() error { return profiles(field, s) },
	)
}

func containerSecurity(field string, c *runtimeapi.LinuxContainerSecurityContext, s *runtimeapi.LinuxSandboxSecurityContext) error {
	return first(
		func() error {
			return containerNamespaces(field+".namespace_options", c.GetNamespaceOptions(), s.GetNamespaceOptions())
		},
		func() error {
			if c.GetPrivileged() && !s.GetPrivileged() {
				return invalid(field+".privileged", "is set, but the sandbox is not privileged; create the sandbox with privileged too")
			}
			return nil
		},
		func() error { return ids(field, c) },
		func() error { return user(field, c) },
		func() error { return capabilities(field+".capabilities", c.GetCapabilities()) },
		func() error { return profiles(field, c) },
		func() error { return each(field+".masked_paths", c.GetMaskedPaths(), requiredPath) },
		func() error { return each(field+".readonly_paths", c.GetReadonlyPaths(), requiredPath) },
	)
}

func requiredPath(field, p string) error { return absolute(field, p, required) }

// identity is what sandboxes and containers say about users alike.
type identity interface {
	GetRunAsUser() *runtimeapi.Int64Value
	GetRunAsGroup() *runtimeapi.Int64Value
	GetSupplementalGroups() []int64
	GetSupplementalGroupsPolicy() runtimeapi.SupplementalGroupsPolicy
}

func ids(field string, i identity) error {
	return first(
		func() error { return id(field+".run_as_user", i.GetRunAsUser().GetValue()) },
		func() error { return id(field+".run_as_group", i.GetRunAsGroup().GetValue()) },
		func() error { return each(field+".supplemental_groups", i.GetSupplementalGroups(), id) },
		func() error {
			return known(field+".supplemental_groups_policy", i.GetSupplementalGroupsPolicy(), runtimeapi.SupplementalGroupsPolicy_name)
		},
	)
}

// id bounds a uid or gid: runc and crun take no more than 31 bits.
func id(field string, v int64) error {
	if v < 0 || v > math.MaxInt32 {
		return invalid(field, "%d is not a user or group id; use 0 to %d", v, math.MaxInt32)
	}
	return nil
}

func user(field string, c *runtimeapi.LinuxContainerSecurityContext) error {
	username := c.GetRunAsUsername()
	switch {
	case c.GetRunAsUser() != nil && username != "":
		return invalid(field+".run_as_username", "is set beside run_as_user; set one of them")
	case c.GetRunAsGroup() != nil && c.GetRunAsUser() == nil && username == "":
		return invalid(field+".run_as_group", "needs run_as_user or run_as_username; set one of them")
	case strings.ContainsAny(username, ":/"):
		return invalid(field+".run_as_username", "%s is not a user name; use run_as_group for the group", quoted(username))
	}
	return clean(field+".run_as_username", username)
}

func capabilities(field string, c *runtimeapi.Capability) error {
	return first(
		func() error { return each(field+".add_capabilities", c.GetAddCapabilities(), capability) },
		func() error { return each(field+".drop_capabilities", c.GetDropCapabilities(), capability) },
		func() error {
			return each(field+".add_ambient_capabilities", c.GetAddAmbientCapabilities(), capability)
		},
	)
}

// capability checks the form of a name. Which ones exist depends on the kernel.
func capability(field, s string) error {
	notWord := func(r rune) bool {
		return r != '_' && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9')
	}
	if s == "" || len(s) > maxQuoted || strings.ContainsFunc(s, notWord) {
		return invalid(field, "%s is not a capability; write it as NET_ADMIN, or ALL", quoted(s))
	}
	return nil
}

// profiled is what sandboxes and containers say about profiles alike.
type profiled interface {
	GetSeccomp() *runtimeapi.SecurityProfile
	GetApparmor() *runtimeapi.SecurityProfile
	GetSeccompProfilePath() string
}

func profiles(field string, p profiled) error {
	return first(
		func() error { return seccomp(field, p) },
		func() error { return profile(field+".apparmor", p.GetApparmor(), apparmorName) },
		func() error {
			// Only containers have the older field; the newer one wins.
			old, ok := p.(interface{ GetApparmorProfile() string })
			if !ok || p.GetApparmor() != nil {
				return nil
			}
			return oldProfile(field+".apparmor_profile", old.GetApparmorProfile(), apparmorName)
		},
	)
}

func seccomp(field string, p profiled) error {
	if p.GetSeccomp() != nil {
		return profile(field+".seccomp", p.GetSeccomp(), requiredPath)
	}
	return oldProfile(field+".seccomp_profile_path", p.GetSeccompProfilePath(), requiredPath)
}

const localhost = "localhost/"

// profile checks a SecurityProfile; ref checks the name of a Localhost one,
// which may carry the prefix of the older notation.
func profile(field string, p *runtimeapi.SecurityProfile, ref func(field, s string) error) error {
	if err := known(field+".profile_type", p.GetProfileType(), runtimeapi.SecurityProfile_ProfileType_name); err != nil {
		return err
	}
	if p.GetProfileType() != runtimeapi.SecurityProfile_Localhost {
		if p.GetLocalhostRef() != "" {
			return invalid(field+".localhost_ref", "is set beside profile_type %s; use Localhost, or leave it out", p.GetProfileType())
		}
		return nil
	}
	return ref(field+".localhost_ref", strings.TrimPrefix(p.GetLocalhostRef(), localhost))
}

// oldProfile checks the notation that came before SecurityProfile.
func oldProfile(field, s string, ref func(field, s string) error) error {
	switch s {
	case "", "runtime/default", "docker/default", "unconfined":
		return nil
	}
	name, ok := strings.CutPrefix(s, localhost)
	if !ok {
		return invalid(field, "%s is not a profile; use runtime/default, unconfined or localhost/<profile>", quoted(s))
	}
	return ref(field, name)
}

func apparmorName(field, s string) error {
	if s == "" {
		return invalid(field, "is empty; name a profile that is loaded in the kernel")
	}
	if len(s) > maxPath {
		return invalid(field, "has %d bytes; use at most %d", len(s), maxPath)
	}
	return clean(field, s)
}
