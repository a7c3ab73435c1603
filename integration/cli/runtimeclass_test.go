package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/berth-cri/berth/integration/testbed"
)

// TestRuntimeClassesOfARunningDaemon generates classes from a daemon's handlers, lints them, and
// finds the classes that fit a pod.
func TestRuntimeClassesOfARunningDaemon(t *testing.T) {
	runsc := testbed.Part(t, testbed.Runsc)
	n := newNode(t)
	n.berth(t, 0, "handler", "add", "gvisor", "--path", runsc)

	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		testbed.Must(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	handlers := func() string {
		out, _ := n.berth(t, 0, "capabilities", "-o", "json")
		return write("handlers.json", out)
	}
	out, _ := n.classes(t, 0, "generate", "--toleration", "sandboxes:NoSchedule", "--handlers", handlers())
	has(t, out, "handler: runc\n", "handler: gvisor\n", "feature.node.kubernetes.io/handler.gvisor.present: \"true\"\n", "feature.node.kubernetes.io/handler.gvisor.pods: \"1\"\n", "# overhead: not measured", "key: sandboxes\n")
	classes := write("classes.yaml", out)
	n.classes(t, 0, "lint", classes, "--handlers", handlers(), "--strict")

	pod := write("pod.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  hostPID: true\n  runtimeClassName: gvisor\n  containers: [{name: c, image: i}]\n")
	// The pod names the class of gVisor, which cannot run the pod. runc could.
	out, mistakes := n.classes(t, 3, "fit", "-f", pod, "--handlers", handlers(), "--classes", classes, "-o", "json")
	has(t, mistakes, "1 pod of 1 cannot run as written")
	var fit struct {
		Pods []struct {
			Candidates []struct {
				Class, Handler, Fits string
				Own                  bool
			}
		}
	}
	if err := json.Unmarshal([]byte(out), &fit); err != nil || len(fit.Pods) != 1 || len(fit.Pods[0].Candidates) != 3 {
		t.Fatalf("%v: %s", err, out)
	}
	first, last := fit.Pods[0].Candidates[0], fit.Pods[0].Candidates[2]
	if first.Handler != "runc" || first.Fits != "yes" || last.Class != "gvisor" || last.Fits != "no" || !last.Own {
		t.Errorf("the candidates are %s, want runc first, and the pod's own class last", out)
	}

	n.berth(t, 0, "handler", "cordon", "gvisor", "--reason", "for the test")
	out, mistakes = n.classes(t, 0, "generate", "-o", "json", "--handlers", handlers())
	has(t, mistakes, "note: handler gvisor is cordoned; no class is generated")
	has(t, out, `"handler": "runc"`)
	out, _ = n.classes(t, 3, "lint", classes, "--handlers", handlers(), "--strict")
	has(t, out, "the handler is cordoned: for the test")
	n.berth(t, 0, "handler", "rm", "gvisor")
	out, mistakes = n.classes(t, 3, "lint", classes, "--handlers", handlers())
	has(t, out, `handler "gvisor" does not exist`, "the handlers are runc")
	has(t, mistakes, "error: 1 error and 0 warnings in 2 RuntimeClasses")
}
