package main

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/berth-cri/berth/internal/test"
)

// What only some programs have a use for stays out of the others: it would be loaded
// on every node, by every pod's supervisor.
func TestWhatIsNotLinked(t *testing.T) {
	const module = "github.com/berth-cri/berth/"
	client := []string{"k8s.io/api/", "k8s.io/client-go", module + "contrib"}
	screen := append([]string{"charm.land/", "github.com/charmbracelet/"}, client...)
	for program, forbidden := range map[string][]string{"berth": client, "berth-shim": screen, "berth-pause": screen} {
		t.Run(program, func(t *testing.T) {
			out := test.Value(exec.CommandContext(t.Context(), "go", "list", "-deps", module+"cmd/"+program).Output())(t)
			packages := strings.Fields(string(out))
			if len(packages) == 0 {
				t.Fatal("it is made of nothing")
			}
			for _, p := range packages {
				for _, no := range forbidden {
					if strings.HasPrefix(p, no) {
						t.Errorf("it is linked to %s", p)
					}
				}
			}
		})
	}
}
