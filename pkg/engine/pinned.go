package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"unique"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-cri/berth/pkg/engine/cgroup"
	"github.com/berth-cri/berth/pkg/engine/keep"
	"github.com/berth-cri/berth/pkg/engine/ocispec"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/trust"
)

// pinned is what a sandbox takes from the configuration beside its Definition:
// it holds for all that is ever done to the sandbox and its containers, whatever
// the configuration, and the files that it names, say by then.
type pinned struct {
	CgroupDriver           cgroup.Driver `json:"cgroupDriver"`
	Snapshotter            string        `json:"snapshotter"`
	MaxLogLineSize         int           `json:"maxLogLineSize"`
	TolerateMissingHugetlb bool          `json:"tolerateMissingHugetlb,omitempty"`
	ImageVolumes           bool          `json:"imageVolumes,omitempty"` // records of older builds have it not, whose pods have none
	// PauseRoot is the name of the sandbox process's root filesystem among the
	// tools; empty without such a process.
	PauseRoot string `json:"pauseRoot,omitempty"`
	// Binaries are the handler's, then the one that its shim drives; none in
	// records of older builds.
	Binaries []keep.Binary `json:"binaries,omitempty"`
	// Generation is that of the table by which the sandbox was routed; 0 in records
	// of older builds.
	Generation uint64 `json:"generation,omitempty"`
	// BaseSpec and DefaultSeccomp are what the files said; empty is no file.
	BaseSpec       text `json:"baseSpec,omitzero"`
	DefaultSeccomp text `json:"defaultSeccomp,omitzero"`
}

// text is the content of a file. Equal ones share their memory: the pods of a
// node mostly have the same.
type text struct{ handle unique.Handle[string] }

func newText(s string) text {
	if s == "" {
		return text{}
	}
	return text{unique.Make(s)}
}

func (t text) String() string {
	if t == (text{}) {
		return ""
	}
	return t.handle.Value()
}

func (t text) MarshalJSON() ([]byte, error) { return json.Marshal(t.String()) }

func (t *text) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	*t = newText(s)
	return nil
}

// settings are what the daemon was started with: new sandboxes take them, and old
// ones what their records do not say. They never change.
type settings struct {
	node                   ocispec.Node
	driver                 cgroup.Driver
	snapshotter            string
	maxLogLineSize         int
	tolerateMissingHugetlb bool
	defaultSeccompFile     string // empty is the built-in profile
	ignoreImageVolumes     bool
	maxImageVolumes        int // bounds what is asked for now, and so is nothing to keep
}

func newSettings(ctx context.Context, c Config) (*settings, error) {
	driver, err := cgroup.Detect(c.CgroupDriver)
	if err != nil {
		return nil, err
	}
	node, err := ocispec.DetectNode(ctx, ocispec.NodeOptions{
		SystemdCgroup: driver == cgroup.Systemd, TolerateMissingHugetlb: c.TolerateMissingHugetlb,
		UnprivilegedPorts: c.UnprivilegedPorts, UnprivilegedICMP: c.UnprivilegedICMP,
	})
	if err != nil {
		return nil, err
	}
	return &settings{
		node: node, driver: driver, snapshotter: c.Snapshotter, maxLogLineSize: c.MaxLogLineSize,
		tolerateMissingHugetlb: c.TolerateMissingHugetlb, defaultSeccompFile: c.DefaultSeccomp,
		ignoreImageVolumes: c.IgnoreImageVolumes, maxImageVolumes: cmp.Or(c.MaxImageVolumes, defaultMaxImageVolumes),
	}, nil
}

// pin reads what a new sandbox of that handler is to keep. A file that is not
// fit for use is refused here, before anything of the sandbox is made.
func (t *settings) pin(d *handler.Definition) (*pinned, error) {
	p := t.today(d)
	var err error
	if p.BaseSpec, err = readText(d.BaseRuntimeSpec); err != nil {
		return nil, fmt.Errorf("base_runtime_spec of handler %q: %w", d.Name, err)
	}
	if p.DefaultSeccomp, err = readText(t.defaultSeccompFile); err != nil {
		return nil, fmt.Errorf("default_seccomp_profile: %w", err)
	}
	s := &sandboxSpec{Definition: d, Pinned: &p}
	if _, err := t.baseSpec(s); err != nil {
		return nil, err
	}
	if _, err := t.defaultSeccomp(s); err != nil {
		return nil, err
	}
	return &p, nil
}

// today is the part that is in no file.
func (t *settings) today(d *handler.Definition) pinned {
	p := pinned{
		CgroupDriver: t.driver, Snapshotter: d.Snapshotter,
		MaxLogLineSize: t.maxLogLineSize, TolerateMissingHugetlb: t.tolerateMissingHugetlb,
		ImageVolumes: !t.ignoreImageVolumes,
	}
	if p.Snapshotter == "" {
		p.Snapshotter = t.snapshotter
	}
	return p
}

// of are those that s was created with. Older builds did not record them:
// today's are the best guess.
func (t *settings) of(s *sandboxSpec) pinned {
	if s.Pinned != nil {
		return *s.Pinned
	}
	return t.today(s.Definition)
}

// nodeOf is the node as s was created on it.
func (t *settings) nodeOf(s *sandboxSpec) ocispec.Node {
	n, p := t.node, t.of(s)
	n.SystemdCgroup = p.CgroupDriver == cgroup.Systemd
	n.TolerateMissingHugetlb = p.TolerateMissingHugetlb
	if p.DefaultSeccomp != (text{}) || (s.Pinned == nil && t.defaultSeccompFile != "") {
		n.DefaultSeccomp = func() (*ocispec.SeccompProfile, error) { return t.defaultSeccomp(s) }
	}
	return n
}

// defaultSeccomp is what RuntimeDefault means for s, nil for the built-in one.
func (t *settings) defaultSeccomp(s *sandboxSpec) (*ocispec.SeccompProfile, error) {
	content, err := s.content(t.defaultSeccompFile, func(p *pinned) text { return p.DefaultSeccomp })
	if err != nil || content == "" {
		return nil, err
	}
	return ocispec.ParseSeccomp(t.defaultSeccompFile, content)
}

// baseSpec is the base_runtime_spec of s, nil for berth's own defaults.
func (t *settings) baseSpec(s *sandboxSpec) (*specs.Spec, error) {
	d := s.Definition
	content, err := s.content(d.BaseRuntimeSpec, func(p *pinned) text { return p.BaseSpec })
	if err != nil || content == "" {
		return nil, err
	}
	spec, err := ocispec.ParseBase(d.BaseRuntimeSpec, content)
	if err != nil {
		return nil, fmt.Errorf("handler %q: %w", d.Name, err)
	}
	return spec, nil
}

// content is what a file said when s was created; that of a record that does not
// know is what it says now.
func (s *sandboxSpec) content(path string, then func(*pinned) text) (string, error) {
	if s.Pinned != nil {
		return then(s.Pinned).String(), nil
	}
	now, err := readText(path)
	return now.String(), err
}

// readText reads a file that the configuration may name.
func readText(path string) (text, error) {
	if path == "" {
		return text{}, nil
	}
	b, err := trust.ReadFile(path, trust.Configuration)
	if err != nil {
		return text{}, fmt.Errorf("%w: %w", err, errdefs.ErrFailedPrecondition)
	}
	if len(b) == 0 {
		return text{}, fmt.Errorf("%s is empty: %w", path, errdefs.ErrFailedPrecondition)
	}
	return newText(string(b)), nil
}
