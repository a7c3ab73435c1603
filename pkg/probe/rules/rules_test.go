package rules

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"text/tabwriter"

	"github.com/containerd/containerd/api/types"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/preflight"
	"github.com/berth-cri/berth/pkg/probe"
	"github.com/berth-cri/berth/pkg/probe/capability"
)

var update = flag.Bool("update", false, "write the golden files")

// recorded has the directories of recorded runtimes. The value is the file name of a shim, or ""
// for an OCI runtime.
var recorded = map[string]string{
	"runc-1.5.2": "", "runc-1.1.5": "", "crun-1.24": "", "crun-1.8.1": "", "youki-0.5.7": "", "youki-0.6.1": "", "runsc-2025": "", "runsc-2026": "",
	"kata-go-3.32.0": "containerd-shim-kata-v2", "kata-rust-3.29.0": "containerd-shim-kata-v2",
}

// replay probes a program that prints the recorded output of a runtime or shim.
func replay(t *testing.T, dir, shimName string) preflight.Handler {
	t.Helper()
	from := test.Value(filepath.Abs(filepath.Join("../testdata", dir)))(t)
	d := &handler.Definition{Name: "test", Type: handler.OCI, Path: filepath.Join(t.TempDir(), cmp.Or(shimName, "runtime"))}
	if shimName != "" {
		d.Type = handler.Shim
	}
	info := filepath.Join(filepath.Dir(d.Path), "info")
	if text, err := os.ReadFile(filepath.Join(from, "info.textproto")); err == nil {
		said := &types.RuntimeInfo{}
		test.Must(t, prototext.Unmarshal(text, said))
		wire, err := proto.Marshal(said)
		test.Must(t, errors.Join(err, os.WriteFile(info, wire, 0o600)))
	}
	program := fmt.Sprintf("#!/bin/sh\ncase \"$1\" in\n--version) exec cat %[1]s/version.txt ;;\nfeatures) exec cat %[1]s/features.json ;;\n-info) exec cat %[2]s ;;\nesac\nexit 1\n", from, info)
	// Renamed into place: a file that any process holds open for writing cannot be run.
	test.Must(t, errors.Join(os.WriteFile(d.Path+".new", []byte(program), 0o755), os.Rename(d.Path+".new", d.Path)))
	rt := test.Value(probe.New(shim.Protocol{}).Probe(t.Context(), d))(t)
	return preflight.Handler{Name: "test", Runtime: rt}
}

// nodes returns a node with all features and one with none.
func nodes() map[string]func(preflight.Handler) Facts {
	return map[string]func(preflight.Handler) Facts{
		"new": func(h preflight.Handler) Facts {
			h.Node = preflight.Node{MountSetattr: true, AppArmor: true, SELinux: true}
			return Facts{Handler: h, Node: Node{Seccomp: true, Cgroup: 2, Systemd: true, HugePages: []string{"hugepages-2048kB"}}}
		},
		"old": func(h preflight.Handler) Facts {
			h.UserNamespaces = func() error { return errors.New("this node cannot map the IDs of images: no") }
			h.Checkpoints = func() error { return errors.New("berth finds no criu") }
			return Facts{Handler: h, Node: Node{Cgroup: 1}}
		},
	}
}

func text(t capability.Table) string {
	var b strings.Builder
	fmt.Fprintf(&b, "isolation %s (%s)\nseccomp actions %s\n", cmp.Or(t.Isolation, "unknown"), t.IsolationSource, strings.Join(t.SeccompActions, " "))
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, n := range t.Sorted() {
		k := t.Of(n)
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", n, k.Answer, cmp.Or(k.Source, "-"), k.Note)
	}
	_ = w.Flush()
	lines := strings.Split(b.String(), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n")
}

// TestRecorded compares the capabilities of each recorded runtime on both nodes with golden files.
func TestRecorded(t *testing.T) {
	for dir, shimName := range recorded {
		t.Run(dir, func(t *testing.T) {
			h := replay(t, dir, shimName)
			got := ""
			for _, name := range []string{"new", "old"} {
				table := Of(nodes()[name](h))
				test.Check(t, table.Validate())
				test.EqualLists(t, "names", table.Sorted(), capability.Names())
				for n, k := range table.Capabilities {
					if strings.Contains(k.Note, h.Runtime.Version) {
						t.Errorf("the note of %s has the version of this node's runtime: %s", n, k.Note)
					}
				}
				got += "node " + name + "\n" + text(table)
			}
			golden := filepath.Join("testdata", dir+".txt")
			if *update {
				test.Must(t, os.WriteFile(golden, []byte(got), 0o644))
			}
			want := test.Value(os.ReadFile(golden))(t)
			if got != string(want) {
				t.Errorf("run with -update if this is right:\n%s", got)
			}
		})
	}
}

// TestWhatIsNotKnown: an unknown runtime has no isolation and no capability.
func TestWhatIsNotKnown(t *testing.T) {
	if got := Of(Facts{}); !got.Empty() {
		t.Errorf("without a runtime: %+v", got)
	}
	for name, h := range map[string]preflight.Handler{
		"an unknown shim":             {Runtime: &probe.Runtime{Path: "/bin/containerd-shim-dumb-v1", ShimAlone: true}},
		"a shim with an unknown name": {Runtime: &probe.Runtime{Path: "/bin/containerd-shim-kata-v2", ShimAlone: true, ShimName: "io.containerd.dumb.v1"}},
		"an unknown runtime":          {Runtime: &probe.Runtime{Path: "/bin/wasm-runner", Version: "0.3"}},
	} {
		table := Of(nodes()["new"](h))
		if table.Isolation != "" || table.IsolationSource != "" {
			t.Errorf("%s: its isolation is %q", name, table.Isolation)
		}
		for n, k := range table.Capabilities {
			if k.Answer == capability.Yes {
				t.Errorf("%s has %s", name, n)
			}
		}
	}
}

func TestKinds(t *testing.T) {
	for name, tc := range map[string]struct {
		h    preflight.Handler
		want capability.Isolation
		from capability.Source
	}{
		"krun":               {preflight.Handler{Runtime: &probe.Runtime{Path: "/bin/krun", Name: probe.Crun}}, capability.VM, capability.Probed},
		"crun":               {preflight.Handler{Runtime: &probe.Runtime{Path: "/bin/crun", Name: probe.Crun}}, capability.SharedKernel, capability.Declared},
		"a shim with krun":   {preflight.Handler{Runtime: &probe.Runtime{Path: "/bin/containerd-shim-runc-v2", Name: probe.Crun, Driven: &probe.Identity{Path: "/bin/krun"}}}, capability.VM, capability.Probed},
		"a shim with runc":   {preflight.Handler{Runtime: &probe.Runtime{Path: "/bin/containerd-shim-runc-v2", Name: probe.Runc, Driven: &probe.Identity{Path: "/bin/runc"}}}, capability.SharedKernel, capability.Declared},
		"a shim of kata":     {preflight.Handler{Runtime: &probe.Runtime{Path: "/bin/shim", ShimAlone: true, ShimName: "io.containerd.kata-qemu.v2"}}, capability.VM, capability.Declared},
		"kata's file name":   {preflight.Handler{Runtime: &probe.Runtime{Path: "/bin/containerd-shim-kata-qemu-v2", ShimAlone: true}}, capability.VM, capability.Probed},
		"a Wasm shim":        {preflight.Handler{Runtime: &probe.Runtime{Path: "/bin/containerd-shim-spin-v2", Wasm: true}}, capability.SharedKernel, capability.Probed},
		"a Wasm shim's name": {preflight.Handler{Runtime: &probe.Runtime{Path: "/bin/shim", ShimName: "io.containerd.spin.v2", Wasm: true, WasmDeclared: true}}, capability.SharedKernel, capability.Declared},
		"gVisor's shim":      {preflight.Handler{Runtime: &probe.Runtime{Path: "/bin/containerd-shim-runsc-v1", ShimAlone: true}}, capability.UserSpaceKernel, capability.Probed},
	} {
		table := Of(nodes()["new"](tc.h))
		if table.Isolation != tc.want || table.IsolationSource != tc.from {
			t.Errorf("%s: %s, %s", name, table.Isolation, table.IsolationSource)
		}
	}
}

// TestWasmShims: modules are host processes, and no other process can be started in their
// pods. All that the shims do not report is unknown.
func TestWasmShims(t *testing.T) {
	table := Of(nodes()["new"](preflight.Handler{Runtime: &probe.Runtime{Path: "/bin/containerd-shim-spin-v2", Wasm: true}}))
	for n, want := range map[capability.Name]capability.Answer{
		capability.HostNetwork: capability.Yes, capability.PortForward: capability.Yes, capability.Exec: capability.No,
		capability.UserNamespaces: capability.No, capability.Checkpoint: capability.No, capability.Privileged: capability.Unknown,
	} {
		if got := table.Of(n); got.Answer != want {
			t.Errorf("%s: %+v", n, got)
		}
	}
}

func TestKrunByAnnotation(t *testing.T) {
	f := nodes()["new"](replay(t, "crun-1.24", ""))
	if f.Krun = true; Of(f).Isolation != capability.VM || Of(f).IsolationSource != capability.Declared {
		t.Errorf("got %+v", Of(f))
	}
}

func TestHostNetworkOfGVisor(t *testing.T) {
	for name, tc := range map[string]struct {
		may, told bool
		want      capability.Answer
	}{"by default": {false, false, capability.No}, "configured": {true, true, capability.Yes}, "possibly configured": {true, false, capability.Unknown}} {
		f := nodes()["new"](preflight.Handler{Runtime: &probe.Runtime{Name: probe.Runsc}, HostNetwork: tc.may})
		f.HostNetwork = tc.told
		if got := Of(f).Of(capability.HostNetwork); got.Answer != tc.want {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestNotFoundOutInTime(t *testing.T) {
	f := nodes()["new"](replay(t, "runc-1.5.2", ""))
	f.Unsure, f.Handler.UserNamespaces = true, func() error { return errors.New("the test did not finish in time") }
	if got := Of(f).Of(capability.UserNamespaces); got.Answer != capability.Unknown || got.Note == "" {
		t.Errorf("got %+v", got)
	}
	f.Handler.Runtime = &probe.Runtime{Name: probe.Runc}
	if got := Of(f).Of(capability.UserNamespaces); got.Answer != capability.No || got.Source != capability.Declared {
		t.Errorf("of a runtime without user namespaces: %+v", got)
	}
}

// A handler's profiles count only after a self-check pod, which fails if a profile is not met.
func TestConforms(t *testing.T) {
	f := nodes()["new"](preflight.Handler{Runtime: &probe.Runtime{Name: probe.Runsc}})
	f.Conforms = []string{"sandboxed/v1"}
	if got := Of(f).Conforms; len(got) > 0 {
		t.Errorf("before a pod has run: %q", got)
	}
	f.Proof = probe.Proof{}
	test.EqualLists(t, "after a pod has run", Of(f).Conforms, f.Conforms)
}

func TestWhatRan(t *testing.T) {
	f := nodes()["new"](replay(t, "runc-1.5.2", ""))
	f.Proof = probe.Proof{capability.Exec: "", capability.InPlaceResize: "refused", capability.UserNamespaces: "EPERM"}
	table := Of(f)
	for n, want := range map[capability.Name]capability.Known{
		capability.Exec:           {Answer: capability.Yes, Source: capability.Ran},
		capability.InPlaceResize:  {Answer: capability.No, Source: capability.Ran, Note: "the self-check pod failed with it: refused"},
		capability.UserNamespaces: {Answer: capability.Unknown, Note: "the self-check pod failed with it: EPERM"},
	} {
		if got := table.Of(n); got != want {
			t.Errorf("%s: %+v", n, got)
		}
	}
}

// pods returns, for each capability that preflight checks, a pod or container that requests it.
func pods() map[capability.Name]func(preflight.Handler) *preflight.Refusal {
	type (
		sandboxContext   = runtimeapi.LinuxSandboxSecurityContext
		containerContext = runtimeapi.LinuxContainerSecurityContext
	)
	pod := func(sc *sandboxContext) func(preflight.Handler) *preflight.Refusal {
		return func(h preflight.Handler) *preflight.Refusal {
			return preflight.Sandbox(&runtimeapi.PodSandboxConfig{Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: sc}}, h)
		}
	}
	one := func(sc *containerContext, mounts ...*runtimeapi.Mount) func(preflight.Handler) *preflight.Refusal {
		return func(h preflight.Handler) *preflight.Refusal {
			return preflight.Container(&runtimeapi.ContainerConfig{Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: sc}, Mounts: mounts}, h)
		}
	}
	ids := []*runtimeapi.IDMapping{{HostId: 1 << 16, Length: 1 << 16}}
	return map[capability.Name]func(preflight.Handler) *preflight.Refusal{
		capability.HostNetwork: pod(&sandboxContext{NamespaceOptions: &runtimeapi.NamespaceOption{Network: runtimeapi.NamespaceMode_NODE}}),
		capability.HostPID:     pod(&sandboxContext{NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_NODE}}),
		capability.HostIPC:     pod(&sandboxContext{NamespaceOptions: &runtimeapi.NamespaceOption{Ipc: runtimeapi.NamespaceMode_NODE}}),
		capability.UserNamespaces: pod(&sandboxContext{NamespaceOptions: &runtimeapi.NamespaceOption{
			UsernsOptions: &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: ids, Gids: ids},
		}}),
		capability.IDMappedMounts:          one(nil, &runtimeapi.Mount{ContainerPath: "/v", UidMappings: ids, GidMappings: ids}),
		capability.RecursiveReadOnlyMounts: one(nil, &runtimeapi.Mount{ContainerPath: "/v", Readonly: true, RecursiveReadOnly: true}),
		capability.MountPropagation:        one(nil, &runtimeapi.Mount{ContainerPath: "/v", Propagation: runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL}),
		capability.Checkpoint:              preflight.Checkpoints,
		capability.PodCheckpoint:           preflight.PodCheckpoints,
		capability.Seccomp:                 one(&containerContext{Seccomp: &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}}),
		capability.AppArmor:                one(&containerContext{Apparmor: &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}}),
		capability.SELinux:                 one(&containerContext{SelinuxOptions: &runtimeapi.SELinuxOption{Level: "s0:c1,c2"}}),
	}
}

// TestAgreesWithPreflight: preflight refuses a request exactly if the capability is "no", for
// every recorded runtime and some others, on both nodes.
func TestAgreesWithPreflight(t *testing.T) {
	handlers := map[string]preflight.Handler{
		"built without": {Runtime: &probe.Runtime{Name: probe.Crun, Version: "1.8", BuildTags: []string{"-SECCOMP", "-APPARMOR", "-SELINUX"}}},
		"krun":          {Runtime: &probe.Runtime{Path: "/bin/krun", Name: probe.Crun, Version: "1.24"}},
		"dumb shim":     {Runtime: &probe.Runtime{Path: "/bin/containerd-shim-dumb-v1", ShimAlone: true}},
		"Wasm shim":     {Runtime: &probe.Runtime{Path: "/bin/containerd-shim-spin-v2", Wasm: true}},
		"unknown":       {Runtime: &probe.Runtime{Version: "0.3"}},
		"runsc-hostnet": {HostNetwork: true, Runtime: &probe.Runtime{Name: probe.Runsc}},
	}
	for dir, shimName := range recorded {
		handlers[dir] = replay(t, dir, shimName)
	}
	answers := map[capability.Answer]int{}
	for name, h := range handlers {
		for node, facts := range nodes() {
			f := facts(h)
			table := Of(f)
			for n, ask := range pods() {
				// Preflight does not check these if the node lacks them: the request is
				// ignored, or refused for every handler.
				if n == capability.AppArmor && !f.Handler.Node.AppArmor || n == capability.SELinux && !f.Handler.Node.SELinux || n == capability.Seccomp && !f.Node.Seccomp {
					continue
				}
				lack, k := ask(f.Handler), table.Of(n)
				answers[k.Answer]++
				if lack == nil && k.Answer == capability.No || lack != nil && k.Answer != capability.No {
					t.Errorf("%s on the %s node: %s is %q (%s), but preflight returns %+v", name, node, n, k.Answer, k.Note, lack)
				}
			}
		}
	}
	if answers[capability.Yes] < 50 || answers[capability.No] < 50 {
		t.Errorf("too few answers: %v", answers)
	}
	for n := range asks {
		if pods()[n] == nil {
			t.Errorf("pods has no request for %s", n)
		}
	}
	if len(pods()) != len(asks) {
		t.Error("pods has a request that asks does not have")
	}
}
