package cli

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/shims"
	"github.com/berth-cri/berth/integration/testbed"
)

// TestConforms checks handlers that promise capability sets. A handler that keeps its promise is
// ready and reports the set. For any other handler the reason and refusals name the breach.
func TestConforms(t *testing.T) {
	n := newNode(t)
	runc, crun, runsc := testbed.Part(t, testbed.Runc), testbed.Part(t, testbed.Crun), testbed.Part(t, testbed.Runsc)
	for name, c := range map[string]struct {
		path, sets string
		more       []string
	}{
		"shared-runc": {runc, "shared-kernel/v1", nil},
		"shared-crun": {crun, "shared-kernel/v1", nil},
		"shim":        {testbed.Part(t, testbed.RuncShim), "shared-kernel/v1", []string{"--set", "options.BinaryName=" + runc}},
		"gvisor":      {runsc, "sandboxed/v1", nil},
	} {
		n.berth(t, 0, append([]string{"handler", "add", name, "--path", c.path, "--set", `conforms=["` + c.sets + `"]`}, c.more...)...)
		table := n.told(t, name)[name]
		if !slices.Equal(table.Conforms, []string{c.sets}) {
			t.Errorf("%s conforms to %q, want %s", name, table.Conforms, c.sets)
		}
		out, _ := n.berth(t, 0, "handler", "show", name)
		has(t, out, "state:            ready", "conforms to:      "+c.sets)
	}
	n.Client.RunPod(t, testbed.PodSpec{Handler: "gvisor", Image: n.Image, Command: []string{"sleep", "600"}})
	out, _ := n.berth(t, 0, "capabilities")
	has(t, out, "conforms", "sandboxed/v1 (ran)", "shared-kernel/v1 (ran)")
	if table := n.told(t, "runc")["runc"]; len(table.Conforms) > 0 {
		t.Errorf("runc promised no set, but conforms to %q", table.Conforms)
	}

	for name, c := range map[string]struct{ path, sets, breach string }{
		"runc-sandboxed": {runc, `"sandboxed/v1"`, "the handler does not conform to sandboxed/v1: its pods run on the node's kernel"},
		"crun-vm":        {crun, `"sandboxed/v1", "vm/v1"`, "the handler does not conform to vm/v1: its pods run on the node's kernel, and its runtime does not report that it makes virtual machines: isolation is shared-kernel"},
		"gvisor-shared":  {runsc, `"shared-kernel/v1"`, "the handler does not conform to shared-kernel/v1: its pods do not run on the node's kernel, but on "},
		"gvisor-vm":      {runsc, `"vm/v1"`, "the handler does not conform to vm/v1: its runtime does not report that it makes virtual machines: isolation is user-space-kernel"},
		"crun-wasm":      {crun, `"wasm/v1"`, "the handler does not conform to wasm/v1: it is not for WebAssembly modules only"},
	} {
		_, stderr := n.berth(t, 3, "handler", "add", name, "--path", c.path, "--set", "conforms=["+c.sets+"]")
		has(t, stderr, c.breach)
		if h := n.handler(t, name); h["state"] != "STATE_NOT_READY" || !strings.Contains(h["reason"].(string), c.breach) {
			t.Errorf("%s is %v: %v, want not ready because of the breach", name, h["state"], h["reason"])
		}
		_, err := n.Client.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: n.Client.SandboxConfig(""), RuntimeHandler: name})
		if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), c.breach) {
			t.Errorf("run a pod of %s: %v, want unavailable with the breach", name, err)
		}
	}
	// A wrong promise can be corrected.
	n.berth(t, 0, "handler", "edit", "runc-sandboxed", "--set", `conforms=["shared-kernel/v1"]`)
	if h := n.handler(t, "runc-sandboxed"); h["state"] != "STATE_READY" {
		t.Errorf("with a corrected promise the handler is %v: %v", h["state"], h["reason"])
	}
	for sets, mistake := range map[string]string{
		`["sandboxed"]`:                        `did you mean "sandboxed/v1"?`,
		`["sandboxed/v1", "sandboxed/v1"]`:     `"sandboxed/v1" is listed twice`,
		`["shared-kernel/v1", "sandboxed/v1"]`: `no handler can do both: "shared-kernel/v1" promises the node's kernel and "sandboxed/v1" another one`,
	} {
		_, stderr := n.berth(t, 2, "handler", "add", "wrong", "--path", runc, "--set", "conforms="+sets)
		has(t, stderr, mistake)
	}
	// After a restart, a self-check pod has to prove the promise again.
	n.Restart(t)
	n.berth(t, 0, "handler", "probe", "gvisor") // waits for the self-check pod
	if table := n.told(t, "gvisor")["gvisor"]; !slices.Equal(table.Conforms, []string{"sandboxed/v1"}) {
		t.Errorf("after a restart gvisor conforms to %q", table.Conforms)
	}
}

// TestMachinesConform checks stand-ins of kata that promise vm/v1 and are not ready: one whose
// containers run on the node's kernel, and one whose pods cannot be inspected, because the first
// program of a container is the shim's.
func TestMachinesConform(t *testing.T) {
	n := newNode(t)
	for name, c := range map[string]struct {
		settings shims.Kata
		breach   string
	}{
		"ours":     {shims.Kata{Memory: 8}, "the handler does not conform to vm/v1: its pods run on the node's kernel"},
		"anothers": {shims.Kata{Memory: 8, FirstProgram: testbed.Part(t, testbed.BusyboxBinary)}, "the handler does not conform to vm/v1: what its pods see is not known: "},
	} {
		kata := testbed.NewKata(t, c.settings)
		_, stderr := n.berth(t, 3, "handler", "add", name, "--type", "shim", "--path", kata.Path, "--set", "runtime_config_path="+kata.Config, "--set", "required_devices=[]", "--set", `conforms=["vm/v1"]`)
		has(t, stderr, c.breach)
	}
}
