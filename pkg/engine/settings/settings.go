// Package settings has the daemon's start configuration, and the part of it that each pod keeps.
package settings

import (
	"cmp"
	"fmt"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-cri/berth/pkg/engine/cgroup"
	"github.com/berth-cri/berth/pkg/engine/ocispec"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/handler"
)

// Settings are the daemon's start configuration. They apply to new sandboxes, and to old sandboxes
// where their records have no value. They are constant, except for the results of functions.
type Settings struct {
	Config
	Node   ocispec.Node
	Driver cgroup.Driver
}

// New detects the node's properties.
func New(c Config) (*Settings, error) {
	driver, err := cgroup.Detect(c.CgroupDriver)
	if err != nil {
		return nil, err
	}
	node, err := ocispec.DetectNode()
	if err != nil {
		return nil, err
	}
	node.UnprivilegedPorts, node.UnprivilegedICMP = c.UnprivilegedPorts, c.UnprivilegedICMP
	return &Settings{Config: c, Node: node, Driver: driver}, nil
}

// Pin returns the configuration that a new sandbox of that handler keeps. It rejects unusable files
// before anything of the sandbox is created.
func (t *Settings) Pin(d *handler.Definition) (pod.Pinned, error) {
	p := t.Current(d)
	var err error
	if p.BaseSpec, err = pod.ReadText(d.BaseRuntimeSpec); err != nil {
		return p, fmt.Errorf("base_runtime_spec of handler %q: %w", d.Name, err)
	}
	if p.DefaultSeccomp, err = pod.ReadText(t.DefaultSeccomp); err != nil {
		return p, fmt.Errorf("default_seccomp_profile: %w", err)
	}
	s := &pod.SandboxSpec{Definition: d, Pinned: p}
	if _, err := t.BaseSpec(s); err != nil {
		return p, err
	}
	_, err = t.defaultSeccomp(s)
	return p, err
}

// Current returns the part of Pin that needs no file.
func (t *Settings) Current(d *handler.Definition) pod.Pinned {
	p := pod.Pinned{
		CgroupDriver: t.Driver, CgroupPrefix: cgroup.DefaultPrefix, Snapshotter: cmp.Or(d.Snapshotter, t.Snapshotter),
		MaxLogLineSize: t.MaxLogLineSize, ImageVolumes: !t.IgnoreImageVolumes,
	}
	if t.CgroupPrefix != nil {
		p.CgroupPrefix = t.CgroupPrefix()
	}
	return p
}

// NodeOf is the node with the settings pinned by s.
func (t *Settings) NodeOf(s *pod.SandboxSpec) ocispec.Node {
	n, p := t.Node, &s.Pinned
	if p.DefaultSeccomp != (pod.Text{}) {
		n.DefaultSeccomp = func() (*ocispec.SeccompProfile, error) { return t.defaultSeccomp(s) }
	}
	return n
}

// defaultSeccomp is the RuntimeDefault profile of s, nil for the built-in one.
func (t *Settings) defaultSeccomp(s *pod.SandboxSpec) (*ocispec.SeccompProfile, error) {
	content := s.Pinned.DefaultSeccomp.String()
	if content == "" {
		return nil, nil //nolint:nilnil // none is configured
	}
	return ocispec.ParseSeccomp(t.DefaultSeccomp, content)
}

// BaseSpec is the base_runtime_spec of s, nil for berth's own defaults.
func (t *Settings) BaseSpec(s *pod.SandboxSpec) (*specs.Spec, error) {
	content := s.Pinned.BaseSpec.String()
	if content == "" {
		return nil, nil //nolint:nilnil // none is configured
	}
	spec, err := ocispec.ParseBase(s.Definition.BaseRuntimeSpec, content)
	if err != nil {
		return nil, fmt.Errorf("handler %q: %w", s.Definition.Name, err)
	}
	return spec, nil
}

// Config is the configuration of new sandboxes.
type Config struct {
	// CgroupDriver is auto, cgroupfs or systemd.
	CgroupDriver string
	// CgroupPrefix returns the current prefix of the names of scopes. nil is cgroup.DefaultPrefix.
	CgroupPrefix func() string
	Snapshotter  string
	// MaxLogLineSize limits the content of a log line in bytes; -1 is unlimited.
	MaxLogLineSize    int
	UnprivilegedPorts bool
	UnprivilegedICMP  bool
	// IgnoreImageVolumes disables volumes that images define.
	IgnoreImageVolumes bool
	// DefaultSeccomp is the file of the RuntimeDefault profile; empty is the built-in one.
	DefaultSeccomp string
}
