package image

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/image/disk"
)

// preload opens a store and waits until it has imported the archives in c.PreloadDir.
func preload(t *testing.T, c Config) *Store {
	t.Helper()
	dir := c.PreloadDir
	c.PreloadDir = ""
	s := openStore(t, c)
	s.Preload(t.Context(), dir)
	return s
}

func (s *Store) has(name string) bool {
	_, err := s.Get(name)
	return err == nil
}

func TestPreload(t *testing.T) {
	dir := t.TempDir()
	put := func(name string, text []byte) {
		t.Helper()
		test.Must(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
	}
	one, two := layered(t, v1.Config{}), build(t, v1.Config{}, layer(t, file{name: "two"}))
	put("10-broken.tar", []byte("no archive"))
	put("20-one.tar", dockerArchive(t, map[string]v1.Image{domain + "/one:1": one}))
	put("30-both.tar", dockerArchive(t, map[string]v1.Image{domain + "/a:1": one, domain + "/b:1": two}))
	put("notes.txt", []byte("not an archive"))
	test.Must(t, os.Mkdir(filepath.Join(dir, "40-directory.tar"), 0o700))

	root := filepath.Join(t.TempDir(), "images")
	s := preload(t, Config{Root: root, PreloadDir: dir})
	for _, name := range []string{"/one:1", "/a:1", "/b:1"} {
		if !s.has(domain + name) {
			t.Errorf("%s was not imported", name)
		}
	}
	before := writes(t, s)
	test.Must(t, s.Close())

	// Archives whose images are in the store are not read again.
	s = preload(t, Config{Root: root, PreloadDir: dir})
	if now := writes(t, s); now > before+4 { // the broken archive is tried again
		t.Errorf("the second preload made %d writes, want at most 4", now-before)
	}
	// An archive whose image was removed, and a changed archive, are read again.
	test.Must(t, s.Remove(t.Context(), domain+"/one:1"))
	test.Must(t, s.Close())
	put("30-both.tar", dockerArchive(t, map[string]v1.Image{domain + "/c:1": two}))
	s = preload(t, Config{Root: root, PreloadDir: dir})
	if !s.has(domain+"/one:1") || !s.has(domain+"/c:1") {
		t.Error("the removed image or the image of the changed archive was not imported")
	}
	test.Must(t, s.Close())

	// After a truncated record the archives are read again.
	test.Must(t, os.WriteFile(filepath.Join(root, disk.PreloadedFile), []byte(`{"20-`), 0o600))
	s = preload(t, Config{Root: root, PreloadDir: dir})
	if text, err := os.ReadFile(filepath.Join(root, disk.PreloadedFile)); err != nil || !strings.Contains(string(text), domain+"/one:1") {
		t.Errorf("the record is %s, %v", text, err)
	}
	test.Must(t, s.Close())
}

func TestPreloadOfOthersFiles(t *testing.T) {
	built := layered(t, v1.Config{})
	for what, change := range map[string]func(dir, file string) error{
		"world-writable file":      func(_, file string) error { return os.Chmod(file, 0o666) },
		"file of another user":     func(_, file string) error { return os.Chown(file, 1000, 1000) },
		"world-writable directory": func(dir, _ string) error { return os.Chmod(dir, 0o777) },
		"dangling symlink":         func(_, file string) error { _ = os.Remove(file); return os.Symlink("/nowhere", file) },
	} {
		t.Run(what, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "preload")
			test.Must(t, os.Mkdir(dir, 0o755))
			file := filepath.Join(dir, "one.tar")
			test.Must(t, os.WriteFile(file, dockerArchive(t, map[string]v1.Image{domain + "/one:1": built}), 0o600))
			test.Must(t, change(dir, file))
			s := preload(t, Config{PreloadDir: dir})
			if got := s.List(); len(got) != 0 {
				t.Errorf("imported are %v, want none", got)
			}
		})
	}
}

// The store imports in the background. Close works during the import.
func TestPreloadInTheBackground(t *testing.T) {
	dir := t.TempDir()
	test.Must(t, os.WriteFile(filepath.Join(dir, "one.tar"), dockerArchive(t, map[string]v1.Image{domain + "/one:1": build(t, v1.Config{}, bulk(t, 8<<20))}), 0o600))
	root := filepath.Join(t.TempDir(), "images")
	s := openStore(t, Config{Root: root, PreloadDir: dir})
	begin := time.Now()
	test.Must(t, s.Close())
	if took := time.Since(begin); took > 30*time.Second {
		t.Errorf("Close took %v during the import", took)
	}
	s = openStore(t, Config{Root: root, PreloadDir: dir})
	test.Eventually(t, "the image is there", func() bool { return s.has(domain + "/one:1") })
	test.Eventually(t, "the record is there", func() bool { _, err := os.Stat(filepath.Join(root, disk.PreloadedFile)); return err == nil })
	test.Must(t, s.Close())
	s = openStore(t, Config{Root: root})
	if leasesLeft(t, s) != 0 || !s.has(domain+"/one:1") {
		t.Errorf("after a restart there are %d leases, want 0; the image is there: %v", leasesLeft(t, s), s.has(domain+"/one:1"))
	}
}
