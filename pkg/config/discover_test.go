package config

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/config/hostfiles"
	"github.com/berth-cri/berth/pkg/handler"
)

func TestDiscoveredName(t *testing.T) {
	for base, want := range map[string]string{
		"runc": "runc", "crun": "crun", "youki": "youki", "runsc": "gvisor",
		"containerd-shim-kata-v2": "kata", "containerd-shim-kata-qemu-v2": "kata-qemu", "containerd-shim-spin-v1": "spin",
		"containerd-shim-runc-v2": "runc-shim", "containerd-shim-runsc-v1": "runsc-shim", "containerd-shim-gvisor-v2": "gvisor-shim",
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
	n.binary("second/runsc", 0o755)
	var got []string
	for _, d := range Discover([]string{n.path("first"), n.path("second"), n.path("odd [dir]"), n.path("absent")}) {
		got = append(got, strings.Join([]string{d.Name, string(d.Type), n.relative(d.Path), n.relative(d.Origin), d.AliasOf}, " "))
		if d.Snapshotter == "" || d.ContainerCreateTimeout == 0 || d.SandboxProcess == "" || (d.Type == handler.OCI) != (d.Supervision != "") {
			t.Errorf("%s lacks defaults: %+v", d.Name, d)
		}
	}
	want := []string{
		"crun oci $DIR/second/crun discovered in $DIR/second ",
		"gvisor oci $DIR/second/runsc discovered in $DIR/second ",
		"kata shim $DIR/first/containerd-shim-kata-v2 discovered in $DIR/first ",
		"odd shim $DIR/odd [dir]/containerd-shim-odd-v2 discovered in $DIR/odd [dir] ",
		"runc oci $DIR/first/runc discovered in $DIR/first ",
		"runc-shim shim $DIR/second/containerd-shim-runc-v2 discovered in $DIR/second ",
		"runsc oci $DIR/second/runsc discovered in $DIR/second gvisor",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestDiscoveredHandlers checks which handlers are discovered, and which is the default.
func TestDiscoveredHandlers(t *testing.T) {
	for _, c := range []struct{ what, binaries, dropIn, served, fallback string }{
		{"all", "runsc youki crun runc", "", "crun gvisor runc runsc>gvisor youki", "runc"},
		{"no runc", "runsc youki crun", "", "crun gvisor runsc>gvisor youki", "crun"},
		{"gVisor and youki", "runsc youki", "", "gvisor runsc>gvisor youki", "youki"},
		{"gVisor alone", "runsc", "", "gvisor runsc>gvisor", "gvisor"},
		{"gVisor and Kata", "runsc containerd-shim-kata-v2", "", "gvisor kata runsc>gvisor", "gvisor"},
		{"a drop-in defines gvisor", "runsc runc crun", "[runtimes.gvisor]\nruntime_path = \"$BIN/crun\"\n", "crun gvisor runc runsc", "runc"},
		{"a drop-in defines runsc", "runsc runc", "[runtimes.runsc]\nruntime_path = \"$BIN/runsc\"\nmax_pods = 1\n", "gvisor runc runsc", "runc"},
		{"a drop-in adds an alias", "runsc", "[runtimes.sandboxed]\nalias_of = \"gvisor\"\n", "gvisor runsc>gvisor sandboxed>gvisor", "gvisor"},
		{"a drop-in chooses the alias", "runsc runc", "default_runtime = \"runsc\"\n", "gvisor runc runsc>gvisor", "runsc"},
	} {
		t.Run(c.what, func(t *testing.T) {
			n := newNode(t, strings.Fields(c.binaries)...)
			n.write("config.toml", "")
			n.write("conf.d/10.toml", c.dropIn)
			cfg := n.load()
			var served []string
			for _, d := range cfg.Runtimes {
				name := d.Name
				if d.AliasOf != "" {
					name += ">" + d.AliasOf
				}
				served = append(served, name)
				if d.Name == "runsc" && d.Path != n.path("bin/runsc") {
					t.Errorf("runsc is %s", d.Path)
				}
			}
			if got := strings.Join(served, " "); got != c.served || cfg.DefaultRuntime != c.fallback {
				t.Errorf("served are %q, default %s; want %q, %s", got, cfg.DefaultRuntime, c.served, c.fallback)
			}
		})
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
	test.Equal(t, "shortList", shortList(strings.Fields("a b c d e f g h")), "a, b, c, d, e, f and 2 more directories")
}

// TestSearchDirs: the directories do not depend on the PATH of the process.
func TestSearchDirs(t *testing.T) {
	t.Setenv(hostfiles.SearchPathEnv, "")
	want := []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin"}
	for _, path := range []string{"", "/usr/bin:/bin", "/somewhere/bin:relative:/usr/bin/:/usr/local/bin"} {
		t.Setenv("PATH", path)
		dirs := hostfiles.SearchDirs()
		if !slices.Equal(dirs[:len(want)], want) {
			t.Errorf("with PATH=%s: %v", path, dirs)
		}
		for _, dir := range dirs[len(want):] {
			if ok, _ := filepath.Match("/opt/*/bin", dir); !ok {
				t.Errorf("with PATH=%s: unexpected directory %s", path, dir)
			}
		}
	}
	t.Setenv(hostfiles.SearchPathEnv, "/x:/y")
	test.EqualLists(t, fmt.Sprintf("with %s", hostfiles.SearchPathEnv), hostfiles.SearchDirs(), []string{"/x", "/y"})
}

func TestBareNameIsFound(t *testing.T) {
	n := newNode(t, "runc")
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
	test.Equal(t, "without directories", helperPath("berth-test-helper", nil), "")
	t.Setenv("PATH", n.path("bin"))
	test.Equal(t, "only in PATH", helperPath("berth-test-helper", nil), "")
	test.Equal(t, "in a search directory", helperPath("berth-test-helper", []string{n.path("bin")}), n.path("bin/berth-test-helper"))
	self := test.Value(os.Executable())(t)
	beside := filepath.Join(filepath.Dir(self), "berth-test-helper")
	test.Must(t, os.WriteFile(beside, nil, 0o755))
	t.Cleanup(func() { os.Remove(beside) })
	test.Equal(t, "beside the running binary", helperPath("berth-test-helper", nil), beside)
}

func TestHelpers(t *testing.T) {
	cfg := Default()
	if p := cfg.Helpers(); len(p) != 2 || !strings.Contains(p.Error(), "engine.shim_path: berth-shim was not found beside") {
		t.Errorf("Helpers() = %v", p)
	}
	cfg.SearchPath = []string{"/elsewhere"}
	if p := cfg.Helpers(); !strings.Contains(p.Error(), "in /elsewhere;") {
		t.Errorf("with a search path: %v", p)
	}
	cfg.Engine.ShimPath, cfg.Engine.PausePath = "/a", "/b"
	if p := cfg.Helpers(); len(p) > 0 {
		t.Errorf("Helpers() = %v", p)
	}
}
