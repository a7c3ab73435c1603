package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-cri/berth/integration/shims"
	"github.com/berth-cri/berth/integration/testbed"
	"github.com/berth-cri/berth/pkg/probe/capability"
)

// told returns the table of each handler from the JSON of "berth capabilities".
func (n *node) told(t *testing.T, arguments ...string) map[string]capability.Table {
	t.Helper()
	out, _ := n.berth(t, 0, append(append([]string{"capabilities"}, arguments...), "-o", "json")...)
	var all struct {
		Handlers []struct {
			Name, State string
			capability.Table
		}
	}
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	by := map[string]capability.Table{}
	for _, h := range all.Handlers {
		if err := h.Table.Validate(); err != nil || h.State != "ready" {
			t.Errorf("%s is %s: %v", h.Name, h.State, err)
		}
		by[h.Name] = h.Table
	}
	return by
}

// TestFeatures checks the capabilities of real runtimes before and after self-check pods, and that
// "kubectl berth fit" uses them.
func TestFeatures(t *testing.T) {
	n := newNode(t)
	n.berth(t, 0, "handler", "add", "crun", "--path", testbed.Part(t, testbed.Crun))
	n.berth(t, 0, "handler", "add", "gvisor", "--path", testbed.Part(t, testbed.Runsc))
	n.berth(t, 0, "handler", "add", "shim", "--path", testbed.Part(t, testbed.RuncShim), "--set", "options.BinaryName="+testbed.Part(t, testbed.Runc))
	all := n.told(t)
	for name, want := range map[string]capability.Isolation{
		"runc": capability.SharedKernel, "crun": capability.SharedKernel, "shim": capability.SharedKernel, "gvisor": capability.UserSpaceKernel,
	} {
		table := all[name]
		if table.Isolation != want || len(table.Sorted()) != len(capability.Names()) || len(table.SeccompActions) == 0 && name != "crun" {
			t.Errorf("the capabilities of %s are %+v, want all, with isolation %q", name, table, want)
		}
		own := want != capability.SharedKernel
		if no := table.Of(capability.HostPID).Answer == capability.No; no != own {
			t.Errorf("%s: hostPID is %+v", name, table.Of(capability.HostPID))
		}
		for n, k := range table.Capabilities {
			if k.Source == capability.Ran || (k.Answer == capability.Unknown) != (k.Source == "") {
				t.Errorf("before a self-check pod of %s: %s is %+v", name, n, k)
			}
		}
		table = n.told(t, name, "--self-check")[name]
		ran := map[capability.Name]bool{capability.Exec: true, capability.UserNamespaces: !own, capability.InPlaceResize: !own}
		for what, want := range ran {
			if k := table.Of(what); (k == capability.Known{Answer: capability.Yes, Source: capability.Ran}) != want {
				t.Errorf("after a self-check pod of %s: %s is %+v", name, what, k)
			}
		}
		if v1, v2 := table.Of(capability.CgroupV1), table.Of(capability.CgroupV2); (v1.Source == capability.Ran) == (v2.Source == capability.Ran) {
			t.Errorf("after a self-check pod of %s: cgroup v1 is %+v, v2 is %+v", name, v1, v2)
		}
	}
	text, _ := n.berth(t, 0, "capabilities", "gvisor")
	has(t, text, "CAPABILITY", "user-space-kernel", "its containers run on a kernel that runsc")
	text, _ = n.berth(t, 0, "capabilities")
	has(t, text, "runc", "gvisor", "yes (ran)", "no (declared)", "unknown")

	pod, file := filepath.Join(n.Dir, "pod.yaml"), filepath.Join(n.Dir, "handlers.yaml")
	write := func(path, text string) {
		testbed.Must(t, os.WriteFile(path, []byte(text), 0o600))
	}
	write(pod, "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {hostPID: true, containers: [{name: c, image: i}]}\n")
	text, _ = n.berth(t, 0, "capabilities", "-o", "yaml")
	write(file, text)
	fit, _ := n.classes(t, 0, "fit", "-f", pod, "--handlers", file)
	for line := range strings.Lines(fit) {
		if strings.Contains(line, "gvisor") {
			has(t, line, "no", string(capability.UserSpaceKernel), "its containers run on a kernel that runsc")
		}
	}
	has(t, fit, "gvisor")
}

// TestFeaturesOfMachines runs self-check pods under a stand-in of kata. They try an exec, unless
// the first program of the container is the shim's own, and never an in-place resize.
func TestFeaturesOfMachines(t *testing.T) {
	n := newNode(t)
	for name, c := range map[string]struct {
		settings shims.Kata
		source   capability.Source
	}{
		"ours":     {shims.Kata{Memory: 8}, capability.Ran},
		"anothers": {shims.Kata{Memory: 8, FirstProgram: testbed.Part(t, testbed.BusyboxBinary)}, capability.Declared},
	} {
		t.Run(name, func(t *testing.T) {
			kata := testbed.NewKata(t, c.settings)
			n.berth(t, 0, "handler", "add", name, "--type", "shim", "--path", kata.Path, "--set", "runtime_config_path="+kata.Config, "--set", "required_devices=[]")
			table := n.told(t, name, "--self-check")[name]
			if k := table.Of(capability.Exec); k.Answer != capability.Yes || k.Source != c.source {
				t.Errorf("exec is %+v, want yes by %s", k, c.source)
			}
			if k := table.Of(capability.InPlaceResize); k.Source == capability.Ran {
				t.Errorf("in-place resize, which is not tried, is %+v", k)
			}
		})
	}
}
