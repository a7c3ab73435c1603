package probe

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/opencontainers/runtime-spec/specs-go/features"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/probe/capability"
)

// recorded returns the Runtime that a recorded pair of outputs describes.
func recorded(t *testing.T, name string) *Runtime {
	t.Helper()
	out, err := os.ReadFile(filepath.Join("testdata", name, "version.txt"))
	test.Must(t, err)
	rt := parseVersion(string(out))
	if out, err = os.ReadFile(filepath.Join("testdata", name, "features.json")); err == nil {
		if rt.Features = parseFeatures(out); rt.Features == nil {
			t.Fatalf("%s: cannot parse features.json", name)
		}
	}
	return rt
}

type facts struct {
	name, version, spec, oci                          string
	features, hostProcesses                           bool
	rro, idmap, userns, netdev, timens                bool
	seccomp, lacksSeccomp, systemd, apparmor, selinux bool
	knows11, knows13                                  bool
}

func factsOf(rt *Runtime) facts {
	return facts{
		name: rt.Name, version: rt.Version, spec: rt.SpecVersion, oci: rt.OCIVersion(),
		features: rt.Features != nil, hostProcesses: rt.Kernel().HostProcesses,
		rro: rt.SupportsRecursiveReadOnly(), idmap: rt.SupportsIDMap(), userns: rt.SupportsUserNamespaces(),
		netdev: rt.SupportsNetDevices(), timens: rt.SupportsNamespace(specs.TimeNamespace),
		seccomp: rt.Seccomp() == capability.Yes, lacksSeccomp: rt.Seccomp() == capability.No, systemd: rt.SystemdCgroup() == capability.Yes,
		apparmor: rt.AppArmor() == capability.Yes, selinux: rt.SELinux() == capability.Yes,
		knows11: rt.KnowsOCI("1.1.0"), knows13: rt.KnowsOCI("1.3.0"),
	}
}

func TestRecordedRuntimes(t *testing.T) {
	for dir, want := range map[string]facts{
		"runc-1.5.2": {
			name: Runc, version: "1.5.2", spec: "1.3.0", oci: "1.3.0", features: true, hostProcesses: true,
			rro: true, idmap: true, userns: true, netdev: true, timens: true,
			seccomp: true, systemd: true, apparmor: true, selinux: true, knows11: true, knows13: true,
		},
		"runc-1.1.5": {
			name: Runc, version: "1.1.5+ds1", spec: "1.0.2-dev", oci: "1.0.2-dev", features: true, hostProcesses: true,
			rro: true, userns: true, seccomp: true, systemd: true, apparmor: true, selinux: true,
		},
		"crun-1.8.1": {
			name: Crun, version: "1.8.1", spec: "1.0.0", oci: "1.0.2", hostProcesses: true,
			rro: true, idmap: true, userns: true, seccomp: true, systemd: true, apparmor: true, selinux: true,
		},
		"crun-1.24": {
			name: Crun, version: "1.24", spec: "1.0.0", oci: "1.1.0", features: true, hostProcesses: true,
			rro: true, idmap: true, userns: true, seccomp: true, systemd: true, apparmor: true, selinux: true, knows11: true,
		},
		"youki-0.5.7": {
			name: Youki, version: "0.5.7", oci: "1.0.2", features: true, hostProcesses: true, userns: true, timens: true,
		},
		"runsc-2026": {
			name: Runsc, version: "v0.0.0-20260905035102-160fafc42237", spec: "1.2.1", oci: "1.2.1", features: true,
			idmap: true, userns: true, seccomp: true, knows11: true,
		},
		"runsc-2025": {
			name: Runsc, version: "v0.0.0-20250503011706-39ed1f5ac29c", spec: "1.1.0-rc.1", oci: "1.0.2",
		},
	} {
		t.Run(dir, func(t *testing.T) {
			if got := factsOf(recorded(t, dir)); got != want {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
		})
	}
}

func TestOCIVersion(t *testing.T) {
	for highest, want := range map[string]string{
		"":           "1.0.2",
		"nonsense":   "1.0.2",
		"1.0.2-dev":  "1.0.2-dev",
		"1.0.0":      "1.0.0",
		"1.1.0+dev":  "1.1.0",
		"1.2.1":      "1.2.1",
		"1.3.0":      "1.3.0",
		"1.4.0":      specs.Version,
		"2.0.0-rc.1": specs.Version,
	} {
		rt := &Runtime{Features: &features.Features{OCIVersionMax: highest}}
		test.Equal(t, fmt.Sprintf("ociVersionMax %q", highest), rt.OCIVersion(), want)
	}
	test.Equal(t, "no runtime", (*Runtime)(nil).OCIVersion(), minimalOCIVersion)
}

// Without information, no feature counts as supported.
func TestUnknownIsNo(t *testing.T) {
	for name, rt := range map[string]*Runtime{
		"nil": nil, "empty": {}, "a crun with a version only": {Name: Crun, Version: "1.8"}, "a crun without a version": {Name: Crun},
		"a runc with a version only": {Name: Runc, Version: "1.8.1"}, "a crun with empty features": {Name: Crun, Version: "1.9", Features: &features.Features{}}, "empty features": {Features: &features.Features{}}, "empty linux": {Features: &features.Features{Linux: &features.Linux{}}},
	} {
		for what, got := range map[string]bool{
			"rro": rt.SupportsRecursiveReadOnly(), "idmap": rt.SupportsIDMap(), "userns": rt.SupportsUserNamespaces(),
			"net devices": rt.SupportsNetDevices(), "seccomp": rt.Seccomp() == capability.Yes, "lack of seccomp": rt.Seccomp() == capability.No,
			"systemd": rt.SystemdCgroup() == capability.Yes, "apparmor": rt.AppArmor() == capability.Yes, "selinux": rt.SELinux() == capability.Yes,
			"OCI 1.1": rt.KnowsOCI("1.1.0"), "checkpoints": rt.MakesCheckpoints(),
		} {
			if got {
				t.Errorf("%s: claims %s", name, what)
			}
		}
	}
}

func TestMakesCheckpoints(t *testing.T) {
	for name, c := range map[string]struct {
		rt   *Runtime
		want bool
	}{
		"runc":                {&Runtime{Features: &features.Features{Annotations: map[string]string{"org.opencontainers.runc.checkpoint.enabled": "true"}}}, true},
		"runc without":        {&Runtime{Features: &features.Features{Annotations: map[string]string{"org.opencontainers.runc.checkpoint.enabled": "false"}}}, false},
		"crun":                {&Runtime{Features: &features.Features{}, BuildTags: []string{"+SYSTEMD", "+CRIU"}}, true},
		"crun without":        {&Runtime{BuildTags: []string{"+SYSTEMD", "-CRIU"}}, false},
		"crun, by annotation": {&Runtime{Features: &features.Features{Annotations: map[string]string{"run.oci.crun.checkpoint.enabled": "true"}}}, true},
	} {
		test.Equal(t, name, c.rt.MakesCheckpoints(), c.want)
	}
}

func TestLacksRestore(t *testing.T) {
	for name, c := range map[string]struct {
		rt   *Runtime
		want string
	}{
		"no runtime":                   {nil, ""},
		"runc":                         {&Runtime{Name: Runc, Version: "1.1.5"}, ""},
		"runc of a shim":               {&Runtime{Name: Runc, Version: "1.1.5", Driven: &Identity{}}, ""},
		"crun":                         {&Runtime{Name: Crun, Version: "1.23"}, ""},
		"old crun":                     {&Runtime{Name: Crun, Version: "1.22"}, "crun before 1.23 cannot"},
		"crun of a shim":               {&Runtime{Name: Crun, Version: "1.27", Driven: &Identity{}}, "without a shim"},
		"crun with an unknown version": {&Runtime{Name: Crun, Version: "UNKNOWN"}, ""},
	} {
		if got := c.rt.LacksRestore(); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestLacksSeccomp(t *testing.T) {
	no := false
	for name, rt := range map[string]*Runtime{
		"features":  {Features: &features.Features{Linux: &features.Linux{Seccomp: &features.Seccomp{Enabled: &no}}}},
		"build tag": {BuildTags: []string{"+SYSTEMD", "-SECCOMP"}},
	} {
		if rt.Seccomp() != capability.No {
			t.Errorf("%s: the runtime reports no seccomp, but the answer is not \"no\"", name)
		}
	}
}

func TestParseVersion(t *testing.T) {
	for out, want := range map[string][2]string{
		"runc version 1.5.2\nspec: 1.3.0\n": {Runc, "1.5.2"},
		// nvidia-container-runtime prints its version before that of its runtime.
		"NVIDIA Container Runtime version 1.17.4\ncommit: 9b69590\nspec: 1.2.0\n\nrunc version 1.2.4\n": {Runc, "1.2.4"},
		"sysbox-runc\n\tedition: \tCommunity Edition (CE)\n\tversion: \t0.6.6\n":                        {"", "0.6.6"},
		"wasm-runner version 0.3\n": {"", "0.3"},
		" \n":                       {"", ""},
	} {
		rt := parseVersion(out)
		if got := [2]string{rt.Name, rt.Version}; got != want {
			t.Errorf("%q: got %q, want %q", out, got, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("runc version 1.5.2\nspec: 1.3.0\n+SECCOMP -CRIU\n", `{"ociVersionMax":"1.2.0","linux":{}}`)
	f.Add("youki version: 0.5.7", `[]`)
	f.Fuzz(func(t *testing.T, version, document string) {
		rt := parseVersion(version)
		rt.Features = parseFeatures([]byte(document))
		_ = factsOf(rt)
		if v := rt.OCIVersion(); v == "" || v[0] < '0' || v[0] > '9' {
			t.Errorf("ociVersion %q", v)
		}
	})
}
