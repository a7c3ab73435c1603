package probe

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/internal/test"
)

// release writes a fake release of gVisor with companions, and returns the path of runsc.
func release(t *testing.T, dir, version string) (path string) {
	t.Helper()
	bin := filepath.Join(dir, "gvisor-bin")
	test.Must(t, os.MkdirAll(bin, 0o755))
	answer := "echo runsc version " + version + "\n"
	script(t, bin, "gvisor_sentry", answer)
	script(t, bin, "gvisor-sentry-prewarmer", "exit 2\n")
	return script(t, dir, "runsc", "[ \"$1\" != features ] || exit 128\n"+answer)
}

func TestCompanions(t *testing.T) {
	for name, c := range map[string]struct {
		change func(t *testing.T, dir string)
		wrong  string // empty: the runtime can be used
	}{
		"whole": {func(*testing.T, string) {}, ""},
		"no sentry": {func(t *testing.T, dir string) {
			t.Helper()
			os.Remove(filepath.Join(dir, "gvisor-bin", "gvisor_sentry"))
		}, "gvisor_sentry is missing"},
		"not executable": {func(t *testing.T, dir string) {
			t.Helper()
			test.Must(t, os.Chmod(filepath.Join(dir, "gvisor-bin", "gvisor-sentry-prewarmer"), 0o644))
		}, "gvisor-sentry-prewarmer cannot be executed"},
		"writable by all": {func(t *testing.T, dir string) {
			t.Helper()
			test.Must(t, os.Chmod(filepath.Join(dir, "gvisor-bin", "gvisor_sentry"), 0o777))
		}, "gvisor_sentry"},
		"only runsc replaced": {func(t *testing.T, dir string) {
			t.Helper()
			script(t, dir, "runsc", "echo runsc version release-20261005.0\n")
		}, "gvisor_sentry is of release release-20260831.0"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := release(t, dir, "release-20260831.0")
			p := New(nil)
			good, err := p.Probe(t.Context(), oci(path))
			if err != nil || len(good.Identity.Companions) != 2 {
				t.Fatalf("%+v, %v", good, err)
			}
			c.change(t, dir)
			rt, err := p.Probe(t.Context(), oci(path))
			if c.wrong == "" {
				if rt != good || err != nil {
					t.Errorf("the second probe returned %+v, %v", rt, err)
				}
				return
			}
			if !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), c.wrong) || !strings.Contains(err.Error(), path) {
				t.Errorf("the error is %v, want %q", err, c.wrong)
			}
			release(t, dir, "release-20261005.0")
			if rt, err := p.Probe(t.Context(), oci(path)); err != nil || rt.Version != "release-20261005.0" {
				t.Errorf("after the upgrade: %+v, %v", rt, err)
			}
		})
	}
}

// A wrapper has no companions. The runsc that the wrapper calls is in another directory, and its
// companions are there, too.
func TestWrapperWithoutCompanions(t *testing.T) {
	path := script(t, t.TempDir(), "runsc", "[ \"$1\" != features ] || exit 128\necho runsc version release-20260831.0\n")
	rt, err := New(nil).Probe(t.Context(), oci(path))
	if err != nil || len(rt.Needs) > 0 {
		t.Errorf("%+v, %v", rt, err)
	}
}

// A release of gVisor without companions needs no files beside runsc.
func TestReleaseWithoutCompanions(t *testing.T) {
	path := script(t, t.TempDir(), "runsc", "case $1 in --version) echo runsc version release-20250512.0;; *) exit 128;; esac\n")
	rt, err := New(nil).Probe(t.Context(), oci(path))
	if err != nil || len(rt.Needs) > 0 {
		t.Errorf("%+v, %v", rt, err)
	}
}

func TestCompanionsOfAHandler(t *testing.T) {
	dir := t.TempDir()
	path := script(t, dir, "runtime", "echo strange version 1; echo spec: 1.0.2\n")
	d := oci(path)
	d.Companions = []string{"share/guest"}
	p := New(nil)
	test.Refused(t, test.Err(p.Probe(t.Context(), d)), errdefs.IsUnavailable, "share/guest")
	test.Must(t, os.MkdirAll(filepath.Join(dir, "share"), 0o755))
	guest := filepath.Join(dir, "share", "guest")
	test.Must(t, os.WriteFile(guest, []byte("kernel"), 0o644))
	one, err := p.Probe(t.Context(), d)
	if err != nil || len(one.Identity.Companions) != 1 || one.Identity.Companions[0].Name != "share/guest" {
		t.Fatalf("%+v, %v", one, err)
	}
	sum := test.Value(one.Identity.SHA256())(t)
	test.Must(t, os.WriteFile(guest, []byte("another kernel"), 0o644))
	two, err := p.Probe(t.Context(), d)
	if err != nil || two == one {
		t.Fatalf("after a change of the companion: %+v, %v", two, err)
	}
	if other, err := two.Identity.SHA256(); err != nil || other == sum {
		t.Errorf("both have the hash %s (%v)", other, err)
	}
}
