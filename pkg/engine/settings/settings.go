// Package settings holds what the daemon was started with, and what of it each pod keeps.
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

// Settings are what the daemon was started with: new sandboxes take them, and old
// ones what their records do not say. They never change, but for what is a function.
type Settings struct {
	Config
	Node   ocispec.Node
	Driver cgroup.Driver
}

// New looks at the node.
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

// Pin reads what a new sandbox of that handler is to keep. A file that is not
// fit for use is refused here, before anything of the sandbox is made.
func (t *Settings) Pin(d *handler.Definition) (pod.Pinned, error) {
	p := t.Today(d)
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

// Today is the part that is in no file.
func (t *Settings) Today(d *handler.Definition) pod.Pinned {
	p := pod.Pinned{
		CgroupDriver: t.Driver, CgroupPrefix: cgroup.DefaultPrefix, Snapshotter: cmp.Or(d.Snapshotter, t.Snapshotter),
		MaxLogLineSize: t.MaxLogLineSize, ImageVolumes: !t.IgnoreImageVolumes,
	}
	if t.CgroupPrefix != nil {
		p.CgroupPrefix = t.CgroupPrefix()
	}
	return p
}

// NodeOf is the node as s was created on it.
func (t *Settings) NodeOf(s *pod.SandboxSpec) ocispec.Node {
	n, p := t.Node, &s.Pinned
	if p.DefaultSeccomp != (pod.Text{}) {
		n.DefaultSeccomp = func() (*ocispec.SeccompProfile, error) { return t.defaultSeccomp(s) }
	}
	return n
}

// defaultSeccomp is what RuntimeDefault means for s, nil for the built-in one.
func (t *Settings) defaultSeccomp(s *pod.SandboxSpec) (*ocispec.SeccompProfile, error) {
	content := s.Pinned.DefaultSeccomp.String()
	if content == "" {
		return nil, nil //nolint:nilnil // none was named
	}
	return ocispec.ParseSeccomp(t.DefaultSeccomp, content)
}

// BaseSpec is the base_runtime_spec of s, nil for berth's own defaults.
func (t *Settings) BaseSpec(s *pod.SandboxSpec) (*specs.Spec, error) {
	content := s.Pinned.BaseSpec.String()
	if content == "" {
		return nil, nil //nolint:nilnil // none was named
	}
	spec, err := ocispec.ParseBase(s.Definition.BaseRuntimeSpec, content)
	if err != nil {
		return nil, fmt.Errorf("handler %q: %w", s.Definition.Name, err)
	}
	return spec, nil
}

// Config is what the daemon says of new sandboxes.
type Config struct {
	// CgroupDriver is auto, cgroupfs or systemd.
	CgroupDriver string
	// CgroupPrefix is what the names of scopes begin with, at the moment. nil is
	// cgroup.DefaultPrefix.
	CgroupPrefix func() string
	Snapshotter  string
	// MaxLogLineSize bounds the content of a log line in bytes; -1 is no bound.
	MaxLogLineSize    int
	UnprivilegedPorts bool
	UnprivilegedICMP  bool
	// IgnoreImageVolumes makes no volumes that images define.
	IgnoreImageVolumes bool
	// DefaultSeccomp is the file of the RuntimeDefault profile; empty is built in.
	DefaultSeccomp string
}
