package main

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/mod/modfile"

	"github.com/berth-cri/berth/integration/testbed"
)

// TestModulesAgree checks that all modules of go.work require the same versions, so that tests
// run with the dependencies with which each module is built alone.
func TestModulesAgree(t *testing.T) {
	root, err := testbed.Repository()
	testbed.Must(t, err)
	data, err := os.ReadFile(filepath.Join(root, "go.work"))
	testbed.Must(t, err)
	work, err := modfile.ParseWork("go.work", data, nil)
	testbed.Must(t, err)
	if len(work.Use) < 2 {
		t.Fatalf("go.work uses %d modules", len(work.Use))
	}
	type named struct{ version, file string }
	seen := map[string]named{}
	for _, use := range work.Use {
		file := filepath.Join(use.Path, "go.mod")
		data, err := os.ReadFile(filepath.Join(root, file))
		testbed.Must(t, err)
		module, err := modfile.Parse(file, data, nil)
		testbed.Must(t, err)
		if module.Go.Version != work.Go.Version {
			t.Errorf("%s has go %s, go.work %s", file, module.Go.Version, work.Go.Version)
		}
		for _, r := range module.Require {
			if other, ok := seen[r.Mod.Path]; ok && other.version != r.Mod.Version {
				t.Errorf("%s has %s, %s has %s: go get the newer one in both", file, r.Mod, other.file, other.version)
			}
			seen[r.Mod.Path] = named{r.Mod.Version, file}
		}
	}
}

// TestPluginsAgree checks that networks in process are compared with plugins of the same version as
// the packages that they use.
func TestPluginsAgree(t *testing.T) {
	root, err := testbed.Repository()
	testbed.Must(t, err)
	const plugins = "github.com/containernetworking/plugins"
	version := func(file string) string {
		data, err := os.ReadFile(filepath.Join(root, file))
		testbed.Must(t, err)
		module, err := modfile.Parse(file, data, nil)
		testbed.Must(t, err)
		for _, r := range module.Require {
			if r.Mod.Path == plugins {
				return r.Mod.Version
			}
		}
		t.Fatalf("%s does not require %s", file, plugins)
		return ""
	}
	const compared = "integration/runtimes/cni/go.mod"
	if used, other := version("go.mod"), version(compared); used != other {
		t.Errorf("go.mod has %s %s, %s has %s: go get the newer one in both", plugins, used, compared, other)
	}
}
