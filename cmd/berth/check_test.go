package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-cri/berth/configs"
	"github.com/berth-cri/berth/pkg/config"
)

// written makes a directory with a runtime, berth's own binaries and a main
// file, in which $DIR stands for the directory.
func written(t *testing.T, toml string) (dir string, o config.Options) {
	t.Helper()
	dir = t.TempDir()
	for _, name := range []string{"runc", "berth-shim", "berth-pause"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(dir, "config.toml")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(toml, "$DIR", dir)), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	return dir, config.Options{File: file, VendorDir: filepath.Join(dir, "vendor"), SearchPath: []string{dir}}
}

func TestCheck(t *testing.T) {
	const good = "[runtimes.runc]\nruntime_path = \"$DIR/runc\"\n"
	for _, c := range []struct {
		what, toml     string
		code           int
		stdout, stderr string
	}{
		{"good", good, 0, "read $DIR/config.toml\nrunc  oci   $DIR/runc  $DIR/config.toml:1 (default)\n", ""},
		{"discovered", "", 0, "read $DIR/config.toml\nrunc  oci   $DIR/runc  discovered in $DIR (default)\n", ""},
		{"another daemon", good + "[runtimes.legacy]\nendpoint = \"unix:///run/other.sock\"\n", 0, "read $DIR/config.toml\n" +
			"legacy  cri   /run/other.sock  $DIR/config.toml:3\nrunc    oci   $DIR/runc  $DIR/config.toml:1 (default)\n", ""},
		{"two mistakes", good + "snapshoter = 1\n[log]\nlevel = 1\n", 2, "",
			"$DIR/config.toml:3:1: runtimes.runc.snapshoter: unknown key (did you mean \"snapshotter\"?)\n" +
				"$DIR/config.toml:5:1: log.level: must be a string, not an integer\n"},
	} {
		t.Run(c.what, func(t *testing.T) {
			dir, o := written(t, c.toml)
			var stdout, stderr bytes.Buffer
			code := check(o, "table", &stdout, &stderr)
			out, err := strings.ReplaceAll(stdout.String(), dir, "$DIR"), strings.ReplaceAll(stderr.String(), dir, "$DIR")
			if code != c.code || out != c.stdout || err != c.stderr {
				t.Errorf("exit status %d\n%s\n%s", code, out, err)
			}
		})
	}
}

func TestCheckMissesOwnBinaries(t *testing.T) {
	dir, o := written(t, "")
	if err := os.Remove(filepath.Join(dir, "berth-shim")); err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	if code := check(o, "table", &stdout, &stderr); code != exitConfig || !strings.Contains(stderr.String(), "engine.shim_path: berth-shim") {
		t.Errorf("exit status %d: %s", code, stderr.String())
	}
}

func TestConfigDefault(t *testing.T) {
	cmd := newConfigCommand()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetArgs([]string{"default"})
	if err := cmd.Execute(); err != nil || !bytes.Equal(out.Bytes(), configs.Berth) {
		t.Errorf("%v: %s", err, out.String())
	}
}

func TestConfigShow(t *testing.T) {
	dir, o := written(t, "[runtimes.runc]\nruntime_path = \"$DIR/runc\"\n[runtimes.gone]\nruntime_path = \"$DIR/gone\"\n")
	t.Setenv(config.SearchPathEnv, dir)
	cmd := newConfigCommand()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetArgs([]string{"show", "-c", o.File})
	if err := cmd.Execute(); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"[runtimes.runc] # " + o.File + ":1", "# [runtimes.gone] is not served", "socket = \"/run/berth/berth.sock\" # default"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("lacks %q in\n%s", want, out.String())
		}
	}
}

// TestCheckCommandEndsWithItsStatus runs the command in a process of its own.
func TestCheckCommandEndsWithItsStatus(t *testing.T) {
	if os.Getenv("BERTH_TEST_CHECK") != "" {
		cmd := newCheckCommand()
		cmd.SetArgs([]string{"-c", os.Getenv("BERTH_TEST_CHECK")})
		if err := cmd.Execute(); err != nil {
			t.Fatal(err)
		}
		return
	}
	dir, o := written(t, "x = 1\n")
	if code, out := again(t, o.File); code != exitConfig || !strings.Contains(out, "config.toml:1:1: x: unknown key") {
		t.Errorf("exit status %d: %s", code, out)
	}
	if err := os.WriteFile(o.File, []byte("[runtimes.runc]\nruntime_path = \""+dir+"/runc\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, out := again(t, o.File); code != 0 {
		t.Errorf("exit status %d: %s", code, out)
	}
}

// again runs TestCheckCommandEndsWithItsStatus on a file in a new process.
func again(t *testing.T, file string) (code int, output string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run=^TestCheckCommandEndsWithItsStatus$")
	cmd.Env = append(os.Environ(), "BERTH_TEST_CHECK="+file)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}
