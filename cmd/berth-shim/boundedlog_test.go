package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/berth-cri/berth/internal/test"
)

func TestBoundedLogBeginsAnewAndKeepsTheOneBefore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	test.Must(t, os.WriteFile(path, []byte("12345\n"), 0o600))
	l := test.Value(openBoundedLog(path, 10))(t)
	for _, line := range []string{"abc\n", "def\n", "ghi\n"} {
		test.Must(t, test.Err(l.Write([]byte(line))))
	}
	for name, want := range map[string]string{path: "def\nghi\n", path + ".old": "12345\nabc\n"} {
		if got, _ := os.ReadFile(name); string(got) != want {
			t.Errorf("%s holds %q, want %q", filepath.Base(name), got, want)
		}
	}
}

// What else writes where the log does follows it.
func TestBoundedLogTellsOfEachFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	l := test.Value(openBoundedLog(path, 10))(t)
	begun := 0
	l.begun = func(f *os.File) {
		begun++
		test.Check(t, test.Err(f.WriteString("crash\n")))
	}
	for range 4 {
		test.Must(t, test.Err(l.Write([]byte("entry\n"))))
	}
	if got, _ := os.ReadFile(path); begun != 3 || string(got) != "crash\nentry\n" {
		t.Errorf("%d were begun; the last holds %q", begun, got)
	}
}
