package probe

import (
	"slices"
	"strings"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/opencontainers/runtime-spec/specs-go/features"
	"k8s.io/apimachinery/pkg/util/version"
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
// asked for it: treat it, and everything it points to, as read-only. Its JSON
// form is stored with sandboxes; fields may be added, never renamed.
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
	// OwnKernel is true when processes of containers are not processes of the
	// host (gVisor, VMs): the runtime then needs a first container per sandbox,
	// and host paths such as /proc/<pid>/ns are names to it, not namespaces.
	OwnKernel bool `json:"ownKernel,omitempty"`
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
	l := r.linux()
	return l != nil && slices.Contains(l.Namespaces, string(kind))
}

// SupportsUserNamespaces reports whether the runtime knows user namespaces;
// false when it does not say.
func (r *Runtime) SupportsUserNamespaces() bool {
	return r.SupportsNamespace(specs.UserNamespace) || r.provenCrun()
}

// SupportsIDMap reports whether the runtime can map the ids of single mounts;
// false when it does not say.
func (r *Runtime) SupportsIDMap() bool {
	l := r.linux()
	return l != nil && l.MountExtensions != nil && l.MountExtensions.IDMap != nil && isTrue(l.MountExtensions.IDMap.Enabled) || r.provenCrun()
}

// SupportsNetDevices reports whether the runtime moves network devices into
// containers (OCI 1.3); false when it does not say.
func (r *Runtime) SupportsNetDevices() bool {
	l := r.linux()
	return l != nil && l.NetDevices != nil && isTrue(l.NetDevices.Enabled)
}

// SupportsSeccomp reports whether the runtime says that it applies seccomp
// profiles. See LacksSeccomp for the opposite: a runtime may say neither.
func (r *Runtime) SupportsSeccomp() bool {
	if l := r.linux(); l != nil && l.Seccomp != nil {
		return isTrue(l.Seccomp.Enabled)
	}
	return r.hasTag("+SECCOMP")
}

// LacksSeccomp reports whether the runtime says that it was built without
// seccomp. Such a runtime fails on, or ignores, every profile.
func (r *Runtime) LacksSeccomp() bool {
	if l := r.linux(); l != nil && l.Seccomp != nil && l.Seccomp.Enabled != nil {
		return !*l.Seccomp.Enabled
	}
	return r.hasTag("-SECCOMP")
}

// SupportsSystemdCgroup reports whether the runtime says that it can let
// systemd manage cgroups.
func (r *Runtime) SupportsSystemdCgroup() bool {
	if l := r.linux(); l != nil && l.Cgroup != nil {
		return isTrue(l.Cgroup.Systemd)
	}
	return r.hasTag("+SYSTEMD")
}

// LacksSystemdCgroup reports whether the runtime says that it was built without that.
func (r *Runtime) LacksSystemdCgroup() bool {
	if l := r.linux(); l != nil && l.Cgroup != nil && l.Cgroup.Systemd != nil {
		return !*l.Cgroup.Systemd
	}
	return r.hasTag("-SYSTEMD")
}

// SupportsAppArmor reports whether the runtime says that it sets AppArmor profiles.
func (r *Runtime) SupportsAppArmor() bool {
	if l := r.linux(); l != nil && l.Apparmor != nil {
		return isTrue(l.Apparmor.Enabled)
	}
	return r.hasTag("+APPARMOR")
}

// LacksAppArmor reports whether the runtime says that it was built without AppArmor.
func (r *Runtime) LacksAppArmor() bool {
	if l := r.linux(); l != nil && l.Apparmor != nil && l.Apparmor.Enabled != nil {
		return !*l.Apparmor.Enabled
	}
	return r.hasTag("-APPARMOR")
}

// LacksSELinux reports whether the runtime says that it was built without SELinux.
func (r *Runtime) LacksSELinux() bool {
	if l := r.linux(); l != nil && l.Selinux != nil && l.Selinux.Enabled != nil {
		return !*l.Selinux.Enabled
	}
	return r.hasTag("-SELINUX")
}

// SupportsSELinux reports whether the runtime says that it sets SELinux labels.
func (r *Runtime) SupportsSELinux() bool {
	if l := r.linux(); l != nil && l.Selinux != nil {
		return isTrue(l.Selinux.Enabled)
	}
	return r.hasTag("+SELINUX")
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

func (r *Runtime) linux() *features.Linux {
	if r == nil || r.Features == nil {
		return nil
	}
	return r.Features.Linux
}

func (r *Runtime) hasTag(tag string) bool { return r != nil && slices.Contains(r.BuildTags, tag) }

func isTrue(b *bool) bool { return b != nil && *b }
