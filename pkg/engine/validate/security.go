package validate

import (
	"math"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func sandboxSecurity(field string, s *runtimeapi.LinuxSandboxSecurityContext) error {
	return first(
		sandboxNamespaces(field+".namespace_options", s.GetNamespaceOptions()),
		ids(field, s),
		invalidIf(s.GetRunAsGroup() != nil && s.GetRunAsUser() == nil, field+".run_as_group", "needs run_as_user; set both, or none"),
		profiles(field, s),
	)
}

func containerSecurity(field string, c *runtimeapi.LinuxContainerSecurityContext, s *runtimeapi.LinuxSandboxSecurityContext) error {
	return first(
		containerNamespaces(field+".namespace_options", c.GetNamespaceOptions(), s.GetNamespaceOptions()),
		invalidIf(c.GetPrivileged() && !s.GetPrivileged(), field+".privileged",
			"is set, but the sandbox is not privileged; create the sandbox with privileged too"),
		ids(field, c),
		user(field, c),
		capabilities(field+".capabilities", c.GetCapabilities()),
		profiles(field, c),
		each(field+".masked_paths", c.GetMaskedPaths(), requiredPath),
		each(field+".readonly_paths", c.GetReadonlyPaths(), requiredPath),
	)
}

func requiredPath(field, p string) error { return absolute(field, p, required) }

// identity is the common part of users in sandboxes and containers.
type identity interface {
	GetRunAsUser() *runtimeapi.Int64Value
	GetRunAsGroup() *runtimeapi.Int64Value
	GetSupplementalGroups() []int64
	GetSupplementalGroupsPolicy() runtimeapi.SupplementalGroupsPolicy
}

func ids(field string, i identity) error {
	return first(
		id(field+".run_as_user", i.GetRunAsUser().GetValue()),
		id(field+".run_as_group", i.GetRunAsGroup().GetValue()),
		each(field+".supplemental_groups", i.GetSupplementalGroups(), id),
		known(field+".supplemental_groups_policy", i.GetSupplementalGroupsPolicy(), runtimeapi.SupplementalGroupsPolicy_name),
	)
}

// id limits a uid or gid: runc and crun accept at most 31 bits.
func id(field string, v int64) error {
	return invalidIf(v < 0 || v > math.MaxInt32, field, "%d is not a user or group id; use 0 to %d", v, math.MaxInt32)
}

func user(field string, c *runtimeapi.LinuxContainerSecurityContext) error {
	username := c.GetRunAsUsername()
	return first(
		invalidIf(c.GetRunAsUser() != nil && username != "", field+".run_as_username", "is set beside run_as_user; set one of them"),
		invalidIf(c.GetRunAsGroup() != nil && c.GetRunAsUser() == nil && username == "", field+".run_as_group",
			"needs run_as_user or run_as_username; set one of them"),
		invalidIf(strings.ContainsAny(username, ":/"), field+".run_as_username",
			"%s is not a user name; use run_as_group for the group", quoted(username)),
		clean(field+".run_as_username", username),
	)
}

func capabilities(field string, c *runtimeapi.Capability) error {
	return first(
		each(field+".add_capabilities", c.GetAddCapabilities(), capability),
		each(field+".drop_capabilities", c.GetDropCapabilities(), capability),
		each(field+".add_ambient_capabilities", c.GetAddAmbientCapabilities(), capability),
	)
}

// capability checks the form of a name. The kernel determines which names exist.
func capability(field, s string) error {
	notWord := func(r rune) bool {
		return r != '_' && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9')
	}
	return invalidIf(s == "" || len(s) > maxQuoted || strings.ContainsFunc(s, notWord), field,
		"%s is not a capability; write it as NET_ADMIN, or ALL", quoted(s))
}

// profiled is the common part of profiles in sandboxes and containers.
type profiled interface {
	GetSeccomp() *runtimeapi.SecurityProfile
	GetApparmor() *runtimeapi.SecurityProfile
	GetSeccompProfilePath() string
}

func profiles(field string, p profiled) error {
	if err := first(seccomp(field, p), profile(field+".apparmor", p.GetApparmor(), apparmorName)); err != nil {
		return err
	}
	// Only containers have the older field; the newer one overrides it.
	old, ok := p.(interface{ GetApparmorProfile() string })
	if !ok || p.GetApparmor() != nil {
		return nil
	}
	return oldProfile(field+".apparmor_profile", old.GetApparmorProfile(), apparmorName)
}

func seccomp(field string, p profiled) error {
	if p.GetSeccomp() != nil {
		return profile(field+".seccomp", p.GetSeccomp(), requiredPath)
	}
	return oldProfile(field+".seccomp_profile_path", p.GetSeccompProfilePath(), requiredPath)
}

const localhost = "localhost/"

// profile checks a SecurityProfile; ref checks the name of a Localhost profile, which may have the
// prefix of the older notation.
func profile(field string, p *runtimeapi.SecurityProfile, ref func(field, s string) error) error {
	if err := known(field+".profile_type", p.GetProfileType(), runtimeapi.SecurityProfile_ProfileType_name); err != nil {
		return err
	}
	if p.GetProfileType() != runtimeapi.SecurityProfile_Localhost {
		return invalidIf(p.GetLocalhostRef() != "", field+".localhost_ref",
			"is set beside profile_type %s; use Localhost, or leave it out", p.GetProfileType())
	}
	return ref(field+".localhost_ref", strings.TrimPrefix(p.GetLocalhostRef(), localhost))
}

// oldProfile checks the notation that was used before SecurityProfile.
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
	return first(
		invalidIf(s == "", field, "is empty; name a profile that is loaded in the kernel"),
		atMost(field, s, maxPath),
		clean(field, s),
	)
}
