package sandbox

import (
	"encoding/json"
	"os"
	"path/filepath"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/berth-cri/berth/pkg/engine/network"
	"github.com/berth-cri/berth/pkg/engine/ocispec"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/handler"
)

// sandboxInfo is the verbose part of PodSandboxStatus. pid, runtimeSpec and cniResult have the
// names that scripts for containerd or CRI-O read.
type sandboxInfo struct {
	// PID is the sandbox process or, without one, the process of container PIDOf, which is in the
	// same namespaces except for mounts and processes; 0 if no container runs.
	PID        int                        `json:"pid"`
	PIDOf      string                     `json:"pidOfContainer,omitempty"`
	Handler    string                     `json:"handler"`
	Binary     string                     `json:"binary"`
	Definition *handler.Definition        `json:"definition"`
	Digest     string                     `json:"definitionDigest"`
	Generation uint64                     `json:"generation,omitempty"`
	Plan       pod.Plan                   `json:"plan"`
	Binaries   []handler.OwnedBinary      `json:"binaries,omitempty"`
	Supervisor string                     `json:"supervisor"`
	NetNS      string                     `json:"networkNamespace,omitempty"`
	CNIResult  map[string]json.RawMessage `json:"cniResult,omitempty"`
	// RuntimeSpec is the sandbox process's or, without one, that of ocispec.DescribeSandbox.
	RuntimeSpec json.RawMessage `json:"runtimeSpec,omitempty"`
	Config      json.RawMessage `json:"config"`
}

func (b *views) info(s *pod.Sandbox) map[string]string {
	spec, d, st := s.Spec(), s.Spec().Definition, s.Status()
	config, _ := protojson.Marshal(s.Config())
	i := sandboxInfo{
		Handler: d.Name, Binary: d.BinaryName(), Definition: d, Digest: d.Digest(), Generation: spec.Pinned.Generation,
		Plan: spec.Plan, Binaries: b.Binaries.Runtimes.Describe(spec), Supervisor: spec.Supervisor,
		NetNS: st.Namespaces.Net, CNIResult: cniResult(st.Network), RuntimeSpec: b.runtimeSpec(s), Config: config,
	}
	i.PID, i.PIDOf = b.process(s)
	text, _ := json.Marshal(i)
	return map[string]string{"info": string(text)}
}

// process returns a process in the sandbox's namespaces: see sandboxInfo.
func (b *views) process(s *pod.Sandbox) (pid int, of string) {
	if pid := s.Status().PID; pid > 0 || s.Spec().Plan.Process {
		return pid, ""
	}
	for _, c := range b.Pods.Index.ContainersOf(s.ID()) { // oldest first
		if st := c.Status(); st.Phase == pod.PhaseRunning && st.PID > 0 {
			return st.PID, c.ID()
		}
	}
	return 0, ""
}

// runtimeSpec is nil if the bundle is gone.
func (b *views) runtimeSpec(s *pod.Sandbox) json.RawMessage {
	if s.Spec().Plan.Process {
		text, err := os.ReadFile(filepath.Join(b.Pods.ProcessBundle(s.ID()), "config.json"))
		if err != nil || !json.Valid(text) {
			return nil
		}
		return text
	}
	spec, err := ocispec.DescribeSandbox(b.Pods.SpecSandbox(s))
	if err != nil {
		return nil
	}
	text, _ := json.Marshal(spec)
	return text
}

// cniResult is CNI's own result for eth0 and, under keys with a capital first letter, the results
// of all networks in containerd's form.
func cniResult(n *network.Result) map[string]json.RawMessage {
	if n == nil {
		return nil
	}
	all := map[string]json.RawMessage{}
	_ = json.Unmarshal(n.Raw, &all)
	described, err := n.Described()
	if err != nil {
		return all
	}
	text, _ := json.Marshal(described)
	_ = json.Unmarshal(text, &all)
	return all
}
