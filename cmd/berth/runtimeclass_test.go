package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRuntimeclassWithoutThePlugin(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	code, stdout, stderr := ran(t, "runtimeclass", "lint", "classes.yaml")
	if code != 2 || stdout != "" || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, "install kubectl-berth") {
		t.Errorf("exit status %d\n%s\n%s", code, stdout, stderr)
	}
}

// The plugin gets the arguments as they are, and its exit status is the command's.
func TestRuntimeclassRunsThePlugin(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	// Renamed into place: a file that any process holds open for writing cannot be run.
	path := filepath.Join(dir, plugin)
	if err := os.WriteFile(path+".new", []byte("#!/bin/sh\nprintf '[%s]' \"$@\"\necho said >&2\nexit 3\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]string{
		"lint|--strict|a b|--help": "[lint][--strict][a b][--help]",
		"fit|pod.yaml":             "[fit][--local][pod.yaml]",
	} {
		code, stdout, stderr := ran(t, append([]string{"runtimeclass"}, strings.Split(line, "|")...)...)
		if code != 3 || stdout != want || stderr != "said\n" {
			t.Errorf("%s: exit status %d, %q, %q", line, code, stdout, stderr)
		}
	}
}
