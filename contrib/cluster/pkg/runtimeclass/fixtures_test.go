package runtimeclass

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-cri/berth/internal/test"
)

var update = flag.Bool("update", false, "write the golden files")

// golden compares a text with the .golden file of a fixture.
func golden(t *testing.T, fixture, got string) {
	t.Helper()
	file := strings.TrimSuffix(fixture, filepath.Ext(fixture)) + ".golden"
	if *update {
		test.Must(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want := test.Value(os.ReadFile(file))(t)
	if got != string(want) {
		t.Errorf("the result differs from %s; got\n%s", file, got)
	}
}

// fixtures returns the fixtures of a directory of testdata, without their files of handlers.
func fixtures(t *testing.T, dir string) []string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join("testdata", dir, "*.yaml"))
	if err != nil || len(all) == 0 {
		t.Fatalf("find fixtures in %s: %v, %v", dir, all, err)
	}
	var files []string
	for _, f := range all {
		if !strings.HasSuffix(f, ".handlers.yaml") {
			files = append(files, f)
		}
	}
	return files
}

func read(t *testing.T, file string) []Object {
	t.Helper()
	text := test.Value(os.ReadFile(file))(t)
	return test.Value(Parse(filepath.Base(file), text))(t)
}

func TestLintFixtures(t *testing.T) {
	for _, file := range fixtures(t, "lint") {
		t.Run(filepath.Base(file), func(t *testing.T) {
			var b strings.Builder
			for _, f := range Lint(Classes(read(t, file)), LintOptions{}) {
				fmt.Fprintf(&b, "%s: %s: %s: %s\n", f.Where, f.Severity, f.Rule, f.Message)
				if f.Advice != "" {
					fmt.Fprintf(&b, "  %s\n", f.Advice)
				}
			}
			golden(t, file, b.String())
		})
	}
}

func TestAdmissionFixtures(t *testing.T) {
	for _, file := range fixtures(t, "admission") {
		t.Run(filepath.Base(file), func(t *testing.T) {
			objects := read(t, file)
			var b strings.Builder
			for _, p := range pods(objects) {
				a := Admit(p.Pod, Classes(objects))
				fmt.Fprintf(&b, "%s\n", p.Owner)
				if a.Rejection != "" {
					fmt.Fprintf(&b, "  rejected: %s\n", a.Rejection)
					continue
				}
				fmt.Fprintf(&b, "  overhead: %s\n  nodeSelector: %s\n  tolerations: %s\n", compact(t, a.Pod.Spec.Overhead), compact(t, a.Pod.Spec.NodeSelector), compact(t, a.Pod.Spec.Tolerations))
			}
			golden(t, file, b.String())
		})
	}
}

func pods(objects []Object) (all []Pod) {
	for _, o := range objects {
		if o.Pod != nil {
			all = append(all, *o.Pod)
		}
	}
	return all
}

// integration/policy also sends these pods to a real API server, with policies from the same
// handlers.
func TestFitFixtures(t *testing.T) {
	for _, file := range fixtures(t, "fit") {
		t.Run(filepath.Base(file), func(t *testing.T) {
			known := strings.TrimSuffix(file, ".yaml") + ".handlers.yaml"
			text := test.Value(os.ReadFile(known))(t)
			handlers := test.Value(ParseInventory(known, text))(t)
			objects := read(t, file)
			var b strings.Builder
			for _, p := range pods(objects) {
				fmt.Fprintf(&b, "%s\n", p.Owner)
				for _, r := range Requirements(p.Pod) {
					fmt.Fprintf(&b, "  needs %s: %s\n", r.Capability, r)
				}
				for _, h := range handlers {
					v := Fit(p.Pod, h)
					fmt.Fprintf(&b, "  %s: %s\n", h.Name, strings.Join(append([]string{string(v.Fits)}, v.Reasons()...), "; "))
				}
			}
			golden(t, file, b.String())
		})
	}
}

func compact(t *testing.T, v any) string {
	t.Helper()
	text := test.Value(json.Marshal(v))(t)
	return string(text)
}
