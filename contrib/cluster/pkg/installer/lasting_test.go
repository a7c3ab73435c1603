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

// TestDoneAndUndoneByOthers undoes one part of an installation. The next run repairs it, and an
// uninstallation still restores the node's prior state.
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
		"another version is linked": func(n *node) {
			remove(current)(n)
			test.Must(n.t, os.Symlink("0.9.0", filepath.Join(n.root, current)))
		},
		"the unit of berth is removed":        remove(unitFile),
		"the configuration is removed":        remove(configFile),
		"the program is removed":              remove("/opt/berth/1.0.0/bin/berth"),
		"the drop-in of a runtime is removed": remove(handlerFile("kata")),
		"the kubelet is moved back": func(n *node) {
			remove(kubeletconf.DropIn)(n)
			n.endpoint = theirs
		},
		"the program of a runtime is removed": remove("/opt/berth/runtimes/crun/1.24/crun"),
		"the unit of the kubelet has changed": func(n *node) {
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
			test.Checkf(t, test.Err(os.Lstat(filepath.Join(n.root, "/etc/systemd/system/multi-user.target.wants/berth.service"))), "berth is not enabled")
			for _, path := range []string{unitFile, configFile, program, handlerFile("kata"), "/opt/berth/runtimes/crun/1.24/crun"} {
				if got := n.read(path); strings.Contains(got, "no such file") {
					t.Error(got)
				}
			}
			// Another run has nothing to do.
			n.asked = nil
			test.Must(t, n.install(w))
			if slices.ContainsFunc(n.asked, func(c string) bool { return strings.Contains(c, "restart") }) {
				t.Errorf("another run restarts a service: %q", n.asked)
			}
			if unit := n.read("/usr/lib/systemd/system/kubelet.service"); !strings.Contains(n.read(kubeletconf.DropIn), strings.TrimSpace(unit[strings.LastIndex(unit, "="):])) {
				t.Errorf("the kubelet's drop-in is %s, want the command line of its unit", n.read(kubeletconf.DropIn))
			}
			test.Must(t, n.uninstall())
			if name != "the unit of the kubelet has changed" {
				n.as(before)
			}
		})
	}
	t.Run("the kubelet is moved to a third daemon", func(t *testing.T) {
		n := newTestNode(t)
		n.others = []string{crio}
		test.Must(t, n.install(n.wanted()))
		for _, path := range []string{kubeletconf.Config, "/var/lib/kubelet/kubeadm-flags.env"} {
			n.write(path, strings.ReplaceAll(n.read(path), theirs, crio))
		}
		remove(kubeletconf.DropIn)(n)
		n.endpoint = crio
		// The first daemon does not run any more, and is not needed.
		n.dead = true
		test.Must(t, n.uninstall())
		if n.kubeletEndpoint() != crio || n.endpoint != crio {
			t.Errorf("the kubelet uses %s, and its files have %s, want the third daemon", n.endpoint, n.kubeletEndpoint())
		}
	})
}

// TestConfigDir has the endpoint in a file of the kubelet's --config-dir, which has priority.
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
			t.Errorf("got %v, want the file %s; berth runs: %t", err, dropIn, n.running["berth"])
		}
	})
}

// When the installation ends, berth uses even settings that need a restart.
func TestSettingsOfTheStart(t *testing.T) {
	n := newTestNode(t)
	w := n.wanted()
	test.Must(t, n.install(w))
	n.asked = nil
	w.Config = "[metrics]\naddress = \"127.0.0.1:9999\""
	test.Must(t, n.install(w))
	if n.started != n.read(extraFile) {
		t.Errorf("berth runs with the configuration %q, after the commands %q", n.started, n.asked)
	}
}

// While the removal of a runtime waits for its pods, all other changes are made. A failure is
// reported instead of the wait.
func TestWaitingForPods(t *testing.T) {
	n := newTestNode(t)
	w := n.wanted()
	test.Must(t, n.install(w))
	n.pod("def", "crun")
	w.Runtimes = w.Runtimes[1:]
	w.Version = "1.1.0"
	if err := n.install(w); !errors.Is(err, ErrPods) || !strings.Contains(err.Error(), "1 pod (shop/def)") {
		t.Errorf("got %v, want a wait for 1 pod", err)
	}
	if n.version != "1.1.0" {
		t.Errorf("version %s runs, want 1.1.0", n.version)
	}
	w.Version, n.broken = "1.2.0", "1.2.0"
	if err := n.install(w); err == nil || errors.Is(err, ErrPods) || !strings.Contains(err.Error(), "berth does not start") {
		t.Errorf("got %v, want the failed start", err)
	}
	n.broken = ""
	test.Must(t, os.RemoveAll(filepath.Join(n.root, recordsOfPods)))
	if err := n.install(w); err != nil {
		t.Errorf("without pods, install returns %v", err)
	}
	if got := n.read("/opt/berth/runtimes/crun/1.24/crun"); !strings.Contains(got, "no such file") {
		t.Errorf("the files of crun are left: %s", got)
	}
}

// TestFailedConfig installs a configuration that berth refuses, or with which it is not healthy. The
// last healthy version and configuration must be restored, and run.
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
				test.Fails(t, n.install(w), "the installation succeeds")
				if name != "does not load" && (n.read(extraFile) != good || n.started != good || n.version != "1.0.0") {
					t.Errorf("berth %s runs with %q, and after a restart with %q", n.version, n.started, n.read(extraFile))
				}
				// Without the failure, the same values are installed.
				n.fails, n.doctor = map[string]error{}, ""
				test.Must(t, n.install(w))
				if got := n.read(extraFile); got == good || n.started != got || n.version != version {
					t.Errorf("berth %s runs with %q, and after a restart with %q", n.version, n.started, got)
				}
				if !strings.Contains(n.read(handlerFile("runc"))+n.read(handlerFile("runc")+keptSuffix), "# edited") {
					t.Error("the edit of a drop-in is lost")
				}
				test.Must(t, os.RemoveAll(filepath.Join(n.root, handlerFile("runc")+keptSuffix)))
				test.Must(t, n.uninstall())
				if err := os.RemoveAll(filepath.Join(n.root, "etc/berth")); err != nil { // has the kept edit
					t.Fatal(err)
				}
				n.as(before)
			})
		}
	}
}

// The unit was removed by hand while berth runs: an uninstallation still stops berth.
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
		t.Fatalf("version %s runs, want 1.0.0: %v", n.version, err)
	}
	if err := n.install(w); err != nil || n.version != "1.1.0" {
		t.Errorf("version %s runs, want 1.1.0: %v", n.version, err)
	}
}

func installed(t *testing.T) (*node, Wanted) {
	t.Helper()
	n := newTestNode(t)
	w := n.wanted()
	test.Must(t, n.install(w))
	return n, w
}

// others is another CRI daemon with these handlers.
type others struct{ handlers []string }

func (o *others) Ask(context.Context, string) (Beside, error) {
	return Beside{Handlers: o.handlers, CgroupDriver: "cgroupfs"}, nil
}

// The other daemon's handlers and endpoint change while the installer provides crun itself.
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
		t.Errorf("the drop-in of crun is %s, want the endpoint of the other daemon", got)
	}
	w.Runtimes, w.Endpoint = all, theirs
	install()
	w.Runtimes = all[1:]
	install()
	if got := n.read(handlerFile("crun")); !strings.Contains(got, theirs) {
		t.Errorf("the drop-in of crun is %s, want the endpoint of the other daemon", got)
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
