package configuration

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/berth-cri/berth/configs"
	"github.com/berth-cri/berth/internal/commandline"
	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/config"
	"github.com/berth-cri/berth/pkg/config/hostfiles"
)

// written creates a directory with a runtime, berth's own binaries and a main
// file with the text toml, in which $DIR is replaced by the directory.
func written(t *testing.T, toml string) (dir string, o config.Options) {
	t.Helper()
	dir = t.TempDir()
	for _, name := range []string{"runc", "berth-shim", "berth-pause"} {
		test.Must(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\necho runc version 1.5.0\n"), 0o700))
	}
	file := filepath.Join(dir, "config.toml")
	test.Must(t, os.WriteFile(file, []byte(strings.ReplaceAll(toml, "$DIR", dir)), 0o600))
	t.Setenv(hostfiles.SearchPathEnv, dir)
	return dir, config.Options{File: file, VendorDir: filepath.Join(dir, "vendor"), SearchPath: []string{dir}}
}

// executed runs a command and returns its exit status and output.
func executed(t *testing.T, c *cobra.Command, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, mistakes bytes.Buffer
	c.SilenceErrors, c.SilenceUsage = true, true
	c.SetArgs(args)
	c.SetOut(&out)
	c.SetErr(&mistakes)
	err := c.ExecuteContext(t.Context())
	return commandline.Status(err), out.String(), mistakes.String() + fmt.Sprintln(err)
}

// Paths in flags may be relative to the working directory.
func TestCheckOfRelativePaths(t *testing.T) {
	dir, o := written(t, "[runtimes.runc]\nruntime_path = \"$DIR/runc\"\n")
	t.Chdir(dir)
	args := []string{"-c", "./config.toml", "--vendor-dir", "vendor", "--drop-in-dir", "drop-ins", "--search-path", o.SearchPath[0]}
	if code, stdout, stderr := executed(t, CheckCommand(), args...); code != 0 || !strings.Contains(stdout, "read "+filepath.Join(dir, "config.toml")) {
		t.Errorf("exit status %d\n%s\n%s", code, stdout, stderr)
	}
}

func TestCheckOfRelativeSearchPaths(t *testing.T) {
	dir, o := written(t, "")
	t.Chdir(o.SearchPath[0])
	args := []string{"-c", filepath.Join(dir, "config.toml"), "--vendor-dir", "", "--search-path", "nothing,./"}
	if code, stdout, stderr := executed(t, CheckCommand(), args...); code != 0 || !strings.Contains(stdout, "discovered in "+o.SearchPath[0]) {
		t.Errorf("exit status %d\n%s\n%s", code, stdout, stderr)
	}
}

func TestCheck(t *testing.T) {
	const good = "[runtimes.runc]\nruntime_path = \"$DIR/runc\"\n"
	for _, c := range []struct {
		what, toml     string
		code           int
		stdout, stderr string
	}{
		{"good", good, 0, "read $DIR/config.toml\nrunc  oci   $DIR/runc  $DIR/config.toml:1 (default)\nconfig: ok\n", ""},
		{"discovered", "", 0, "read $DIR/config.toml\nrunc  oci   $DIR/runc  discovered in $DIR (default)\nconfig: ok\n", ""},
		{"missing runtime and daemon", good + "[runtimes.legacy]\nendpoint = \"unix://$DIR/other.sock\"\n[runtimes.gone]\nruntime_path = \"$DIR/gone\"\n", 3, "read $DIR/config.toml\n" +
			"gone    oci   $DIR/gone  $DIR/config.toml:5\nlegacy  cri   $DIR/other.sock  $DIR/config.toml:3\nrunc    oci   $DIR/runc  $DIR/config.toml:1 (default)\n",
			"handler \"gone\": $DIR/config.toml:5: runtime_path: $DIR/gone does not exist; install it, or correct the path\n" +
				"handler \"legacy\": cannot connect to its daemon: dial unix $DIR/other.sock: connect: no such file or directory\nconfig: 2 problems on this machine\n"},
		{"a binary that is not a runtime", "[runtimes.runc]\nruntime_path = \"/bin/false\"\n", 3, "read $DIR/config.toml\nrunc  oci   /bin/false  $DIR/config.toml:1 (default)\n",
			"handler \"runc\": /bin/false --version: exit status 1; reinstall the runtime or correct the handler's runtime_path\nconfig: 1 problem on this machine\n"},
		{"a candidate", good + "candidate = { runtime_path = \"$DIR/next\", percent = 1 }\n", 3, "read $DIR/config.toml\nrunc  oci   $DIR/runc  $DIR/config.toml:1 (default)\n",
			"candidate of handler \"runc\": $DIR/config.toml:1: runtime_path: $DIR/next does not exist; install it, or correct the path\nconfig: 1 problem on this machine\n"},
		{"imported", good + "[import]\ncrio = [\"$DIR/crio.conf\"]\n", 2, "read $DIR/config.toml\nread $DIR/crio.conf\nrunc  oci   $DIR/runc  $DIR/config.toml:1 (default)\n",
			"$DIR/crio.conf:3:1: runtimes.odd.runtime_path: must be a string, not an integer\n$DIR/crio.conf:1:2: runtimes.kata.runtime_path: kata was not found in $DIR; install it\nconfig: 1 mistake, 1 problem on this machine\n"},
		{"two mistakes", good + "snapshoter = 1\n[log]\nlevel = 1\n", 2, "",
			"$DIR/config.toml:3:1: runtimes.runc.snapshoter: unknown key (did you mean \"snapshotter\"?)\n" +
				"$DIR/config.toml:5:1: log.level: must be a string, not an integer\nconfig: 2 mistakes\n"},
	} {
		t.Run(c.what, func(t *testing.T) {
			dir, o := written(t, c.toml)
			test.Must(t, os.WriteFile(filepath.Join(dir, "crio.conf"), []byte("[crio.runtime.runtimes.kata]\n[crio.runtime.runtimes.odd]\nruntime_path = 1\n"), 0o600))
			var stdout, stderr bytes.Buffer
			code := check(t.Context(), o, "table", &stdout, &stderr)
			out, err := strings.ReplaceAll(stdout.String(), dir, "$DIR"), strings.ReplaceAll(stderr.String(), dir, "$DIR")
			if code != c.code || out != c.stdout || err != c.stderr {
				t.Errorf("exit status %d\n%s\n%s", code, out, err)
			}
		})
	}
}

// TestCheckTellsWhoCanChangeFiles has one directory of each kind that is read while pods run.
// The check reports files that other users can change, but a daemon starts with them.
func TestCheckTellsWhoCanChangeFiles(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("giving files to another user needs root")
	}
	const places = `[runtimes.runc]
runtime_path = "$DIR/runc"
[cni]
conf_dir = "$DIR/net.d"
bin_dirs = ["$DIR/cni"]
[engine]
cdi_spec_dirs = ["$DIR/cdi"]
[nri]
plugin_path = "$DIR/nri"
plugin_config_path = "$DIR/nri.d"
[registry]
hosts_dir = "$DIR/hosts"
decryption_keys_path = "$DIR/keys"
[image_verifier]
bin_dir = "$DIR/verifiers"
`
	files := map[string]string{
		"net.d/a.conflist": "{}", "cni/bridge": "", "cdi/a.json": "{}", "nri/10-a": "", "nri.d/a.conf": "", "keys/team/a.pem": "",
		"hosts/a/hosts.toml": "ca = '../../ca.pem'", "ca.pem": "", "verifiers/a": "",
	}
	for _, c := range []struct {
		name   string
		change func(dir string) error
		code   int
		want   []string
	}{
		{"only root", func(string) error { return nil }, 0, nil},
		{"files for all", func(dir string) error {
			var errs []error
			for f := range files {
				errs = append(errs, os.Chmod(filepath.Join(dir, f), 0o666))
			}
			return errors.Join(errs...)
		}, commandline.Degraded, []string{
			"config.toml:4:1: cni.conf_dir: $DIR/net.d/a.conflist can be changed by every user (owner 0, mode 0666)", "run chmod o-w $DIR/cni/bridge", "run chmod o-w $DIR/cdi/a.json",
			"run chmod o-w $DIR/nri/10-a", "run chmod o-w $DIR/nri.d/a.conf", "run chmod o-w $DIR/keys/team/a.pem", "run chmod o-w $DIR/hosts/a/hosts.toml", "run chmod o-w $DIR/verifiers/a",
		}},
		{"file that a hosts.toml names", func(dir string) error { return os.Chmod(dir+"/ca.pem", 0o666) }, commandline.Degraded, []string{"registry.hosts_dir: $DIR/ca.pem can be changed"}},
		{"plugin of another user", func(dir string) error { return os.Chown(dir+"/cni/bridge", 1001, 1001) }, 0,
			[]string{"warning: cni.bin_dirs: $DIR/cni/bridge belongs to user 1001"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, o := written(t, places)
			for f, text := range files {
				test.Must(t, errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(dir, f)), 0o755), os.WriteFile(filepath.Join(dir, f), []byte(text), 0o600)))
			}
			test.Must(t, c.change(dir))
			var stdout, stderr bytes.Buffer
			code := check(t.Context(), o, "table", &stdout, &stderr)
			out := strings.ReplaceAll(stdout.String()+stderr.String(), dir, "$DIR")
			test.Equal(t, "exit status", code, c.code)
			for _, want := range c.want {
				if !strings.Contains(out, want) {
					t.Errorf("%q is not in\n%s", want, out)
				}
			}
			if c.want == nil && (strings.Contains(out, "warning") || stderr.Len() > 0) {
				t.Errorf("the output is\n%s", out)
			}
			test.Checkf(t, test.Err(config.Load(o)), "load as a daemon does")
		})
	}
}

func TestCheckMissesOwnBinaries(t *testing.T) {
	dir, o := written(t, "")
	test.Must(t, os.Remove(filepath.Join(dir, "berth-shim")))
	var stdout, stderr bytes.Buffer
	if code := check(t.Context(), o, "table", &stdout, &stderr); code != commandline.Degraded || !strings.Contains(stderr.String(), "engine.shim_path: berth-shim") {
		t.Errorf("exit status %d: %s", code, stderr.String())
	}
}

func TestExitStatusOfAMistake(t *testing.T) {
	_, o := written(t, "x = 1\n")
	for name, c := range map[string]*cobra.Command{"check": CheckCommand(), "config show": newConfigShowCommand()} {
		if code, _, stderr := executed(t, c, "-c", o.File); code != commandline.Mistaken || !strings.Contains(stderr, "unknown key") {
			t.Errorf("%s: exit status %d: %s", name, code, stderr)
		}
	}
}

func TestConfigDefault(t *testing.T) {
	if code, out, _ := executed(t, ConfigCommand(), "default"); code != 0 || out != string(configs.Berth) {
		t.Errorf("exit status %d: %s", code, out)
	}
}

func TestConfigShow(t *testing.T) {
	dir, o := written(t, "[runtimes.runc]\nruntime_path = \"$DIR/runc\"\n[runtimes.gone]\nruntime_path = \"$DIR/gone\"\n")
	t.Setenv(hostfiles.SearchPathEnv, dir)
	_, out, _ := executed(t, ConfigCommand(), "show", "-c", o.File)
	for _, want := range []string{"[runtimes.runc] # " + o.File + ":1", "[runtimes.gone] # " + o.File + ":3", "socket = \"/run/berth/berth.sock\" # default"} {
		if !strings.Contains(out, want) {
			t.Errorf("the output lacks %q:\n%s", want, out)
		}
	}
}
