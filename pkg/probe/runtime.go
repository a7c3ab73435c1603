package probe

import (
	"cmp"
	"slices"
	"strings"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/opencontainers/runtime-spec/specs-go/features"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/berth-cri/berth/pkg/probe/capability"
)

// Names of the runtimes that berth recognizes in the output of `--version`. Any other runtime has
// the name "" and is judged by its features alone.
const (
	Runc  = "runc"
	Crun  = "crun"
	Youki = "youki"
	Runsc = "runsc"
)

// minimalOCIVersion is for a runtime that reports no supported version: crun before 1.8.2 refuses
// every version but 1.0.x.
const minimalOCIVersion = "1.0.2"

// Identity distinguishes binaries without reading them. Equal identities stand for the same
// program.
type Identity struct {
	Path    string    `json:"path"`
	Dev     uint64    `json:"dev"`
	Inode   uint64    `json:"inode"`
	Size    int64     `json:"size"`
	ModTime time.Time `json:"modTime"`
	// ChangeTime is the inode's: unlike ModTime, no program can set it.
	ChangeTime time.Time `json:"changeTime"`
	// Beside are the program's other files and directories, relative to the directory of the
	// executable. Companions are the files in them, sorted by name.
	Beside     []string    `json:"beside,omitempty"`
	Companions []Companion `json:"companions,omitempty"`
}

// Companion is a file that belongs to a program. Name is its path below the directory of the
// executable.
type Companion struct {
	Name     string   `json:"name"`
	Identity Identity `json:"identity"`
}

// Runtime is what a runtime binary reported about itself. All callers of the Prober share it, with
// everything that it points to: do not change it.
type Runtime struct {
	Path     string   `json:"path"`
	Identity Identity `json:"identity"`
	// Driven is the OCI runtime that a shim drives; nil for everything else.
	Driven *Identity `json:"driven,omitempty"`
	// Needs are companions that this runtime needs to run a pod.
	Needs []string `json:"needs,omitempty"`
	// SHA256 is the program's digest in hex, set only by Check for candidates.
	SHA256 string `json:"sha256,omitempty"`
	// Name is Runc, Crun, Youki, Runsc, or "" for any other.
	Name string `json:"name,omitempty"`
	// Version is the runtime's own version, as printed.
	Version string `json:"version,omitempty"`
	// ShimVersion is the version of a shim that drives this runtime, otherwise empty.
	ShimVersion string `json:"shimVersion,omitempty"`
	// ShimName is the name that a shim reports ("io.containerd.kata.v2"), otherwise empty.
	ShimName string `json:"shimName,omitempty"`
	// SpecVersion is the OCI version that `--version` printed, if any.
	SpecVersion string `json:"specVersion,omitempty"`
	// Features is the output of `features`; nil if the binary has no such command.
	Features *features.Features `json:"features,omitempty"`
	// BuildTags are the +NAME and -NAME words that crun prints with its version.
	BuildTags []string `json:"buildTags,omitempty"`
	// ShimAlone is set for a shim that drives no OCI runtime, or none that berth knows.
	ShimAlone bool `json:"shimAlone,omitempty"`
	// Wasm is set for a shim that runs WebAssembly modules in processes of the host.
	Wasm bool `json:"wasm,omitempty"`
	// WasmDeclared is set if Wasm follows from the name that the shim reports.
	WasmDeclared bool `json:"wasmDeclared,omitempty"`
}

// OCIVersion returns the ociVersion for specs of this runtime: the highest version that both the
// runtime and berth's types support, and 1.0.2 for a runtime without `features`.
func (r *Runtime) OCIVersion() string {
	if r == nil || r.Features == nil || r.Features.OCIVersionMax == "" {
		return minimalOCIVersion
	}
	highest, _, _ := strings.Cut(r.Features.OCIVersionMax, "+")
	v, err := version.ParseSemantic(highest)
	if err != nil {
		return minimalOCIVersion
	}
	if v.GreaterThan(version.MustParseSemantic(specs.Version)) {
		return specs.Version
	}
	return highest
}

// KnowsOCI reports whether the runtime supports at least the given OCI version ("1.1.0"). A
// pre-release counts as its version.
func (r *Runtime) KnowsOCI(oldest string) bool {
	return version.MustParseGeneric(r.OCIVersion()).AtLeast(version.MustParseGeneric(oldest))
}

// testedCrun is the oldest crun in berth's own tests. Releases before 1.8.6 do not report their
// features, but their user namespaces, mapped mounts and recursive read-only mounts conform to the
// specification.
const testedCrun = "1.8.1"

func (r *Runtime) testedCrun() bool {
	if r == nil || r.Features != nil || r.Name != Crun {
		return false
	}
	v, err := version.ParseGeneric(r.Version)
	return err == nil && v.AtLeast(version.MustParseGeneric(testedCrun))
}

// SupportsMountOption reports whether the runtime reports support for a mount option. A crun that
// reports no features supports "rro" if it is new enough, see testedCrun.
func (r *Runtime) SupportsMountOption(option string) bool {
	return r != nil && r.Features != nil && slices.Contains(r.Features.MountOptions, option) || option == "rro" && r.testedCrun()
}

// SupportsRecursiveReadOnly is SupportsMountOption for "rro". The kernel must support it too (5.12).
func (r *Runtime) SupportsRecursiveReadOnly() bool { return r.SupportsMountOption("rro") }

// SupportsNamespace reports whether the runtime supports a kind of namespace, by its OCI name;
// false if the kind is not reported.
func (r *Runtime) SupportsNamespace(kind specs.LinuxNamespaceType) bool {
	return slices.Contains(r.linux().Namespaces, string(kind))
}

// SupportsUserNamespaces reports whether the runtime reports support for user namespaces, or is a
// crun as in testedCrun.
func (r *Runtime) SupportsUserNamespaces() bool {
	return r.SupportsNamespace(specs.UserNamespace) || r.testedCrun()
}

// SupportsIDMap reports whether the runtime reports that it can map the ids of single mounts, or is
// a crun as in testedCrun.
func (r *Runtime) SupportsIDMap() bool {
	m := r.linux().MountExtensions
	return m != nil && m.IDMap != nil && isTrue(m.IDMap.Enabled) || r.testedCrun()
}

// SupportsNetDevices reports whether the runtime moves network devices into containers (OCI 1.3);
// false if that is not reported.
func (r *Runtime) SupportsNetDevices() bool {
	d := r.linux().NetDevices
	return d != nil && isTrue(d.Enabled)
}

// Seccomp reports whether the runtime applies seccomp profiles. A runtime that was built without
// seccomp fails on every profile, or ignores it.
func (r *Runtime) Seccomp() capability.Answer { return r.answer(r.linux().Seccomp.Enabled, "SECCOMP") }

// SystemdCgroup reports whether the runtime can let systemd manage cgroups.
func (r *Runtime) SystemdCgroup() capability.Answer {
	return r.answer(r.linux().Cgroup.Systemd, "SYSTEMD")
}

// Cgroup reports whether the runtime supports cgroup version 1 or 2. There is no build tag for it.
func (r *Runtime) Cgroup(version int) capability.Answer {
	reported := r.linux().Cgroup.V1
	if version == 2 {
		reported = r.linux().Cgroup.V2
	}
	return r.answer(reported, "")
}

// AppArmor reports whether the runtime sets AppArmor profiles.
func (r *Runtime) AppArmor() capability.Answer {
	return r.answer(r.linux().Apparmor.Enabled, "APPARMOR")
}

// SELinux reports whether the runtime sets SELinux labels.
func (r *Runtime) SELinux() capability.Answer { return r.answer(r.linux().Selinux.Enabled, "SELINUX") }

// answer returns what the runtime reports about an optional part of its build: in its features, or
// else in its build tags.
func (r *Runtime) answer(feature *bool, tag string) capability.Answer {
	switch {
	case isTrue(feature), feature == nil && r.hasTag("+"+tag):
		return capability.Yes
	case feature != nil, r.hasTag("-" + tag):
		return capability.No
	}
	return capability.Unknown
}

// MakesCheckpoints reports whether the runtime declares support for CRIU; CRIU itself may be
// missing.
func (r *Runtime) MakesCheckpoints() bool {
	if r == nil || r.Features == nil {
		return r.hasTag("+CRIU")
	}
	reported := r.Features.Annotations
	return reported["org.opencontainers.runc.checkpoint.enabled"] == "true" || reported["run.oci.crun.checkpoint.enabled"] == "true" || r.hasTag("+CRIU")
}

// crunTCPClose is the oldest crun that restores containers without their connections, which cannot
// move to another pod.
const crunTCPClose = "1.23"

// LacksRestore returns why the runtime, though built with CRIU, cannot restore containers for
// berth; "" if it can.
func (r *Runtime) LacksRestore() string {
	if r == nil || r.Name != Crun {
		return ""
	}
	if r.Driven != nil {
		return "crun refuses a flag that shims need for restores; use crun without a shim (runtime_type = \"oci\")"
	}
	if v, err := version.ParseGeneric(r.Version); err == nil && v.LessThan(version.MustParseGeneric(crunTCPClose)) {
		return "crun before " + crunTCPClose + " cannot restore containers without their connections; install a newer one"
	}
	return ""
}

// linux returns the reported Linux features; missing parts are empty.
func (r *Runtime) linux() features.Linux {
	var l features.Linux
	if r != nil && r.Features != nil && r.Features.Linux != nil {
		l = *r.Features.Linux
	}
	l.Seccomp = cmp.Or(l.Seccomp, &features.Seccomp{})
	l.Cgroup = cmp.Or(l.Cgroup, &features.Cgroup{})
	l.Apparmor = cmp.Or(l.Apparmor, &features.Apparmor{})
	l.Selinux = cmp.Or(l.Selinux, &features.Selinux{})
	return l
}

func (r *Runtime) hasTag(tag string) bool { return r != nil && slices.Contains(r.BuildTags, tag) }

func isTrue(b *bool) bool { return b != nil && *b }
