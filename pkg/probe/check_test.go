package probe

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/handler"
)

func TestCheckSaysWhatIsMissing(t *testing.T) {
	dir := t.TempDir()
	path, _ := replay(t, dir, "runc-1.5.2")
	c := NewChecker(New(nil))
	whole := oci(path)
	whole.RequiredDevices = []string{"/dev/null"}
	if rt, err := c.Check(t.Context(), whole, Look); err != nil || rt.Version != "1.5.2" {
		t.Fatalf("got %v, %v", rt, err)
	}
	for _, device := range []string{filepath.Join(dir, "none"), path} {
		d := oci(path)
		d.RequiredDevices = []string{device}
		if rt, err := c.Check(t.Context(), d, Look); err == nil || rt != nil || !strings.Contains(err.Error(), "required_devices: "+device) {
			t.Errorf("%s: got %v, %v", device, rt, err)
		}
	}
	test.Must(t, os.Remove(path))
	test.Says(t, test.Err(c.Check(t.Context(), whole, Look)), "runtime_path: "+path+" does not exist")
	replay(t, dir, "runc-1.5.2")
	test.Checkf(t, test.Err(c.Check(t.Context(), whole, Look)), "with the binary back")
}

// A candidate is identified by its content: the same content in a new file is
// the same candidate.
func TestCheckSumsCandidates(t *testing.T) {
	dir := t.TempDir()
	path, _ := replay(t, dir, "runc-1.5.2")
	c := NewChecker(New(nil))
	d := oci(path)
	check := func() string {
		t.Helper()
		rt := test.Value(c.Check(t.Context(), d, Look))(t)
		return rt.SHA256
	}
	test.Equal(t, "hash of a program that is not a candidate", check(), "")
	d.Binary = handler.BinaryCandidate
	first := check()
	content, err := os.ReadFile(path)
	if want := fmt.Sprintf("%x", sha256.Sum256(content)); err != nil || first != want {
		t.Fatalf("got %s, want %s, %v", first, want, err)
	}
	write := func(b []byte) {
		t.Helper()
		if err := os.WriteFile(path+".new", b, 0o755); err != nil { //nolint:gosec // it is a program
			t.Fatal(err)
		}
		test.Must(t, os.Rename(path+".new", path))
	}
	write(content)
	test.Equal(t, fmt.Sprintf("hash of the same content as %s", first), check(), first)
	write(append(content, "# another\n"...))
	if other := check(); other == first {
		t.Error("other content has the same hash")
	}
	broken := []byte("#!/bin/sh\nexit 1\n")
	write(broken)
	rt, err := c.Check(t.Context(), d, Look)
	if want := fmt.Sprintf("%x", sha256.Sum256(broken)); err == nil || rt == nil || rt.SHA256 != want || rt.Version != "" {
		t.Errorf("a program that fails: got %+v, %v", rt, err)
	}
	test.Must(t, os.Remove(path))
	if rt, err := c.Check(t.Context(), d, Look); err == nil || rt != nil {
		t.Errorf("a missing program: got %+v, %v", rt, err)
	}
}
