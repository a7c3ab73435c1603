package installer

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/kubeletconf"
)

// TestDoneAndUndoneByOthers has somebody undo what was done: the next run does it again, and what
// was there before berth came is still known.
func TestDoneAndUndoneByOthers(t *testing.T) {
	const crio = "unix:///run/crio/crio.sock"
	remove := func(path string) func(*node) {
		return func(n *node) {
			test.Must(n.t, os.Remove(filepath.Join(n.root, path)))
		}
	}
	for name, change := range map[string]func(*node){
		"berth is stopped":  func(n *node) { n.running["berth"] = false },
		"berth is disabled": remove("/etc/systemd/system/multi-user.target.wants/berth.service"),
		"another version": func(n *node) {
			remove(current)(n)
			test.Must(n.t, os.Symlink("0.9.0", filepath.Join(n.root, current)))
		},
		"its unit":          remove(unitFile),
		"its configuration": remove(configFile),
		"its program":       remove("/opt/berth/1.0.0/bin/berth"),
		"a runtime":         remove(handlerFile("kata")),
		"the kubelet": func(n *node) {
			remove(kubeletconf.DropIn)(n)
			n.endpoint = theirs
		},
		"a program of a runtime": remove("/opt/berth/runtimes/crun/1.24/crun"),
		"the unit of the kubelet": func(n *node) {
			n.write("/usr/lib/systemd/system/kubelet.service", "[Service]\nExecStart=/usr/bin/kubelet --v=4 $KUBELET_KUBEADM_ARGS\n")
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newTestNode(t)
			w, before := n.wanted(), n.tree()
			test.Must(t, n.install(w))
			change(n)
			again := n.installer()
			again.patience = time.Second
			test.Must(t, again.Install(t.Context(), w))
			link, err := os.Readlink(filepath.Join(n.root, current))
			if !n.running["berth"] || n.endpoint != ours || n.kubeletEndpoint() != ours || link != "1.0.0" || err != nil {
				t.Errorf("berth runs: %t, version %s (%v); the kubelet uses %s", n.running["berth"], link, err, n.endpoint)
			}
			test.Checkf(t, test.Err(os.Lstat(filepath.Join(n.root, "/etc/systemd/system/multi-user.target.wants/berth.service"))), "it does not start with the node")
			for _, path := range []string{unitFile, configFile, program, handlerFile("kata"), "/opt/berth/runtimes/crun/1.24/crun"} {
				if got := n.read(path); strings.Contains(got, "no such file") {
					t.Error(got)
				}
			}
			// What holds is left alone.
			n.asked = nil
			test.Must(t, n.install(w))
			if slices.ContainsFunc(n.asked, func(c string) bool { return strings.Contains(c, "restart") }) {
				t.Errorf("it is done again: %q", n.asked)
			}
			if unit := n.read("/usr/lib/systemd/system/kubelet.service"); !strings.Contains(n.read(kubeletconf.DropIn), strings.TrimSpace(unit[strings.LastIndex(unit, "="):])) {
				t.Errorf("the drop-in is %s", n.read(kubeletconf.DropIn))
			}
			test.Must(t, n.uninstall())
			if name != "the unit of the kubelet" {
				n.as(before)
			}
		})
	}
	t.Run("to a third daemon", func(t *testing.T) {
		n := newTestNode(t)
		n.others = []string{crio}
		test.Must(t, n.install(n.wanted()))
		for _, path := range []string{kubeletconf.Config, "/var/lib/kubelet/kubeadm-flags.env"} {
			n.write(path, strings.ReplaceAll(n.read(path), theirs, crio))
		}
		remove(kubeletconf.DropIn)(n)
		n.endpoint = crio
		// The first daemon is no longer there, and no longer needed.
		n.dead = true
		test.Must(t, n.uninstall())
		if n.kubeletEndpoint() != crio || n.endpoint != crio {
			t.Errorf("the kubelet uses %s, by its files %s", n.endpoint, n.kubeletEndpoint())
		}
	})
}

// TestConfigDir has an endpoint in a file of the kubelet's --config-dir, which wins.
func TestConfigDir(t *testing.T) {
	const dropIn = "/etc/kubernetes/kubelet.conf.d/50-runtime.conf"
	withDir := func(endpoint string) *node {
		n := newTestNode(t)
		n.write("/var/lib/kubelet/kubeadm-flags.env", "KUBELET_KUBEADM_ARGS=\"--config-dir="+filepath.Dir(dropIn)+"\"\n")
		n.write(dropIn, "kind: KubeletConfiguration\ncontainerRuntimeEndpoint: "+endpoint+"\n")
		n.endpoint = n.kubeletEndpoint()
		return n
	}
	t.Run("moved", func(t *testing.T) {
		n := withDir(theirs)
		before := n.tree()
		test.Must(t, n.install(n.wanted()))
		test.Equal(t, "the kubelet uses", n.endpoint, ours)
		test.Must(t, n.uninstall())
		n.as(before)
	})
	t.Run("by hand", func(t *testing.T) {
		n := withDir(theirs)
		w := n.wanted()
		w.Kubelet = false
		test.Must(t, n.install(w))
		n.write(dropIn, strings.ReplaceAll(n.read(dropIn), theirs, ours))
		if err := n.uninstall(); err == nil || !strings.Contains(err.Error(), dropIn) || !n.running["berth"] {
			t.Errorf("got %v; berth runs: %t", err, n.running["berth"])
		}
	})
}

// Settings that count from the daemon's start are in force when the node is said to be as wanted.
func TestSettingsOfTheStart(t *testing.T) {
	n := newTestNode(t)
	w := n.wanted()
	test.Must(t, n.install(w))
	n.asked = nil
	w.Config = "[metrics]\naddress = \"127.0.0.1:9999\""
	test.Must(t, n.install(w))
	if n.started != n.read(extraFile) {
		t.Errorf("berth runs with %q; it was asked %q", n.started, n.asked)
	}
}

// A node that waits for pods to be gone has the rest of what is wanted. A failure is no reason to
// wait.
func TestWaitingForPods(t *testing.T) {
	n := newTestNode(t)
	w := n.wanted()
	test.Must(t, n.install(w))
	n.pod("def", "crun")
	w.Runtimes = w.Runtimes[1:]
	w.Version = "1.1.0"
	if err := n.install(w); !errors.Is(err, ErrPods) || !strings.Contains(err.Error(), "1 pod (shop/def)") {
		t.Errorf("got %v", err)
	}
	if n.version != "1.1.0" {
		t.Errorf("version %s runs", n.version)
	}
	w.Version, n.broken = "1.2.0", "1.2.0"
	if err := n.install(w); err == nil || errors.Is(err, ErrPods) || !strings.Contains(err.Error(), "berth does not start") {
		t.Errorf("got %v", err)
	}
	n.broken = ""
	test.Must(t, os.RemoveAll(filepath.Join(n.root, recordsOfPods)))
	if err := n.install(w); err != nil {
		t.Errorf("got %v", err)
	}
	if got := n.read("/opt/berth/runtimes/crun/1.24/crun"); !strings.Contains(got, "no such file") {
		t.Errorf("its files are left: %s", got)
	}
}

// TestFailedConfig has values whose configuration berth refuses, or cannot be healthy with: what
// it was last healthy with is there again, and runs.
func TestFailedConfig(t *testing.T) {
	for name, fail := range map[string]func(*node){
		"refused":       func(n *node) { n.fails["berth check"] = exited(2) },
		"not healthy":   func(n *node) { n.doctor = `{"check":"ports","level":"fail"}` },
		"does not load": func(n *node) { n.fails["berth reload --wait -o json"] = exited(2) },
	} {
		for _, version := range []string{"1.0.0", "1.1.0"} {
			t.Run(name+" "+version, func(t *testing.T) {
				n := newTestNode(t)
				w, before := n.wanted(), n.tree()
				test.Must(t, n.install(w))
				good := n.read(extraFile)
				n.write(handlerFile("runc"), "# edited\n"+n.read(handlerFile("runc")))
				fail(n)
				w.Version, w.Config = version, "[metrics]\naddress = \"127.0.0.1:10248\""
				test.Fails(t, n.install(w), "it does not fail")
				if name != "does not load" && (n.read(extraFile) != good || n.started != good || n.version != "1.0.0") {
					t.Errorf("berth %s runs with %q, and will with %q", n.version, n.started, n.read(extraFile))
				}
				// The same values are tried again, and come into force.
				n.fails, n.doctor = map[string]error{}, ""
				test.Must(t, n.install(w))
				if got := n.read(extraFile); got == good || n.started != got || n.version != version {
					t.Errorf("berth %s runs with %q, and will with %q", n.version, n.started, got)
				}
				if !strings.Contains(n.read(handlerFile("runc"))+n.read(handlerFile("runc")+keptSuffix), "# edited") {
					t.Error("an edit is lost")
				}
				test.Must(t, os.RemoveAll(filepath.Join(n.root, handlerFile("runc")+keptSuffix)))
				test.Must(t, n.uninstall())
				if err := os.RemoveAll(filepath.Join(n.root, "etc/berth")); err != nil { // with an edit that is kept
					t.Fatal(err)
				}
				n.as(before)
			})
		}
	}
}

// The unit was removed, and berth runs on: it is stopped all the same.
func TestUninstallWithoutUnit(t *testing.T) {
	n := newTestNode(t)
	before := n.tree()
	test.Must(t, n.install(n.wanted()))
	test.Must(t, os.Remove(filepath.Join(n.root, unitFile)))
	test.Must(t, n.uninstall())
	n.as(before)
}

// Another version that was linked and started by hand is replaced.
func TestOtherVersionRuns(t *testing.T) {
	n, w := installed(t)
	w.Version = "1.1.0"
	test.Must(t, n.install(w))
	link := filepath.Join(n.root, current)
	test.Must(t, os.Remove(link))
	test.Must(t, os.Symlink("1.0.0", link))
	if _, err := n.Run(t.Context(), "systemctl", "restart", "berth.service"); err != nil || n.version != "1.0.0" {
		t.Fatalf("%s runs: %v", n.version, err)
	}
	if err := n.install(w); err != nil || n.version != "1.1.0" {
		t.Errorf("%s runs: %v", n.version, err)
	}
}

func installed(t *testing.T) (*node, Wanted) {
	t.Helper()
	n := newTestNode(t)
	w := n.wanted()
	test.Must(t, n.install(w))
	return n, w
}

// others is another daemon, whose handlers change.
type others struct{ handlers []string }

func (o *others) Ask(context.Context, string) (Beside, error) {
	return Beside{Handlers: o.handlers, CgroupDriver: "cgroupfs"}, nil
}

// The other daemon changes while a brought runtime has the handler of one of its own.
func TestHandlersOfOthersChange(t *testing.T) {
	n := newTestNode(t)
	w, before := n.wanted(), n.tree()
	other := &others{[]string{"runc"}}
	install := func() {
		t.Helper()
		i := n.installer()
		i.Backend = other
		test.Must(t, i.Install(t.Context(), w))
	}
	install()
	other.handlers = []string{"crun", "runc"}
	install()
	all := w.Runtimes
	w.Runtimes, w.Endpoint = all[1:], "unix:///run/other/containerd.sock"
	install()
	if got := n.read(handlerFile("crun")); !strings.Contains(got, w.Endpoint) {
		t.Errorf("crun is %s", got)
	}
	w.Runtimes, w.Endpoint = all, theirs
	install()
	w.Runtimes = all[1:]
	install()
	if got := n.read(handlerFile("crun")); !strings.Contains(got, theirs) {
		t.Errorf("crun is %s", got)
	}
	w.Runtimes = all
	install()
	test.Must(t, n.uninstall())
	n.as(before)
}

// A mistake is reported before anything is changed.
func TestMistakeChangesNothing(t *testing.T) {
	n, w := installed(t)
	w.Runtimes[0].Handler = "containerd"
	test.Says(t, n.install(w), "choose another name")
	test.Equal(t, "crun", n.read("/opt/berth/runtimes/crun/1.24/crun"), "crun 1.24")
}
