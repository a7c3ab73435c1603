package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const stranger = 12345

// TestChangeableFiles has drop-ins that others than root can change, or replace. At
// the daemon's start each costs its own handlers, and says what to do.
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
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t, "runc", "crun")
			n.write("config.toml", "[runtimes.runc]\nruntime_path = \"$BIN/runc\"\n")
			n.write("conf.d/crun.toml", "[runtimes.crun]\nruntime_path = \"$BIN/crun\"\n")
			if err := tt.make(n, n.path("conf.d/crun.toml")); err != nil {
				t.Fatal(err)
			}
			if _, err := Load(n.options()); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Load says %v, want %q", err, tt.want)
			}
			cfg := n.tolerate()
			for _, h := range cfg.Runtimes {
				if h.Name == "crun" {
					t.Error("the handler of the drop-in is there")
				}
			}
		})
	}
	t.Run("main file", func(t *testing.T) {
		n := newNode(t, "runc")
		n.write("config.toml", "[runtimes.runc]\nruntime_path = \"$BIN/runc\"\n")
		if err := os.Chmod(n.path("config.toml"), 0o666); err != nil {
			t.Fatal(err)
		}
		o := n.options()
		o.TolerateDropIns = true
		if _, err := Load(o); err == nil || !strings.Contains(err.Error(), "run chmod o-w") {
			t.Errorf("Load says %v", err)
		}
	})
	t.Run("base spec", func(t *testing.T) {
		n := newNode(t, "runc")
		n.write("base.json", `{"ociVersion": "1.2.0"}`)
		if m := specMistake(n.path("base.json")); m != "" {
			t.Fatal(m)
		}
		if err := os.Chown(n.path("base.json"), stranger, stranger); err != nil {
			t.Fatal(err)
		}
		if m := specMistake(n.path("base.json")); !strings.Contains(m, "belongs to user 12345") {
			t.Errorf("it says %q", m)
		}
	})
}
