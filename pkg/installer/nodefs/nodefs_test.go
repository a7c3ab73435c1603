package nodefs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// Links of the node lead to files of the node, not of who looks at it from outside.
func TestLinksOfTheNode(t *testing.T) {
	root := t.TempDir()
	for link, target := range map[string]string{"/var/run": "/run", "/up": "../../../../run", "/opt/there": "/usr/lib"} {
		if err := os.MkdirAll(filepath.Join(root, filepath.Dir(link)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]string{
		"/var/run/crio/crio.sock": "/run/crio/crio.sock", "/up/x": "/run/x", "/opt/there/new": "/usr/lib/new", "/var/run": "/var/run", "/none/x": "/none/x",
	} {
		if got := Root(root).Path(path); got != filepath.Join(root, want) {
			t.Errorf("%s is %s, want %s", path, got, want)
		}
	}
}

// A write that was killed leaves its new file, which keeps nothing from being as it was.
func TestRestoreAfterKilledWrite(t *testing.T) {
	r := Root(t.TempDir())
	const path = "/etc/berth/config.toml"
	o, err := r.Snapshot(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Put("/etc/berth/.config.toml.new", []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.Restore(o); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(string(r)); err != nil || len(left) > 0 {
		t.Errorf("%v is left, %v", left, err)
	}
}

// TestOriginals has files of all kinds replaced, and back as they were.
func TestOriginals(t *testing.T) {
	r := Root(t.TempDir())
	if err := r.Put("/etc/there", []byte("theirs"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("there", r.Path("/etc/link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(r.Path("/etc/directory"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Snapshot("/etc/directory"); err == nil {
		t.Error("a directory has an original")
	}
	set := Set{Content: map[string][]byte{"/etc/there": []byte("ours"), "/etc/link": []byte("ours"), "/new/deep/file": []byte("ours")}}
	saved, err := set.Prepare(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := set.Do(r, saved); err != nil {
		t.Fatal(err)
	}
	for path := range set.Sorted() {
		if text, err := os.ReadFile(r.Path(path)); string(text) != "ours" {
			t.Errorf("%s is %q, %v", path, text, err)
		}
	}
	// Somebody's edit is kept beside the file, which goes back all the same.
	if err := os.WriteFile(r.Path("/etc/there"), []byte("edited"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.RestoreAll(saved); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"/etc/there": "theirs", "/etc/there" + KeptSuffix: "edited"} {
		if text, err := os.ReadFile(r.Path(path)); string(text) != want {
			t.Errorf("%s is %q, %v", path, text, err)
		}
	}
	if info, err := os.Stat(r.Path("/etc/there")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("it is %v, %v", info, err)
	}
	if to, err := os.Readlink(r.Path("/etc/link")); to != "there" {
		t.Errorf("the link leads to %q, %v", to, err)
	}
	if _, err := os.Stat(r.Path("/new")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a directory is left: %v", err)
	}
}
