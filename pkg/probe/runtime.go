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

// Names of the runtimes that berth knows by what `--version` says. Any other
// runtime has the name "" and is judged by its features alone.
const (
	Runc  = "runc"
	Crun  = "crun"
	Youki = "youki"
	Runsc = "runsc"
)

// minimalOCIVersion is written for a runtime that does not say what it
// supports: crun before 1.8.2 refuses everything that is not 1.0.x.
const minimalOCIVersion = "1.0.2"

// Identity tells one binary from another without reading it. Two equal
// identities are taken to be the same program.
type Identity struct {
	Path    string    `json:"path"`
	Dev     uint64    `json:"dev"`
	Inode   uint64    `json:"inode"`
	Size    int64     `json:"size"`
	ModTime time.Time `json:"modTime"`
	// ChangeTime is that of the inode: unlike ModTime, no program can set it.
	ChangeTime time.Time `json:"changeTime"`
	// Beside names what belongs to the program beside the executable, and Companions are
	// the files that it consists of, by name.
	Beside     []string    `json:"beside,omitempty"`
	Companions []Companion `json:"companions,omitempty"`
}

// Companion is a file that belongs to a program. Name is its path below the directory of
// the executable.
type Companion struct {
	Name     string   `json:"name"`
	Identity Identity `json:"identity"`
}

// Runtime is what a runtime binary said about itself. It is shared by all who
// asked for it: treat it, and everything it points to, as read-only.
type Runtime struct {
	Path     string   `json:"path"`
	Identity Identity `json:"identity"`
	// Driven is the OCI runtime that a shim drives; nil for all else.
	Driven *Identity `json:"driven,omitempty"`
	// Needs are companions without which this runtime runs no pod.
	Needs []string `json:"needs,omitempty"`
	// SHA256 is that of the program, in hex, for candidates as Check returns them. Else empty.
	SHA256 string `json:"sha256,omitempty"`
	// Name is Runc, Crun, Youki, Runsc, or "" for any other.
	Name string `json:"name,omitempty"`
	// Version is the runtime's own version, as printed.
	Version string `json:"version,omitempty"`
	// ShimVersion is the version of a shim that drives this runtime, else empty.
	ShimVersion string `json:"shimVersion,omitempty"`
	// ShimName is what a shim says that it is called ("io.containerd.kata.v2"), else empty.
	ShimName string `json:"shimName,omitempty"`
	// SpecVersion is the OCI version that `--version` printed, if any.
	SpecVersion string `json:"specVersion,omitempty"`
	// Features is what `features` printed; nil when the binary has no such command.
	Features *features.Features `json:"features,omitempty"`
	// BuildTags are the +NAME and -NAME words that crun prints with its version.
	BuildTags []string `json:"buildTags,omitempty"`
	// ShimAlone is true of a shim that drives no OCI runtime, or none that berth knows.
	ShimAlone bool `json:"shimAlone,omitempty"`
	// Wasm is true of a shim that runs WebAssembly modules, in processes of the host.
	Wasm bool `json:"wasm,omitempty"`
	// WasmDeclared says that the shim calls itself one of those.
	WasmDeclared bool `json:"wasmDeclared,omitempty"`
}

// OCIVersion is the ociVersion to write in specs for this runtime: the highest
// that it says it supports and that berth's own types can express, and 1.0.2
// for a runtime without `features`.
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

// KnowsOCI reports whether the runtime supports at least the given OCI version
// ("1.1.0"). Pre-releases of a version count as that version.
func (r *Runtime) KnowsOCI(oldest string) bool {
	return version.MustParseGeneric(r.OCIVersion()).AtLeast(version.MustParseGeneric(oldest))
}

// provenCrun is the oldest crun that berth's own tests run with. It cannot say
// what it can do, and neither can those up to 1.8.5; but its user namespaces,
// mapped mounts and recursive read-only mounts do what the specification says.
const provenCrun = "1.8.1"

func (r *Runtime) provenCrun() bool {
	if r == nil || r.Features != nil || r.Name != Crun {
		return false
	}
	v, err := version.ParseGeneric(r.Version)
	return err == nil && v.AtLeast(version.MustParseGeneric(provenCrun))
}

// SupportsMountOption reports whether the runtime recognises a mount option;
// false when it does not say.
func (r *Runtime) SupportsMountOption(option string) bool {
	return r != nil && r.Features != nil && slices.Contains(r.Features.MountOptions, option) || option == "rro" && r.provenCrun()
}

// SupportsRecursiveReadOnly reports whether the runtime knows the mount option
// "rro"; false when it does not say. The kernel must support it too (5.12).
func (r *Runtime) SupportsRecursiveReadOnly() bool { return r.SupportsMountOption("rro") }

// SupportsNamespace reports whether the runtime knows a kind of namespace, by
// its OCI name; false when it does not say.
func (r *Runtime) SupportsNamespace(kind specs.LinuxNamespaceType) bool {
	return slices.Contains(r.linux().Namespaces, string(kind))
}

// SupportsUserNamespaces reports whether the runtime knows user namespaces;
// false when it does not say.
func (r *Runtime) SupportsUserNamespaces() bool {
	return r.SupportsNamespace(specs.UserNamespace) || r.provenCrun()
}

// SupportsIDMap reports whether the runtime can map the ids of single mounts;
// false when it does not say.
func (r *Runtime) SupportsIDMap() bool {
	m := r.linux().MountExtensions
	return m != nil && m.IDMap != nil && isTrue(m.IDMap.Enabled) || r.provenCrun()
}

// SupportsNetDevices reports whether the runtime moves network devices into
// containers (OCI 1.3); false when it does not say.
func (r *Runtime) SupportsNetDevices() bool {
	d := r.linux().NetDevices
	return d != nil && isTrue(d.Enabled)
}

// Seccomp is whether the runtime applies seccomp profiles. One that was built without fails
// on, or ignores, every profile.
func (r *Runtime) Seccomp() capability.Answer { return r.answer(r.linux().Seccomp.Enabled, "SECCOMP") }

// SystemdCgroup is whether the runtime can let systemd manage cgroups.
func (r *Runtime) SystemdCgroup() capability.Answer {
	return r.answer(r.linux().Cgroup.Systemd, "SYSTEMD")
}

// Cgroup is whether the runtime knows cgroups of a version, 1 or 2. No build tag is about that.
func (r *Runtime) Cgroup(version int) capability.Answer {
	said := r.linux().Cgroup.V1
	if version == 2 {
		said = r.linux().Cgroup.V2
	}
	return r.answer(said, "")
}

// AppArmor is whether the runtime sets AppArmor profiles.
func (r *Runtime) AppArmor() capability.Answer {
	return r.answer(r.linux().Apparmor.Enabled, "APPARMOR")
}

// SELinux is whether the runtime sets SELinux labels.
func (r *Runtime) SELinux() capability.Answer { return r.answer(r.linux().Selinux.Enabled, "SELINUX") }

// answer is what the runtime reports of something that it may have been built with: by its
// features, or else by its build tags.
func (r *Runtime) answer(feature *bool, tag string) capability.Answer {
	switch {
	case isTrue(feature), feature == nil && r.hasTag("+"+tag):
		return capability.Yes
	case feature != nil, r.hasTag("-" + tag):
		return capability.No
	}
	return capability.Unknown
}

// MakesCheckpoints reports whether the runtime says that it was built with CRIU;
// CRIU itself may be missing all the same.
func (r *Runtime) MakesCheckpoints() bool {
	if r == nil || r.Features == nil {
		return r.hasTag("+CRIU")
	}
	said := r.Features.Annotations
	return said["org.opencontainers.runc.checkpoint.enabled"] == "true" || said["run.oci.crun.checkpoint.enabled"] == "true" || r.hasTag("+CRIU")
}

// crunClosing is the oldest crun that restores containers without their connections, which
// another pod cannot have.
const crunClosing = "1.23"

// LacksRestore returns why the runtime, though built with CRIU, restores no containers for
// berth; "" if it does.
func (r *Runtime) LacksRestore() string {
	if r == nil || r.Name != Crun {
		return ""
	}
	if r.Driven != nil {
		return "crun refuses a flag by which shims restore; use it without one (runtime_type = \"oci\")"
	}
	if v, err := version.ParseGeneric(r.Version); err == nil && v.LessThan(version.MustParseGeneric(crunClosing)) {
		return "crun before " + crunClosing + " cannot restore containers without their connections; install a newer one"
	}
	return ""
}

// linux is what the runtime reports about Linux, with empty parts for what is missing.
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
