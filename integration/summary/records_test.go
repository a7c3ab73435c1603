package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// tests is a package with a test for each outcome. go test itself writes the records of these
// tests.
const tests = `package p

import (
	"fmt"
	"strings"
	"testing"
)

func TestGood(t *testing.T) { t.Log("well") }

func TestBad(t *testing.T) {
	fmt.Println("time=2026 level=info msg=noise")
	t.Run("sub", func(t *testing.T) {
		t.Error("first line\nsecond line")
		t.Error("another")
	})
	t.Run("good", func(t *testing.T) {})
}

func TestLog(t *testing.T) {
	t.Log("the end of a log:\n" + strings.Repeat("noise\n", 50))
	t.Error("what matters\ntime=2026 level=info msg=noise\ntime=2026 level=error msg=grave\nwhy it ended")
}

func TestSkipped(t *testing.T) {
	for _, name := range []string{"a", "b"} {
		t.Run(name, func(t *testing.T) { t.Skip("lacks a thing") })
	}
	t.Run("c", func(t *testing.T) { t.Log("first"); t.Skip("lacks another") })
}

func TestZPanics(t *testing.T) { panic("oh") }
`

func record(t *testing.T, files map[string]string, args ...string) string {
	t.Helper()
	dir := t.TempDir()
	files["go.mod"] = "module example.test/p\n\ngo 1.24\n"
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"test", "-json", "."}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off")
	out, err := cmd.Output()
	if err == nil {
		t.Fatalf("the tests passed: %s", out)
	}
	path := filepath.Join(dir, "out.json")
	if err := os.WriteFile(path, append(out, `{"Action":"cut o`...), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func summary(t *testing.T, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	if err := run(&out, args); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestSummary(t *testing.T) {
	path := record(t, map[string]string{"p_test.go": tests})
	if got, want := summary(t, "skips", path, path+".absent"), "   2 skipped: lacks a thing\n   1 skipped: lacks another\n"; got != want {
		t.Errorf("the skips are\n%s\nwant\n%s", got, want)
	}
	got := summary(t, "failures", path)
	for _, want := range []string{
		"FAIL example.test/p TestBad/sub\n    p_test.go:14: first line\n    second line\n    p_test.go:15: another\n",
		"FAIL example.test/p TestLog\n    p_test.go:21: the end of a log:\n    noise\n", "p_test.go:22: what matters\n    time=2026 level=error msg=grave\n    why it ended\n",
		"FAIL example.test/p TestZPanics\n    panic: oh",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("failures lack %q:\n%s", want, got)
		}
	}
	for _, foul := range []string{"TestGood", "TestBad\n", "TestSkipped", "level=info", "FAIL example.test/p\n"} {
		if strings.Contains(got, foul) {
			t.Errorf("failures have %q:\n%s", foul, got)
		}
	}
	if n := strings.Count(got, "noise"); n > maxItem {
		t.Errorf("the failures have %d lines of one log", n)
	}
}

const unsteady = `package p

import (
	"os"
	"testing"
)

func TestRuns(t *testing.T) {
	t.Run("good", func(t *testing.T) {})
	t.Run("unsteady", func(t *testing.T) {
		if _, err := os.Stat("again"); err != nil {
			t.Error("not this time")
		}
	})
	t.Run("bad", func(t *testing.T) { t.Error("never") })
	t.Run("later", func(t *testing.T) { t.Skip("not here") })
}
`

func TestSummaryOfWhatIsRepeated(t *testing.T) {
	path := record(t, map[string]string{"p_test.go": unsteady})
	if got := summary(t, "count", path); got != "1 3 1\n" {
		t.Errorf("the count of the first records is %q", got)
	}
	again := record(t, map[string]string{"p_test.go": unsteady, "again": ""}, "-run", "^TestRuns$/^(unsteady|bad)$")
	if got := summary(t, "count", path, again); got != "2 2 1\n" {
		t.Errorf("the count of both records is %q", got)
	}
	if got := summary(t, "unsteady", path, again); !strings.Contains(got, "UNSTEADY example.test/p TestRuns/unsteady\n    p_test.go:12: not this time\n") ||
		strings.Contains(got, "bad") || strings.Contains(got, "good") {
		t.Errorf("the unsteady tests are\n%s", got)
	}
	if got := summary(t, "failures", path, again); !strings.Contains(got, "TestRuns/bad\n") || strings.Contains(got, "unsteady") {
		t.Errorf("the failures are\n%s", got)
	}
}

func TestSummaryOfWhatDoesNotCompile(t *testing.T) {
	got := summary(t, "failures", record(t, map[string]string{"p_test.go": "package p\n\nvar x = missing\n"}))
	if !strings.Contains(got, "undefined: missing") {
		t.Errorf("the failures are\n%s", got)
	}
}

func TestSummaryRefuses(t *testing.T) {
	for _, args := range [][]string{nil, {"skips"}, {"other", "x"}} {
		if err := run(&bytes.Buffer{}, args); err == nil {
			t.Errorf("%q is accepted, want an error", args)
		}
	}
}
