package main

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// archiveOfContainer is what a kubelet might have had written.
func archiveOfContainer(t *testing.T) string {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range [][2]string{
		{"config.dump", `{"name":"main","rootfsImageRef":"registry.test/app@sha256:` + strings.Repeat("1", 64) + `","checkpointedTime":"2026-11-25T22:00:00Z"}`},
		{"spec.dump", "{}"},
		{"checkpoint/descriptors.json", `["/dev/null","pipe:[1]","pipe:[2]"]`},
		{"checkpoint/pages-1.img", "memory"},
	} {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: f[0], Mode: 0o600, Size: int64(len(f[1]))}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, f[1]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "checkpoint-x.tar")
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestCheckpointImageWithoutDaemon writes an image into a file, and refuses what is not an
// archive.
func TestCheckpointImageWithoutDaemon(t *testing.T) {
	file := filepath.Join(t.TempDir(), "image.tar")
	code, stdout, stderr := ran(t, "checkpoint", "image", archiveOfContainer(t), "registry.test/x:1", "--file", file)
	if code != 0 || !strings.HasPrefix(stdout, "written registry.test/x:1: container main, which ran registry.test/app@sha256:1") {
		t.Errorf("exit status %d: %s%s", code, stdout, stderr)
	}
	if info, err := os.Stat(file); err != nil || info.Mode() != 0o600 {
		t.Errorf("image: %v, %v", info, err)
	}
	other := filepath.Join(t.TempDir(), "other.tar")
	if err := os.WriteFile(other, []byte("no archive"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{other, "x:1", "--file", file + "2"}, {filepath.Dir(other), "x:1"}, {other + ".missing", "x:1"}} {
		if code, stdout, stderr := ran(t, append([]string{"checkpoint", "image"}, args...)...); code != exitFailure || stdout != "" || !strings.Contains(stderr, other[:10]) {
			t.Errorf("%v: exit status %d: %s%s", args, code, stdout, stderr)
		}
	}
	if left, _ := filepath.Glob(file + "2*"); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
