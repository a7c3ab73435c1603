package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// tree makes the same files each time, with other times and permissions for the group.
func tree(t *testing.T, mode os.FileMode) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"usr/bin/program": "\x7fELF", "usr/share/b": "b", "usr/share/a": "a"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		at := time.Unix(int64(len(dir))*int64(mode), 0)
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// made is what the program prints, and the archive that it makes.
func made(t *testing.T, amd64, arm64 string) (digest string, archive []byte) {
	t.Helper()
	out := t.TempDir()
	file := filepath.Join(out, "archive.tar")
	var printed strings.Builder
	err := run([]string{"-out", filepath.Join(out, "layout"), "-archive", file, "-name", "registry.example:5000/x:1", "-version", "1", "linux/amd64=" + amd64, "linux/arm64=" + arm64}, &printed)
	if err != nil {
		t.Fatal(err)
	}
	if archive, err = os.ReadFile(file); err != nil {
		t.Fatal(err)
	}
	return printed.String(), archive
}

// The same files are the same image, to the byte, and others are not.
func TestSameEachTime(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	one, first := made(t, tree(t, 0o755), tree(t, 0o755))
	two, second := made(t, tree(t, 0o775), tree(t, 0o751))
	if one != two || !bytes.Equal(first, second) {
		t.Errorf("it is %s and %s", one, two)
	}
	other := tree(t, 0o755)
	if err := os.WriteFile(filepath.Join(other, "usr/share/a"), []byte("c"), 0o644); err != nil {
		t.Fatal(err)
	}
	if three, _ := made(t, tree(t, 0o755), other); three == one {
		t.Error("another file makes no other image")
	}
}

func TestMistakes(t *testing.T) {
	link := t.TempDir()
	if err := os.Symlink("/etc/passwd", filepath.Join(link, "link")); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, c := range map[string]struct {
		args  []string
		wrong string
	}{
		"nothing":     {nil, "image needs"},
		"no platform": {[]string{"-out", dir, "-archive", dir + "/a", "-name", "x:1", "directory"}, "is not PLATFORM=DIRECTORY"},
		"a link":      {[]string{"-out", dir + "/o", "-archive", dir + "/a", "-name", "x:1", "linux/amd64=" + link}, "neither a file nor a directory"},
		"no files":    {[]string{"-out", dir + "/o", "-archive", dir + "/a", "-name", "x:1", "linux/amd64=/nowhere"}, "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := run(c.args, &strings.Builder{}); err == nil || !strings.Contains(err.Error(), c.wrong) {
				t.Errorf("got %v, want %q", err, c.wrong)
			}
		})
	}
}
