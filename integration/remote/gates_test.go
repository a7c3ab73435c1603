package remote

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/berth-cri/berth/integration/testbed"
)

// gates delay runtimes, CNI plugins and the registry, so that a daemon can be stopped or killed
// while it waits for them. The name of a gate has the ID of a container for its start, the name of
// a pod for ADD and DEL of its network, and the name of a repository for its pulls.
type gates struct{ dir string }

func newGates(t *testing.T) *gates {
	t.Helper()
	g := &gates{dir: t.TempDir()}
	for _, sub := range []string{"hold", "at", "bin"} {
		if err := os.Mkdir(filepath.Join(g.dir, sub), 0o755); err != nil { //nolint:gosec // containers read it
			t.Fatal(err)
		}
	}
	if err := os.Chmod(g.dir, 0o755); err != nil { //nolint:gosec // containers read it
		t.Fatal(err)
	}
	return g
}

// variable is in the environment of each program that a gate has delayed.
const variable = "BERTH_CHAOS_GATE="

// gateScript is a script in front of a program. %[1]s sets the variable gate.
const gateScript = `#!/bin/sh
%[1]s
if [ -n "$gate" ] && [ -e %[2]q/hold/"$gate" ]; then
	export BERTH_CHAOS_GATE=%[2]q
	: >%[2]q/at/"$gate"
	while [ -e %[2]q/hold/"$gate" ]; do sleep 0.02; done
fi
exec %[3]q "$@"
`

func (g *gates) program(t *testing.T, path, gate, behind string) {
	t.Helper()
	if err := os.WriteFile(path, fmt.Appendf(nil, gateScript, gate, g.dir, behind), 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
}

// runtime returns a runtime whose starts of containers can be delayed.
func (g *gates) runtime(t *testing.T, real string) string {
	t.Helper()
	path := filepath.Join(g.dir, "bin", "runc")
	g.program(t, path, `for gate; do :; done; case " $* " in *" create "*|*" run "*) ;; *) gate= ;; esac`, real)
	return path
}

// network returns a network whose ADD and DEL can be delayed.
func (g *gates) network(t *testing.T) *testbed.CNI {
	t.Helper()
	cni := testbed.NewCNI(t)
	plugins, err := os.ReadDir(cni.BinDir)
	testbed.Must(t, err)
	bin := t.TempDir()
	for _, p := range plugins {
		if p.Name() == "bridge" {
			continue
		}
		testbed.Must(t, os.Symlink(filepath.Join(cni.BinDir, p.Name()), filepath.Join(bin, p.Name())))
	}
	g.program(t, filepath.Join(bin, "bridge"), `pod=${CNI_ARGS#*K8S_POD_NAME=}; gate=$CNI_COMMAND-${pod%%;*}`, filepath.Join(cni.BinDir, "bridge"))
	cni.BinDir = bin
	return cni
}

// pulls delays pulls from a registry.
func (g *gates) pulls(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		repository, _, manifest := strings.Cut(strings.TrimPrefix(r.URL.Path, "/v2/"), "/manifests/")
		gate := "pull-" + strings.ReplaceAll(repository, "/", "-")
		if manifest && r.Method != http.MethodPut && g.held(gate) {
			if err := os.WriteFile(filepath.Join(g.dir, "at", gate), nil, 0o600); err != nil {
				panic(err)
			}
			if err := wait.PollUntilContextCancel(r.Context(), 20*time.Millisecond, true, func(context.Context) (bool, error) { return !g.held(gate), nil }); err != nil {
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

func (g *gates) held(gate string) bool {
	_, err := os.Stat(filepath.Join(g.dir, "hold", gate))
	return err == nil
}

func (g *gates) hold(t *testing.T, gate string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(g.dir, "hold", gate), nil, 0o644); err != nil { //nolint:gosec // containers read it
		t.Fatal(err)
	}
}

// arrived is whether a program or a pull waits at a gate.
func (g *gates) arrived(gate string) bool {
	_, err := os.Stat(filepath.Join(g.dir, "at", gate))
	return err == nil
}

// open opens all gates.
func (g *gates) open(t *testing.T) {
	t.Helper()
	for _, sub := range []string{"hold", "at"} {
		entries, err := os.ReadDir(filepath.Join(g.dir, sub))
		testbed.Must(t, err)
		for _, e := range entries {
			testbed.Must(t, os.Remove(filepath.Join(g.dir, sub, e.Name())))
		}
	}
}

// passed waits until all programs that were delayed have exited. They run on after their daemon was
// killed, and must not run any more when it starts again.
func (g *gates) passed(t *testing.T) {
	t.Helper()
	testbed.Eventually(t, patience, func() error {
		environments, err := filepath.Glob("/proc/[0-9]*/environ")
		if err != nil {
			return err
		}
		for _, path := range environments {
			if environment, err := os.ReadFile(path); err == nil && bytes.Contains(environment, []byte(variable+g.dir)) {
				return fmt.Errorf("the program of %s has not exited", path)
			}
		}
		return nil
	})
}
