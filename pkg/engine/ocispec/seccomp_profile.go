package ocispec

import (
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// SeccompProfile is a profile from a file: in the form of OCI, or in that of Docker, Podman and
// CRI-O, which has conditions for rules.
type SeccompProfile struct {
	file string
	seccompForm
}

// seccompForm contains the fields of both forms.
type seccompForm struct {
	DefaultAction    specs.LinuxSeccompAction `json:"defaultAction"`
	DefaultErrnoRet  *uint                    `json:"defaultErrnoRet"`
	DefaultErrno     string                   `json:"defaultErrno"`
	Architectures    []specs.Arch             `json:"architectures"`
	ArchMap          []seccompArch            `json:"archMap"`
	Flags            []specs.LinuxSeccompFlag `json:"flags"`
	ListenerPath     string                   `json:"listenerPath"`
	ListenerMetadata string                   `json:"listenerMetadata"`
	Syscalls         []seccompRule            `json:"syscalls"`
}

type seccompArch struct {
	Architecture     specs.Arch   `json:"architecture"`
	SubArchitectures []specs.Arch `json:"subArchitectures"`
}

type seccompRule struct {
	Name     string                   `json:"name"` // in Docker's old form
	Names    []string                 `json:"names"`
	Action   specs.LinuxSeccompAction `json:"action"`
	ErrnoRet *uint                    `json:"errnoRet"`
	Errno    string                   `json:"errno"`
	Args     []specs.LinuxSeccompArg  `json:"args"`
	Comment  string                   `json:"comment"`
	Includes seccompFor               `json:"includes"`
	Excludes seccompFor               `json:"excludes"`
}

// seccompFor is the condition of a rule.
type seccompFor struct {
	Arches    []string `json:"arches"`
	Caps      []string `json:"caps"`
	MinKernel string   `json:"minKernel"`
}

// seccompFacts are the facts that conditions depend on.
type seccompFacts struct {
	// arch is the native architecture, as profiles name it: amd64, arm64.
	arch string
	// caps are the container's bounding set.
	caps []string
	// kernel is the release of the node's kernel.
	kernel string
}

// ParseSeccomp reads the content of a profile; file is for errors. An unknown field is an error,
// because ignoring a field could allow system calls that the profile forbids.
func ParseSeccomp(file, content string) (*SeccompProfile, error) {
	p := &SeccompProfile{file: file}
	d := json.NewDecoder(strings.NewReader(content))
	d.DisallowUnknownFields()
	if err := d.Decode(&p.seccompForm); err != nil {
		return nil, unmet("seccomp profile %s is in neither OCI nor Docker format: %s", file, err)
	}
	if d.More() {
		return nil, unmet("seccomp profile %s contains more than one JSON value", file)
	}
	// Errors in rules are found now, not when a container uses the profile.
	_, err := p.filter(seccompFacts{arch: profileArch(), kernel: "0.0"})
	if err == nil {
		err = p.check()
	}
	if err != nil {
		return nil, err
	}
	return p, nil
}

// check validates all rules, including those that do not apply on this node.
func (p *SeccompProfile) check() error {
	for i, r := range p.Syscalls {
		for _, version := range []string{r.Includes.MinKernel, r.Excludes.MinKernel} {
			if _, err := release(version); version != "" && err != nil {
				return p.wrong("syscalls[%d]: minKernel %q is not a kernel version", i, version)
			}
		}
		if _, err := p.rule(i, r); err != nil {
			return err
		}
	}
	return nil
}

func (p *SeccompProfile) wrong(format string, args ...any) error {
	return unmet("seccomp profile %s: %s", p.file, fmt.Sprintf(format, args...))
}

func (p *SeccompProfile) filter(facts seccompFacts) (*specs.LinuxSeccomp, error) {
	if !strings.HasPrefix(string(p.DefaultAction), "SCMP_ACT_") {
		return nil, p.wrong("defaultAction %q is not an SCMP_ACT_ action", p.DefaultAction)
	}
	if len(p.Architectures) > 0 && len(p.ArchMap) > 0 {
		return nil, p.wrong("has architectures and archMap; keep one of them")
	}
	ret, err := p.errno(p.DefaultErrno, p.DefaultErrnoRet)
	if err != nil {
		return nil, err
	}
	out := &specs.LinuxSeccomp{
		DefaultAction: p.DefaultAction, DefaultErrnoRet: ret, Architectures: p.Architectures, Flags: p.Flags,
		ListenerPath: p.ListenerPath, ListenerMetadata: p.ListenerMetadata,
	}
	for _, a := range p.ArchMap {
		if native[facts.arch] == a.Architecture {
			out.Architectures = append([]specs.Arch{a.Architecture}, a.SubArchitectures...)
			break
		}
	}
	for i, r := range p.Syscalls {
		applies, err := r.applies(facts)
		if err != nil {
			return nil, p.wrong("syscalls[%d]: %s", i, err)
		}
		if !applies {
			continue
		}
		s, err := p.rule(i, r)
		if err != nil {
			return nil, err
		}
		out.Syscalls = append(out.Syscalls, s)
	}
	return out, nil
}

func (p *SeccompProfile) rule(i int, r seccompRule) (specs.LinuxSyscall, error) {
	if r.Name != "" && len(r.Names) > 0 {
		return specs.LinuxSyscall{}, p.wrong("syscalls[%d] has name and names; keep one of them", i)
	}
	ret, err := p.errno(r.Errno, r.ErrnoRet)
	if err != nil {
		return specs.LinuxSyscall{}, err
	}
	names := r.Names
	if r.Name != "" {
		names = []string{r.Name}
	}
	if names == nil {
		return specs.LinuxSyscall{}, p.wrong("syscalls[%d] has no names", i)
	}
	return specs.LinuxSyscall{Names: names, Action: r.Action, ErrnoRet: ret, Args: r.Args}, nil
}

// lastErrno is higher than all error numbers.
const lastErrno = 4096

// errno returns the error number with this name or decimal value, as in Podman's profiles. Without
// a name it returns number.
func (p *SeccompProfile) errno(name string, number *uint) (*uint, error) {
	if name == "" {
		return number, nil
	}
	if n, err := strconv.ParseUint(name, 10, 32); err == nil {
		return new(uint(n)), nil
	}
	for n := range uint(lastErrno) {
		if unix.ErrnoName(unix.Errno(n)) == name {
			return new(n), nil
		}
	}
	return nil, p.wrong("errno %q is unknown", name)
}

// applies reports whether a rule applies to a container. It does not if the container has any of
// the excluded capabilities, or lacks any of the included ones.
func (r seccompRule) applies(f seccompFacts) (bool, error) {
	has := func(c string) bool { return slices.Contains(f.caps, c) }
	if slices.Contains(r.Excludes.Arches, f.arch) || slices.ContainsFunc(r.Excludes.Caps, has) {
		return false, nil
	}
	if len(r.Includes.Arches) > 0 && !slices.Contains(r.Includes.Arches, f.arch) {
		return false, nil
	}
	if slices.ContainsFunc(r.Includes.Caps, func(c string) bool { return !has(c) }) {
		return false, nil
	}
	excluded, err := atLeast(f.kernel, r.Excludes.MinKernel)
	if err != nil || excluded && r.Excludes.MinKernel != "" {
		return false, err
	}
	return atLeast(f.kernel, r.Includes.MinKernel)
}

func atLeast(kernel, version string) (bool, error) {
	if version == "" {
		return true, nil
	}
	want, err := release(version)
	if err != nil {
		return false, fmt.Errorf("minKernel %q is not a kernel version", version)
	}
	has, err := release(kernel)
	if err != nil {
		return false, fmt.Errorf("minKernel %q cannot be compared with this kernel, %q", version, kernel)
	}
	return slices.Compare(has[:], want[:]) >= 0, nil
}

// release reads the first two numbers of a kernel's release: profiles compare only these.
func release(s string) (r [2]int, err error) {
	_, err = fmt.Sscanf(s, "%d.%d", &r[0], &r[1])
	return r, err
}

// profileArch is the name of this machine's architecture in profiles.
func profileArch() string {
	if runtime.GOARCH == "386" {
		return "x86"
	}
	return runtime.GOARCH
}

// native maps names of architectures in rules to those of filters.
var native = map[string]specs.Arch{
	"x86": specs.ArchX86, "amd64": specs.ArchX86_64, "arm": specs.ArchARM, "arm64": specs.ArchAARCH64,
	"mips64": specs.ArchMIPS64, "mips64le": specs.ArchMIPSEL64, "ppc64le": specs.ArchPPC64LE, "s390x": specs.ArchS390X,
	"riscv64": specs.ArchRISCV64, "loong64": specs.ArchLOONGARCH64,
}
