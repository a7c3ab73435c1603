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

// gates hold up what daemons have others do, so that a daemon can be struck in
// the middle of it: starts of a container by its id, ADD and DEL of a pod's
// network by its name, and pulls by the name of a repository.
type gates struct{ dir string }

func newGates(t *testing.T) *gates {
	t.Helper()
	g := &gates{dir: t.TempDir()}
	for _, sub := range []string{"hold", "at", "bin"} {
		if err := os.Mkdir(filepath.Join(g.dir, sub), 0o755); err != nil { //nolint:gosec // containers look into it
			t.Fatal(err)
		}
	}
	if err := os.Chmod(g.dir, 0o755); err != nil { //nolint:gosec // as above
		t.Fatal(err)
	}
	return g
}

// variable is in the environment of what went through a gate.
const variable = "BERTH_CHAOS_GATE="

// gateScript stands before a program. %[1]s sets gate.
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
	if err := os.WriteFile(path, fmt.Appendf(nil, gateScript, gate, g.dir, behind), 0o700); err != nil { //nolint:gosec // it is a program
		t.Fatal(err)
	}
}

// runtime is one whose starts can be held up.
func (g *gates) runtime(t *testing.T, real string) string {
	t.Helper()
	path := filepath.Join(g.dir, "bin", "runc")
	g.program(t, path, `for gate; do :; done; case " $* " in *" create "*|*" run "*) ;; *) gate= ;; esac`, real)
	return path
}

// network is one whose ADD and DEL can be held up.
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

// pulls holds up pulls of repositories.
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
	if err := os.WriteFile(filepath.Join(g.dir, "hold", gate), nil, 0o644); err != nil { //nolint:gosec // containers look at it
		t.Fatal(err)
	}
}

// arrived says whether something is held up.
func (g *gates) arrived(gate string) bool {
	_, err := os.Stat(filepath.Join(g.dir, "at", gate))
	return err == nil
}

// open lets everything through.
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

// passed waits until what was held up has ended: a program whose daemon was killed
// goes on, and a daemon that comes back is not to meet it.
func (g *gates) passed(t *testing.T) {
	t.Helper()
	testbed.Eventually(t, patience, func() error {
		environments, err := filepath.Glob("/proc/[0-9]*/environ")
		if err != nil {
			return err
		}
		for _, path := range environments {
			if environment, err := os.ReadFile(path); err == nil && bytes.Contains(environment, []byte(variable+g.dir)) {
				return fmt.Errorf("%s is of a program that has not ended", path)
			}
		}
		return nil
	})
}
