package installer

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berth-cri/berth/internal/test"
)

func TestSources(t *testing.T) {
	n := newTestNode(t)
	n.write("/usr/bin/crun-1.8", "crun")
	n.write("/usr/bin/plain/crun", "crun")
	test.Must(t, os.Chmod(filepath.Join(n.root, "/usr/bin/crun-1.8"), 0o755))
	test.Must(t, os.Symlink("/usr/bin/crun-1.8", filepath.Join(n.root, "/usr/bin/crun")))
	for name, c := range map[string]struct{ kind, source, want, wrong string }{
		"a program":         {"crun", "/usr/bin/crun", "/usr/bin/crun-1.8", ""},
		"a directory":       {"crun", "/usr/bin", "/usr/bin/crun-1.8", ""},
		"another name":      {"runc", "/usr/bin/crun", "", "is not named runc"},
		"not there":         {"crun", "/usr/sbin", "", "no such file"},
		"none in it":        {"runsc", "/usr/bin", "", "has no runsc"},
		"not executable":    {"crun", "/usr/bin/plain", "", "is not executable"},
		"Kata as a file":    {"kata", "/usr/bin/crun", "", "is a file; a kata is a directory with bin/containerd-shim-kata-v2"},
		"Kata without shim": {"kata", "/usr/bin", "", "has no bin/containerd-shim-kata-v2"},
	} {
		t.Run(name, func(t *testing.T) {
			r := Runtime{Handler: "h", Kind: c.kind, Source: n.root + c.source}
			got, err := r.source(n.installer().root(), kinds[c.kind])
			if c.wrong == "" && (err != nil || got != n.root+c.want) || c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong)) {
				t.Errorf("got %q, %v, want %q, %q", got, err, c.want, c.wrong)
			}
		})
	}
}

// A runtime that cannot run pods is removed, and berth and the other runtimes stay.
func TestRuntimeFailed(t *testing.T) {
	n := newTestNode(t)
	w := n.wanted()
	broken := w.Runtimes[0]
	broken.Handler = "broken"
	w.Runtimes = append([]Runtime{broken}, w.Runtimes...)
	i := n.installer()
	i.patience = 0
	test.Says(t, i.Install(t.Context(), w), "handler broken is not ready")
	test.EqualLists(t, "the handlers", n.served(), []string{"containerd", "crun", "kata", "runc"})
	test.ErrorIs(t, test.Err(os.Stat(filepath.Join(n.root, "/opt/berth/runtimes/broken"))), fs.ErrNotExist, "find the removed files of broken")
}

// Runtimes are added, upgraded and removed on a node with berth, without a restart of any service.
func TestRuntimesLive(t *testing.T) {
	n := newTestNode(t)
	w := n.wanted()
	all := w.Runtimes
	w.Runtimes = nil
	install := func() {
		t.Helper()
		test.Must(t, n.install(w))
	}
	install()
	n.asked = nil
	w.Runtimes = all
	install()
	w.Runtimes = slices.Clone(all)
	w.Runtimes[0].Version = "1.25"
	install()
	if got := n.read(dropIns + "/50-crun.toml"); !strings.Contains(got, "/1.25/crun") {
		t.Errorf("the drop-in of crun is %s, want version 1.25", got)
	}
	if n.read("/opt/berth/runtimes/crun/1.24/crun") != "crun 1.24" {
		t.Error("the older version, which pods may use, is gone")
	}
	w.Runtimes = all[1:]
	install()
	if got := n.read(dropIns + "/50-crun.toml"); !strings.Contains(got, "endpoint = ") {
		t.Errorf("the drop-in of crun is %s, want the endpoint of the other daemon", got)
	}
	for _, command := range n.asked {
		if strings.Contains(command, "restart") {
			t.Errorf("unexpected command %q", command)
		}
	}
}

// A removed runtime's files stay while pods of berth's engine use them, even if its handler already
// forwards to the other daemon.
func TestRuntimeWithPods(t *testing.T) {
	n := newTestNode(t)
	w := n.wanted()
	test.Must(t, n.install(w))
	n.pod("def", "crun")
	w.Runtimes = w.Runtimes[1:]
	if err := n.install(w); !errors.Is(err, ErrPods) || !strings.Contains(err.Error(), "1 pod (shop/def)") {
		t.Errorf("got %v, want a wait for 1 pod", err)
	}
	test.Equal(t, "the runtime of the pod", n.read("/opt/berth/runtimes/crun/1.24/crun"), "crun 1.24")
	test.Must(t, os.RemoveAll(filepath.Join(n.root, recordsOfPods)))
	test.Must(t, n.install(w))
	test.ErrorIs(t, test.Err(os.Stat(filepath.Join(n.root, "/opt/berth/runtimes/crun"))), fs.ErrNotExist, "find the removed files of crun")
}

// If a runtime's new version cannot run pods, the previous version stays in use.
func TestRuntimesNextVersionFailed(t *testing.T) {
	n := newTestNode(t)
	w, before := n.wanted(), n.tree()
	test.Must(t, n.install(w))
	w.Runtimes[0].Version = "broken-1.25"
	i := n.installer()
	i.patience = 0
	n.asked = nil
	test.Says(t, i.Install(t.Context(), w), "handler crun is not ready")
	if got := n.read(dropIns + "/50-crun.toml"); !strings.Contains(got, "/1.24/crun") || n.asked[len(n.asked)-1] != "berth handlers -o json" {
		t.Errorf("the drop-in of crun is %s, after the commands %q", got, n.asked)
	}
	test.Must(t, n.uninstall())
	n.as(before)
}
