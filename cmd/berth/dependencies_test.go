package main

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/berth-cri/berth/internal/test"
)

// Packages that a program does not need must not be linked into it: every node and every
// pod's supervisor would load them.
func TestWhatIsNotLinked(t *testing.T) {
	const module = "github.com/berth-cri/berth/"
	client := []string{"k8s.io/api/", "k8s.io/client-go", module + "contrib"}
	screen := append([]string{"charm.land/", "github.com/charmbracelet/"}, client...)
	for program, forbidden := range map[string][]string{"berth": client, "berth-shim": screen, "berth-pause": screen} {
		t.Run(program, func(t *testing.T) {
			out := test.Value(exec.CommandContext(t.Context(), "go", "list", "-deps", module+"cmd/"+program).Output())(t)
			packages := strings.Fields(string(out))
			if len(packages) == 0 {
				t.Fatal("the program has no packages")
			}
			for _, p := range packages {
				for _, no := range forbidden {
					if strings.HasPrefix(p, no) {
						t.Errorf("the program is linked with %s", p)
					}
				}
			}
		})
	}
}
