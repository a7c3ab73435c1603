package nodefs

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-cri/berth/internal/test"
)

// Links are resolved below the node's root, not below the root of this process.
func TestLinksOfTheNode(t *testing.T) {
	root := t.TempDir()
	for link, target := range map[string]string{"/var/run": "/run", "/up": "../../../../run", "/opt/there": "/usr/lib"} {
		test.Must(t, os.MkdirAll(filepath.Join(root, filepath.Dir(link)), 0o755))
		test.Must(t, os.Symlink(target, filepath.Join(root, link)))
	}
	for path, want := range map[string]string{
		"/var/run/crio/crio.sock": "/run/crio/crio.sock", "/up/x": "/run/x", "/opt/there/new": "/usr/lib/new", "/var/run": "/var/run", "/none/x": "/none/x",
	} {
		if got := Root(root).Path(path); got != filepath.Join(root, want) {
			t.Errorf("Path(%s) is %s, want %s", path, got, want)
		}
	}
}

// TestCopy copies the files that the target lacks, and keeps the existing ones.
func TestCopy(t *testing.T) {
	source, r := t.TempDir(), Root(t.TempDir())
	for name, mode := range map[string]fs.FileMode{"bin/shim": 0o777, "share/c.toml": 0o600, "share/image": 0o666} {
		test.Must(t, os.MkdirAll(filepath.Join(source, filepath.Dir(name)), 0o755))
		test.Must(t, os.WriteFile(filepath.Join(source, name), []byte("/built/"+name), mode))
	}
	test.Must(t, os.Symlink("/built/share/c.toml", filepath.Join(source, "link")))
	test.Must(t, r.Put("/to/share/image", []byte("is there"), 0o644))
	edit := func(text string) string { return strings.ReplaceAll(text, "/built/", "/to/") }
	test.Must(t, r.Copy(source, "/to", edit, func() {}))
	for name, c := range map[string]struct {
		text string
		mode fs.FileMode
	}{"bin/shim": {"/built/bin/shim", 0o755}, "share/c.toml": {"/to/share/c.toml", 0o644}, "share/image": {"is there", 0o644}} {
		path := r.Path("/to/" + name)
		text, err := os.ReadFile(path)
		if info, statErr := os.Stat(path); string(text) != c.text || err != nil || statErr != nil || info.Mode() != c.mode {
			t.Errorf("%s is %q, %v, %v", name, text, info.Mode(), err)
		}
	}
	if link, err := os.Readlink(r.Path("/to/link")); link != "/to/share/c.toml" {
		t.Errorf("the link leads to %q, %v", link, err)
	}
}
