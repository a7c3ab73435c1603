package pod

import (
	"encoding/json"
	"fmt"
	"unique"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/pkg/engine/cgroup"
	"github.com/berth-cri/berth/pkg/engine/keep"
	"github.com/berth-cri/berth/pkg/trust"
)

// Pinned is a sandbox's configuration in addition to its Definition. It applies to the sandbox and
// its containers for their whole life, even if the configuration and its files change.
type Pinned struct {
	CgroupDriver   cgroup.Driver `json:"cgroupDriver"`
	CgroupPrefix   string        `json:"cgroupPrefix,omitempty"`
	Snapshotter    string        `json:"snapshotter"`
	MaxLogLineSize int           `json:"maxLogLineSize"`
	ImageVolumes   bool          `json:"imageVolumes,omitempty"`
	// PauseRoot is the name of the sandbox process's root filesystem among the tools; empty without
	// a sandbox process.
	PauseRoot string `json:"pauseRoot,omitempty"`
	// Binaries are the handler's binary and then, if that is a shim, the runtime that it runs.
	Binaries []keep.Binary `json:"binaries,omitempty"`
	// Generation is the generation of the routing table that the sandbox was run with.
	Generation uint64 `json:"generation,omitempty"`
	// BaseSpec and DefaultSeccomp are the contents of the configured files; empty without a file.
	BaseSpec       Text `json:"baseSpec,omitzero"`
	DefaultSeccomp Text `json:"defaultSeccomp,omitzero"`
}

// CgroupsPath is the spec.linux.cgroupsPath of the sandbox process or container of s with that id.
func (s *SandboxSpec) CgroupsPath(id string) (string, error) {
	return cgroup.Path(s.Pinned.CgroupDriver, s.Pinned.CgroupPrefix, s.Config.Msg.GetLinux().GetCgroupParent(), id)
}

// Parent is the pod's cgroup, which the kubelet creates and limits.
func (s *Sandbox) Parent() cgroup.Paths {
	return cgroup.ParentPaths(s.Config().GetLinux().GetCgroupParent(), s.Spec().Pinned.CgroupDriver)
}

// Text is the content of a file. Equal texts share memory: most pods of a node have the same files.
type Text struct{ handle unique.Handle[string] }

func newText(s string) Text {
	if s == "" {
		return Text{}
	}
	return Text{unique.Make(s)}
}

func (t Text) String() string {
	if t == (Text{}) {
		return ""
	}
	return t.handle.Value()
}

// MarshalJSON encodes it as a string.
func (t Text) MarshalJSON() ([]byte, error) { return json.Marshal(t.String()) }

// UnmarshalJSON decodes a string.
func (t *Text) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	*t = newText(s)
	return nil
}

// ReadText reads a file of the configuration; an empty path is an empty Text.
func ReadText(path string) (Text, error) {
	if path == "" {
		return Text{}, nil
	}
	b, err := trust.ReadFile(path, trust.Configuration)
	if err != nil {
		return Text{}, fmt.Errorf("%w: %w", err, errdefs.ErrFailedPrecondition)
	}
	if len(b) == 0 {
		return Text{}, fmt.Errorf("%s is empty: %w", path, errdefs.ErrFailedPrecondition)
	}
	return newText(string(b)), nil
}
