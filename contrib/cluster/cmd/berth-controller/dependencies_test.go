package main

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/berth-cri/berth/internal/test"
)

// TestWhatIsNotLinked fails if the controller links large packages that it does not need.
func TestWhatIsNotLinked(t *testing.T) {
	out := test.Value(exec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output())(t)
	packages := strings.Fields(string(out))
	if len(packages) == 0 {
		t.Fatal("go list prints no packages")
	}
	for _, p := range packages {
		for _, no := range []string{"k8s.io/cli-runtime", "sigs.k8s.io/kustomize", "k8s.io/cri-api", "github.com/berth-cri/berth/pkg/engine", "github.com/berth-cri/berth/contrib/cluster/pkg/runtimeclass"} {
			if strings.HasPrefix(p, no) {
				t.Errorf("the controller links %s", p)
			}
		}
	}
}
