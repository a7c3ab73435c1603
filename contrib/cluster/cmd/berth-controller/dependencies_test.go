package main

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/berth-cri/berth/internal/test"
)

// TestWhatIsNotLinked keeps the controller's image small.
func TestWhatIsNotLinked(t *testing.T) {
	out := test.Value(exec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output())(t)
	packages := strings.Fields(string(out))
	if len(packages) == 0 {
		t.Fatal("it is made of nothing")
	}
	for _, p := range packages {
		for _, no := range []string{"k8s.io/cli-runtime", "sigs.k8s.io/kustomize", "k8s.io/cri-api", "github.com/berth-cri/berth/pkg/engine", "github.com/berth-cri/berth/contrib/cluster/pkg/runtimeclass"} {
			if strings.HasPrefix(p, no) {
				t.Errorf("it is linked to %s", p)
			}
		}
	}
}
