package conformance

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/patience"
	"github.com/berth-cri/berth/integration/testbed"
)

var runtimeChecks = []check{
	{name: "Version has the four fields a kubelet demands", run: versionFields},
	{name: "Status has both conditions and no info", run: statusConditions},
	{name: "Status is fast", alone: true, run: statusFast},
	{name: "Status verbose has info in JSON", run: statusVerbose},
	{name: "Status lists each handler once and the default as empty name", run: statusHandlers},
	{name: "each feature that Status announces has a check that this target is held to", run: statusFeatures},
	{name: "RuntimeConfig answers the same three times", run: runtimeConfigStable},
	{name: "UpdateRuntimeConfig takes a pod CIDR", run: updateRuntimeConfig},
	{name: "the handler's own runtime runs its containers", run: rightRuntime},
}

func versionFields(t *testing.T, n *node) {
	v, err := n.Runtime.Version(call(t), &runtimeapi.VersionRequest{})
	must(t, err, "Version")
	testbed.Same(t, v.GetVersion(), "0.1.0", "the kubelet demands 0.1.0: version is")
	testbed.Same(t, v.GetRuntimeApiVersion(), "v1", "runtime_api_version is")
	if v.GetRuntimeName() == "" || v.GetRuntimeVersion() == "" {
		t.Errorf("runtime_name %q and runtime_version %q must both be set", v.GetRuntimeName(), v.GetRuntimeVersion())
	}
	if n.Berth && v.GetRuntimeName() != "berth" {
		t.Errorf("runtime_name is %q: it is part of every containerID in the API and must never change", v.GetRuntimeName())
	}
}

func statusConditions(t *testing.T, n *node) {
	r, err := n.Runtime.Status(call(t), &runtimeapi.StatusRequest{})
	must(t, err, "Status")
	got := map[string]bool{}
	for _, c := range r.GetStatus().GetConditions() {
		got[c.GetType()] = c.GetStatus()
	}
	for _, want := range []string{"RuntimeReady", "NetworkReady"} {
		if ok, there := got[want]; !there || !ok {
			t.Errorf("condition %s: there %v, status %v", want, there, ok)
		}
	}
	testbed.Same(t, len(r.GetInfo()), 0, "entries though verbose was not asked for: info has")
	if r.GetFeatures() == nil {
		t.Error("features is nil: the kubelet then takes every feature as absent")
	}
}

func statusFast(t *testing.T, n *node) {
	began := time.Now()
	_, err := n.Runtime.Status(call(t), &runtimeapi.StatusRequest{})
	must(t, err, "Status")
	if d, most := time.Since(began), patience.Of(time.Second); d > most {
		t.Errorf("Status took %v, want at most %v", d, most)
	}
}

func statusVerbose(t *testing.T, n *node) {
	r, err := n.Runtime.Status(call(t), &runtimeapi.StatusRequest{Verbose: true})
	must(t, err, "Status")
	if len(r.GetInfo()) == 0 {
		t.Error("info is empty though verbose was asked for")
	}
	if !n.Berth {
		return // containerd puts bare strings beside its JSON
	}
	for k, v := range r.GetInfo() {
		if !json.Valid([]byte(v)) {
			t.Errorf("info[%q] is not JSON: %s", k, clip([]byte(v)))
		}
	}
}

func statusHandlers(t *testing.T, n *node) {
	r, err := n.Runtime.Status(call(t), &runtimeapi.StatusRequest{})
	must(t, err, "Status")
	seen := map[string]int{}
	for _, h := range r.GetRuntimeHandlers() {
		seen[h.GetName()]++
	}
	for name, times := range seen {
		if times != 1 {
			t.Errorf("handler %q is listed %d times", name, times)
		}
	}
	for _, want := range []string{"", n.Handler} {
		if seen[want] == 0 {
			t.Errorf("handler %q is not in runtime_handlers %v", want, seen)
		}
	}
	if len(seen) < 2 {
		t.Errorf("runtime_handlers is %v: the default must be listed under its own name too", seen)
	}
}

// featureChecks maps each feature's name in the CRI to the check that proves it.
var featureChecks = map[string]string{
	"supplemental_groups_policy":   "Process/supplemental groups, strict",
	"mount_options":                "Mounts/options of mounts",
	"user_namespaces_host_network": "UserNamespaces/on the host's network",
	"recursive_read_only_mounts":   "Mounts/recursive read-only",
	"user_namespaces":              "UserNamespaces/a mapped volume belongs to root on both sides",
}

// statusFeatures uses reflection, so that it also finds flags that a later CRI adds.
func statusFeatures(t *testing.T, n *node) {
	node, handler := n.features(t)
	for _, announced := range []struct {
		flags    protoreflect.Message
		ofTarget bool
	}{{node.ProtoReflect(), false}, {handler.ProtoReflect(), true}} {
		announced.flags.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
			c, known := n.checks[featureChecks[string(f.Name())]]
			if !known {
				t.Errorf("%s is announced, and no check is named for it", f.Name())
			}
			for _, a := range c.needs {
				if why, lacks := n.Lacks[a]; lacks && announced.ofTarget {
					t.Errorf("%s is announced, and the target lacks %s: %s", f.Name(), a, why)
				}
			}
			return true
		})
	}
}

func runtimeConfigStable(t *testing.T, n *node) {
	var first *runtimeapi.RuntimeConfigResponse
	for i := range 3 {
		r, err := n.Runtime.RuntimeConfig(call(t), &runtimeapi.RuntimeConfigRequest{})
		must(t, err, "RuntimeConfig")
		if r.GetLinux() == nil {
			t.Fatal("linux is nil: the kubelet would keep its own idea of the cgroup driver")
		}
		if i == 0 {
			first = r
		} else if !proto.Equal(first, r) {
			t.Fatalf("answer %d is %v, the first was %v", i+1, r, first)
		}
	}
}

func updateRuntimeConfig(t *testing.T, n *node) {
	for _, cidr := range []string{"", "10.250.0.0/24", "10.250.0.0/24,fd00:250::/64"} {
		_, err := n.Runtime.UpdateRuntimeConfig(call(t), &runtimeapi.UpdateRuntimeConfigRequest{
			RuntimeConfig: &runtimeapi.RuntimeConfig{NetworkConfig: &runtimeapi.NetworkConfig{PodCidr: cidr}},
		})
		must(t, err, "UpdateRuntimeConfig "+cidr)
	}
}

func rightRuntime(t *testing.T, n *node) {
	p := n.pod(t)
	c := p.start(t, forever())
	n.Ran(t, Running{
		SandboxID: p.ID, ContainerID: c.ID,
		Exec: func(t *testing.T, cmd ...string) string { t.Helper(); return c.exec(t, cmd...) },
	})
	testbed.Same(t, p.status(t).GetRuntimeHandler(), n.Handler, "PodSandboxStatus.runtime_handler is")
}

// RanByOCIRuntime checks that the runtime, with its own state directory, runs the container, and
// that the process that the runtime reports has the container's mount namespace. Only the runtime
// that created the container can report it.
func RanByOCIRuntime(binary, root string) func(*testing.T, Running) {
	return func(t *testing.T, c Running) {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), binary, "--root", root, "state", c.ContainerID).CombinedOutput()
		if err != nil {
			t.Fatalf("%s does not know container %s: %v: %s", binary, c.ContainerID, err, out)
		}
		var state struct {
			ID     string `json:"id"`
			PID    int    `json:"pid"`
			Status string `json:"status"`
		}
		if err := json.Unmarshal(out, &state); err != nil {
			t.Fatalf("%s state: %v: %s", binary, err, out)
		}
		if state.ID != c.ContainerID || state.Status != "running" {
			t.Errorf("%s says %+v", binary, state)
		}
		host, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", state.PID))
		testbed.Mustf(t, err, "the process that %s names", binary)
		if inside := strings.TrimSpace(c.Exec(t, "readlink", "/proc/1/ns/mnt")); inside != host {
			t.Errorf("mount namespace is %s inside and %s in the process that %s names", inside, host, binary)
		}
	}
}

// RanByGVisor checks the kernel that the container sees: gVisor's version is 4.4.0, or
// 4.19.0-gvisor since 2026, and its kernel log has the word gVisor. The runtime must know the
// container too.
func RanByGVisor(binary, root string) func(*testing.T, Running) {
	return func(t *testing.T, c Running) {
		t.Helper()
		if got := strings.TrimSpace(c.Exec(t, "uname", "-r")); got != "4.4.0" && !strings.HasSuffix(got, "-gvisor") {
			t.Errorf("uname -r says %s inside", got)
		}
		testbed.Contains(t, c.Exec(t, "dmesg"), "gVisor", "dmesg does not name gVisor")
		out, err := exec.CommandContext(t.Context(), binary, "--root", root, "state", c.ContainerID).CombinedOutput()
		if err != nil || !strings.Contains(string(out), `"running"`) {
			t.Errorf("%s does not know container %s: %v: %s", binary, c.ContainerID, err, out)
		}
	}
}

// RanByShim finds the container's process on the host by its mount namespace, and checks that its
// parent is a shim with that name and the sandbox's id among its arguments.
func RanByShim(name string) func(*testing.T, Running) {
	return func(t *testing.T, c Running) {
		t.Helper()
		inside := strings.TrimSpace(c.Exec(t, "readlink", "/proc/1/ns/mnt"))
		namespaces, err := filepath.Glob("/proc/[0-9]*/ns/mnt")
		testbed.Must(t, err)
		for _, namespace := range namespaces {
			if host, err := os.Readlink(namespace); err != nil || host != inside {
				continue // not in the container, or it has exited
			}
			process := filepath.Dir(filepath.Dir(namespace))
			parent := parentOf(t, process)
			if filepath.Base(parent[0]) == name && slices.Contains(parent, c.SandboxID) {
				return
			}
			t.Fatalf("process %s of the container was started by %q", filepath.Base(process), parent)
		}
		t.Fatalf("no process of the host is in mount namespace %s", inside)
	}
}

// parentOf returns the command line of a process's parent.
func parentOf(t *testing.T, process string) []string {
	t.Helper()
	status, err := os.ReadFile(process + "/status")
	must(t, err, "read a process of the container")
	_, rest, _ := strings.Cut(string(status), "\nPPid:")
	parent, _, _ := strings.Cut(rest, "\n")
	line, err := os.ReadFile(filepath.Join("/proc", strings.TrimSpace(parent), "cmdline"))
	must(t, err, "read the parent of a process of the container")
	return strings.Split(string(line), "\x00")
}
