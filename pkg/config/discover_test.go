package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berth-cri/berth/pkg/handler"
)

func TestDiscoveredName(t *testing.T) {
	for base, want := range map[string]string{
		"runc": "runc", "crun": "crun", "youki": "youki", "runsc": "runsc",
		"containerd-shim-kata-v2": "kata", "containerd-shim-kata-qemu-v2": "kata-qemu", "containerd-shim-spin-v1": "spin",
		"containerd-shim-runc-v2": "runc-shim", "containerd-shim-runsc-v1": "runsc-shim",
		"containerd-shim": "", "containerd-shim-v2": "", "containerd-shim--v2": "", "containerd-shim-kata": "",
		"containerd-shim-kata-v3": "", "containerd-shim-Kata-v2": "", "containerd-shim-a_b-v2": "",
		"runc.bak": "", "kata-runtime": "", "": "",
	} {
		if got, ok := discoveredName(base); ok != (want != "") || ok && got != want {
			t.Errorf("discoveredName(%q) = %q, %v; want %q", base, got, ok, want)
		}
	}
}

func TestDiscover(t *testing.T) {
	n := newNode(t)
	n.binary("first/runc", 0o755)
	n.binary("second/runc", 0o755)
	n.binary("first/crun", 0o644)
	n.binary("second/crun", 0o755)
	n.binary("first/youki", 0o777)
	n.binary("first/containerd-shim-kata-v1", 0o755)
	n.binary("first/containerd-shim-kata-v2", 0o755)
	n.binary("second/containerd-shim-runc-v2", 0o755)
	n.binary("odd [dir]/containerd-shim-odd-v2", 0o755)
	n.binary("first/runsc/runsc", 0o755)
	var got []string
	for _, d := range Discover([]string{n.path("first"), n.path("second"), n.path("odd [dir]"), n.path("absent")}) {
		got = append(got, strings.Join([]string{d.Name, string(d.Type), n.relative(d.Path), n.relative(d.Origin)}, " "))
		if d.Snapshotter == "" || d.ContainerCreateTimeout == 0 || d.SandboxProcess == "" || (d.Type == handler.OCI) != (d.Supervision != "") {
			t.Errorf("%s lacks defaults: %+v", d.Name, d)
		}
	}
	want := []string{
		"crun oci $DIR/second/crun discovered in $DIR/second",
		"kata shim $DIR/first/containerd-shim-kata-v2 discovered in $DIR/first",
		"odd shim $DIR/odd [dir]/containerd-shim-odd-v2 discovered in $DIR/odd [dir]",
		"runc oci $DIR/first/runc discovered in $DIR/first",
		"runc-shim shim $DIR/second/containerd-shim-runc-v2 discovered in $DIR/second",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestNothingToDiscover(t *testing.T) {
	n := newNode(t)
	n.write("config.toml", "")
	got := n.refuse(n.options())
	want := "runtimes: no handlers configured and no runtimes found in $DIR/bin; install one (on Debian: apt-get install crun), " +
		"or configure [runtimes.<handler>] with its runtime_path in /etc/berth/config.toml"
	if len(got) != 1 || got[0] != want {
		t.Errorf("got %v", got)
	}
	if got := shortList(strings.Fields("a b c d e f g h")); got != "a, b, c, d, e, f and 2 more directories" {
		t.Errorf("got %q", got)
	}
}

func TestSearchDirs(t *testing.T) {
	t.Setenv("PATH", "/somewhere/bin:relative:/usr/bin/:/usr/local/bin:/somewhere/bin/")
	dirs := SearchDirs()
	before := func(a, b string) {
		t.Helper()
		if i, j := slices.Index(dirs, a), slices.Index(dirs, b); i < 0 || i >= j {
			t.Errorf("%s is not before %s in %v", a, b, dirs)
		}
	}
	before("/usr/local/sbin", "/usr/local/bin")
	before("/usr/local/bin", "/usr/sbin")
	before("/usr/sbin", "/usr/bin")
	before("/usr/bin", "/somewhere/bin")
	if slices.Contains(dirs, "relative") || len(dirs) != len(slices.Compact(slices.Sorted(slices.Values(dirs)))) {
		t.Errorf("got %v", dirs)
	}
	t.Setenv(SearchPathEnv, "/x:/y")
	if got := SearchDirs(); !slices.Equal(got, []string{"/x", "/y"}) {
		t.Errorf("with %s: %v", SearchPathEnv, got)
	}
}

func TestBareNameIsFound(t *testing.T) {
	n := newNode(t, "runc")
	t.Setenv(SearchPathEnv, n.path("bin"))
	n.write("config.toml", "[runtimes.runc]\n[runtimes.b]\nruntime_path = \"runc\"\n")
	got := n.refuse(n.options())
	for _, line := range got[:2] {
		if !strings.HasSuffix(line, `(did you mean "$DIR/bin/runc"?)`) {
			t.Errorf("%s does not name the binary", line)
		}
	}
}

func TestHelperPath(t *testing.T) {
	n := newNode(t, "berth-test-helper")
	if got := helperPath("berth-test-helper"); got != "" {
		t.Errorf("found %s", got)
	}
	t.Setenv("PATH", n.path("bin"))
	if got := helperPath("berth-test-helper"); got != n.path("bin/berth-test-helper") {
		t.Errorf("in PATH: %q", got)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	beside := filepath.Join(filepath.Dir(self), "berth-test-helper")
	if err := os.WriteFile(beside, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(beside) })
	if got := helperPath("berth-test-helper"); got != beside {
		t.Errorf("beside: %q", got)
	}
}

func TestHelpers(t *testing.T) {
	cfg := Default()
	if p := cfg.Helpers(); len(p) != 2 || !strings.Contains(p.Error(), "engine.shim_path: berth-shim was not found beside") {
		t.Errorf("Helpers() = %v", p)
	}
	cfg.Engine.ShimPath, cfg.Engine.PausePath = "/a", "/b"
	if p := cfg.Helpers(); len(p) > 0 {
		t.Errorf("Helpers() = %v", p)
	}
}
