package ocispec

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// rootfsDir is the root filesystem's directory in a bundle.
const rootfsDir = "rootfs"

const defaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// newSpec returns the initial spec: a copy of base, or berth's defaults. Masked paths, read-only
// paths, namespaces and mapped ids never come from a base, because the CRI always sets them.
func newSpec(base *specs.Spec) (*specs.Spec, error) {
	s, err := deepCopy(base)
	if err != nil {
		return nil, fmt.Errorf("copy base_runtime_spec: %w", err)
	}
	s.Process = cmp.Or(s.Process, &specs.Process{})
	s.Linux = cmp.Or(s.Linux, &specs.Linux{})
	s.Linux.Resources = cmp.Or(s.Linux.Resources, &specs.LinuxResources{})
	if base == nil {
		s.Mounts = defaultMounts()
	}
	if len(s.Linux.Resources.Devices) == 0 {
		s.Linux.Resources.Devices = []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}
	}
	s.Root = &specs.Root{Path: rootfsDir}
	s.Linux.Namespaces = nil
	s.Linux.UIDMappings, s.Linux.GIDMappings = nil, nil
	s.Linux.MaskedPaths = nil
	s.Linux.ReadonlyPaths = nil
	s.Linux.CgroupsPath = ""
	return s, nil
}

// deepCopy copies through JSON, which can express every spec. The copy of nil is empty.
func deepCopy[T any](from *T) (*T, error) {
	b, err := json.Marshal(from)
	if err != nil {
		return nil, err
	}
	to := new(T)
	return to, json.Unmarshal(b, to)
}

// defaultMounts returns the kernel's file systems that every container has. Build adds the mounts
// of the sandbox (/dev/shm, /etc/hosts, …).
func defaultMounts() []specs.Mount {
	return []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}},
		{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
	}
}

// ParseBase reads the content of a base_runtime_spec; path is for errors. A field that OCI does not
// define is an error, because it would be ignored.
func ParseBase(path, content string) (*specs.Spec, error) {
	s := &specs.Spec{}
	d := json.NewDecoder(strings.NewReader(content))
	d.DisallowUnknownFields()
	if err := d.Decode(s); err != nil {
		return nil, unmet("base_runtime_spec %s is not an OCI spec: %s", path, err)
	}
	return s, nil
}
