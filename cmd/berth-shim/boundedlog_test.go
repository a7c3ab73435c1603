package main

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

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
			t.Errorf("%s contains %q, want %q", filepath.Base(name), got, want)
		}
	}
}

// No entry is lost while a new file cannot be opened. A later write opens the new file.
func TestBoundedLogWithoutDescriptors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	l := test.Value(openBoundedLog(path, 10))(t)
	test.Must(t, test.Err(l.Write([]byte("12345\n"))))
	var limit unix.Rlimit
	test.Must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	test.Must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Max: limit.Max}))
	_, err := l.Write([]byte("full\n"))
	test.Must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	test.Checkf(t, err, "without descriptors")
	for _, line := range []string{"abc\n", "def\n"} {
		test.Must(t, test.Err(l.Write([]byte(line))))
	}
	for name, want := range map[string]string{path: "abc\ndef\n", path + ".old": "12345\nfull\n"} {
		if got, _ := os.ReadFile(name); string(got) != want {
			t.Errorf("%s holds %q, want %q", filepath.Base(name), got, want)
		}
	}
}

// begun is called with each new file, so that other writers of the log can switch to it.
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
		t.Errorf("begun was called %d times; the last file contains %q", begun, got)
	}
}
