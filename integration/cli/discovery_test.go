package cli

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berth-cri/berth/integration/testbed"
)

// places is a directory with links to runtimes.
func places(t *testing.T, runtimes ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, r := range runtimes {
		testbed.Must(t, os.Symlink(testbed.Part(t, r), filepath.Join(dir, r)))
	}
	return dir
}

// newDiscovering is a node without a configured handler.
func newDiscovering(t *testing.T, environment ...string) *node {
	t.Helper()
	return &node{testbed.StartBed(t, "cli/busybox:1", testbed.Options{Runtimes: map[string]string{}, Environment: environment})}
}

// discovered is what "berth check" finds in that environment: names, and a star behind the
// default.
func (n *node) discovered(t *testing.T, environment ...string) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), commandTimeout)
	defer cancel()
	cmd := n.command(ctx, "check", "-c", n.ConfigFile, "--vendor-dir", filepath.Join(n.Dir, "vendor.d"), "-o", "json")
	cmd.Env = environment
	out, err := cmd.Output()
	var j judgement
	if bad := json.Unmarshal(out, &j); bad != nil || len(j.Problems) > 0 {
		t.Fatalf("%v, %v: %s", err, bad, out)
	}
	var names []string
	for _, h := range j.Handlers {
		if h.Default {
			h.Name += "*"
		}
		names = append(names, h.Name)
	}
	return names
}

// served is discovered, of the daemon.
func (n *node) served(t *testing.T) []string {
	t.Helper()
	out, _ := n.berth(t, 0, "handlers", "-o", "json")
	var list struct {
		Handlers []struct {
			Name      string `json:"name"`
			IsDefault bool   `json:"isDefault"`
		} `json:"handlers"`
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var names []string
	for _, h := range list.Handlers {
		if h.IsDefault {
			h.Name += "*"
		}
		names = append(names, h.Name)
	}
	slices.Sort(names)
	return names
}

// TestDiscoveryDoesNotDependOnThePath: what a shell had in its PATH decided which handlers
// there were, and which was the default.
func TestDiscoveryDoesNotDependOnThePath(t *testing.T) {
	testbed.Part(t, testbed.Crun) // so that something is there to be found
	dir := places(t, testbed.Runc, testbed.Runsc)
	n := newDiscovering(t, "PATH="+dir+":"+os.Getenv("PATH"))
	want := n.served(t)
	for _, path := range []string{"/usr/bin:/bin", dir, dir + ":/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin", "/nowhere", ""} {
		if got := n.discovered(t, "PATH="+path); !slices.Equal(got, want) {
			t.Errorf("with PATH=%s check finds %v, the daemon %v", path, got, want)
		}
	}
	if got := n.discovered(t); !slices.Equal(got, want) {
		t.Errorf("without a PATH check finds %v, the daemon %v", got, want)
	}
}

// TestGVisorIsDiscoveredByBothNames: RuntimeClasses call it gvisor, and the discovered
// handler was runsc alone.
func TestGVisorIsDiscoveredByBothNames(t *testing.T) {
	search := "BERTH_SEARCH_PATH=" + places(t, testbed.Runsc, testbed.Runc)
	n := newDiscovering(t, search)
	want := []string{"gvisor", "runc*", "runsc"}
	if got := n.served(t); !slices.Equal(got, want) {
		t.Fatalf("served are %v, want %v", got, want)
	}
	if got := n.discovered(t, search, "PATH=/usr/bin:/bin"); !slices.Equal(got, want) {
		t.Errorf("check finds %v, want %v", got, want)
	}
	for _, name := range []string{"gvisor", "runsc"} {
		n.Client.Pull(t, name, n.Image)
		pod := n.Client.RunPod(t, testbed.PodSpec{Handler: name, Image: n.Image, Command: []string{"sleep", "600"}})
		if out, _ := n.berth(t, 0, "whereis", pod.ID); !strings.Contains(out, "runsc") {
			t.Errorf("the pod of %s is %s", name, out)
		}
	}
}
