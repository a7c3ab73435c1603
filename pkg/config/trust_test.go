package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/config/hostfiles"
)

const stranger = 12345

// TestChangeableFiles: files that users other than root can change or replace are refused, and
// the error contains the command that repairs them.
func TestChangeableFiles(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("giving files to another user needs root")
	}
	for _, tt := range []struct {
		name string
		make func(n *node, dropIn string) error
		want string
	}{
		{"file of another user", func(_ *node, f string) error { return os.Chown(f, stranger, stranger) }, "belongs to user 12345"},
		{"file for every user", func(_ *node, f string) error { return os.Chmod(f, 0o666) }, "run chmod o-w"},
		{"directory for every user", func(_ *node, f string) error { return os.Chmod(filepath.Dir(f), 0o777) }, "run chmod o-w"},
		{"directory of another user", func(_ *node, f string) error { return os.Chown(filepath.Dir(f), stranger, stranger) }, "run chown root"},
		{"link to a file of another user", func(n *node, f string) error {
			target := n.path("elsewhere.toml")
			if err := os.Rename(f, target); err != nil {
				return err
			}
			if err := os.Chown(target, stranger, stranger); err != nil {
				return err
			}
			return os.Symlink(target, f)
		}, "belongs to user 12345"},
		{"file for a group", func(_ *node, f string) error { return errors.Join(os.Chown(f, 0, stranger), os.Chmod(f, 0o664)) }, "run chmod g-w"},
		{"directory for a group", func(_ *node, f string) error {
			return errors.Join(os.Chown(filepath.Dir(f), 0, stranger), os.Chmod(filepath.Dir(f), 0o775))
		}, "run chmod g-w"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t, "runc", "crun")
			n.write("config.toml", "[runtimes.runc]\nruntime_path = \"$BIN/runc\"\n")
			n.write("conf.d/crun.toml", "[runtimes.crun]\nruntime_path = \"$BIN/crun\"\n")
			test.Must(t, tt.make(n, n.path("conf.d/crun.toml")))
			test.Says(t, test.Err(Load(n.options())), tt.want)
		})
	}
	t.Run("sticky directory", func(t *testing.T) {
		n := newNode(t, "runc", "crun")
		n.write("config.toml", "[runtimes.runc]\nruntime_path = \"$BIN/runc\"\n")
		n.write("conf.d/crun.toml", "[runtimes.crun]\nruntime_path = \"$BIN/crun\"\n")
		test.Must(t, os.Chmod(n.path("conf.d"), 0o777|os.ModeSticky))
		test.Says(t, test.Err(Load(n.options())), "every user can replace files in")
	})
	t.Run("main file", func(t *testing.T) {
		n := newNode(t, "runc")
		n.write("config.toml", "[runtimes.runc]\nruntime_path = \"$BIN/runc\"\n")
		test.Must(t, os.Chmod(n.path("config.toml"), 0o666))
		test.Says(t, test.Err(Load(n.options())), "run chmod o-w")
	})
	t.Run("base spec", func(t *testing.T) {
		n := newNode(t, "runc")
		n.write("base.json", `{"ociVersion": "1.2.0"}`)
		if m := hostfiles.NoSpec(n.path("base.json")); m != "" {
			t.Fatal(m)
		}
		test.Must(t, os.Chown(n.path("base.json"), stranger, stranger))
		if m := hostfiles.NoSpec(n.path("base.json")); !strings.Contains(m, "belongs to user 12345") {
			t.Errorf("the problem is %q", m)
		}
	})
	t.Run("default seccomp profile", func(t *testing.T) {
		n := newNode(t, "runc")
		n.write("profile.json", `{"defaultAction": "SCMP_ACT_ALLOW"}`)
		if m := noProfile(n.path("profile.json")); m != "" {
			t.Fatal(m)
		}
		test.Must(t, os.Chmod(n.path("profile.json"), 0o666))
		if m := noProfile(n.path("profile.json")); !strings.Contains(m, "run chmod o-w") {
			t.Errorf("the problem is %q", m)
		}
	})
	t.Run("certificate that the last of many files names", func(t *testing.T) {
		n := newNode(t, "runc")
		n.write("config.toml", "[registry]\nhosts_dir = \""+n.path("hosts")+"\"\n[runtimes.runc]\nruntime_path = \"$BIN/runc\"\n")
		for i := range hostfiles.MaxFiles {
			n.write(fmt.Sprintf("hosts/a/%d.crt", i), "")
		}
		n.write("ca.pem", "")
		n.write("hosts/z/hosts.toml", "[host.\"https://z\"]\nca = \""+n.path("ca.pem")+"\"\n")
		test.Must(t, os.Chmod(n.path("ca.pem"), 0o666))
		problems, _ := n.load().Changeable()
		if text := problems.Error(); !strings.Contains(text, "ca.pem can be changed") {
			t.Errorf("the problem is %q", text)
		}
	})
	t.Run("imported file", func(t *testing.T) {
		n := newNode(t, "runc")
		n.write("config.toml", "[import]\ncontainerd = [\""+n.path("containerd.toml")+"\"]\n[runtimes.runc]\nruntime_path = \"$BIN/runc\"\n")
		n.write("containerd.toml", "version = 3\n")
		n.load()
		test.Must(t, os.Chown(n.path("containerd.toml"), stranger, stranger))
		if cfg, err := Load(n.options()); err == nil && !strings.Contains(cfg.Problems.Error(), "belongs to user 12345") ||
			err != nil && !strings.Contains(err.Error(), "belongs to user 12345") {
			t.Errorf("Load fails with %v", err)
		}
	})
	t.Run("configuration of a runtime", func(t *testing.T) {
		n := newNode(t, "runsc")
		n.write("config.toml", "[runtimes.gvisor]\nruntime_path = \"$BIN/runsc\"\nruntime_config_path = \""+n.path("runsc.toml")+"\"\n")
		n.write("runsc.toml", "")
		n.load()
		test.Must(t, os.Chmod(n.path("runsc.toml"), 0o666))
		if lacks := n.lacks(n.load()); len(lacks) != 1 || !strings.Contains(lacks[0], "runtime_config_path") || !strings.Contains(lacks[0], "run chmod o-w") {
			t.Errorf("the machine lacks %q", lacks)
		}
	})
}
