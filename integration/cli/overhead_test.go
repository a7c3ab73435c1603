package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// TestOverheadThatIsDeclared runs pods that declare less overhead than their shim uses, and
// generates classes with the measured overhead.
func TestOverheadThatIsDeclared(t *testing.T) {
	shim := testbed.Part(t, testbed.RuncShim)
	n := newNode(t)
	n.berth(t, 0, "handler", "add", "driven", "--path", shim, "--set", "options.BinaryName="+testbed.Part(t, testbed.Runc))
	out, _ := n.berth(t, 0, "handler", "overhead")
	has(t, out, "no data: it has no pods")

	for range 2 {
		n.Client.RunPod(t, testbed.PodSpec{
			Handler: "driven", Image: n.Image, Command: []string{"sleep", "600"},
			Sandbox: func(c *runtimeapi.PodSandboxConfig) {
				c.Linux.Overhead = &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 1 << 20}
			},
		})
	}
	// berth repeats the answer from before the pods for a minute, and treats a process younger than a
	// second as a call of a runtime.
	testbed.Eventually(t, 2*time.Minute, func() error {
		command := n.command(t.Context(), "handler", "overhead", "driven")
		out, err := command.CombinedOutput()
		if command.ProcessState.ExitCode() != 3 {
			return fmt.Errorf("berth handler overhead: %v, want exit status 3: %s", err, out)
		}
		return nil
	})
	out, warning := n.berth(t, 3, "handler", "overhead")
	has(t, out, "1.0Mi, exceeded")
	has(t, warning, "handler driven: overhead is ", "but its pods declare 1Mi")
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, "runc ") && strings.Contains(line, "exceeded") {
			t.Errorf("a handler without pods is marked as exceeded: %s", line)
		}
	}
	out, _ = n.berth(t, 0, "handler", "overhead", "driven", "--pod-fixed")
	has(t, out, "# p95 of handler driven, pods measured: 2", "memory: ")

	dir := t.TempDir()
	classes, measured := filepath.Join(dir, "classes.yaml"), filepath.Join(dir, "measured.yaml")
	for _, made := range []struct {
		file      string
		want      int
		by        func(t *testing.T, want int, arguments ...string) (stdout, stderr string)
		arguments []string
	}{
		{measured, 3, n.berth, []string{"handler", "overhead", "-o", "yaml"}},
		{classes, 0, n.classes, []string{"generate", "--handlers", measured}},
	} {
		out, _ := made.by(t, made.want, made.arguments...)
		testbed.Must(t, os.WriteFile(made.file, []byte(out), 0o600))
	}
	n.classes(t, 0, "lint", classes, "--measurements", measured, "--strict")
	text, err := os.ReadFile(classes)
	testbed.Must(t, err)
	has(t, string(text), "# overhead: measured, p95 of ")
}
