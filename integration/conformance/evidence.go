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

	"github.com/berth-cri/berth/integration/testbed"
)

// RanByOCIRuntime asks the runtime itself, with its own state directory, whether
// it runs the container, and looks at the process that it names: its mount
// namespace must be the container's. Only the runtime that made the container
// can answer.
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
		if err != nil {
			t.Fatalf("the process that %s names: %v", binary, err)
		}
		if inside := strings.TrimSpace(c.Exec(t, "readlink", "/proc/1/ns/mnt")); inside != host {
			t.Errorf("mount namespace is %s inside and %s in the process that %s names", inside, host, binary)
		}
	}
}

// RanByGVisor asks the kernel that the container sees: gVisor's says 4.4.0, or
// 4.19.0-gvisor since 2026, and tells in its log what it is, which no Linux does. The runtime must know the
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

// RanByShim looks for the container's processes on the host, by the mount
// namespace that they see inside, and at what started them: a shim with that
// name, and with the sandbox's id as its own.
func RanByShim(name string) func(*testing.T, Running) {
	return func(t *testing.T, c Running) {
		t.Helper()
		inside := strings.TrimSpace(c.Exec(t, "readlink", "/proc/1/ns/mnt"))
		namespaces, err := filepath.Glob("/proc/[0-9]*/ns/mnt")
		if err != nil {
			t.Fatal(err)
		}
		for _, namespace := range namespaces {
			if host, err := os.Readlink(namespace); err != nil || host != inside {
				continue // another's, or it ended meanwhile
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
