package installer

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/kubeletconf"
)

// repaired kills a run at each of its places, which are between any two changes and commands, each
// time on a new node. Then it calls a check of after, which may run the installer again, and
// uninstalls, which must restore the node.
func repaired(t *testing.T, first func(*node, Wanted) Wanted, run func(*node, Wanted) error, after map[string]func(*testing.T, *node, Wanted)) {
	t.Helper()
	for name, check := range after {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for place, passed := 0, true; passed; place++ {
				n := newTestNode(t)
				w, before := n.wanted(), n.tree()
				if first != nil {
					w = first(n, w)
				}
				passed = n.killed(place, func() error { return run(n, w) })
				check(t, n, w)
				test.Mustf(t, n.uninstall(), "place %d", place)
				if n.as(before); t.Failed() {
					t.Fatalf("the run was killed at place %d", place)
				}
				if !passed && place < 20 {
					t.Errorf("the run has only %d places", place)
				}
			}
		})
	}
}

func isInstalled(t *testing.T, n *node, version string) {
	t.Helper()
	link, err := os.Readlink(filepath.Join(n.root, current))
	if n.endpoint != ours || !n.running["berth"] || n.version != version || link != version || err != nil {
		t.Errorf("the kubelet uses %s; berth runs: %t, version %q, current is %q, %v", n.endpoint, n.running["berth"], n.version, link, err)
	}
}

// TestInterrupted kills an installation at every place. The next run finishes it, or an
// uninstallation restores the node to the byte.
func TestInterrupted(t *testing.T) {
	repaired(t, nil, (*node).install, map[string]func(*testing.T, *node, Wanted){
		"finished": func(t *testing.T, n *node, w Wanted) {
			test.Must(t, n.install(w))
			isInstalled(t, n, "1.0.0")
		},
		"undone": func(*testing.T, *node, Wanted) {},
	})
}

func installedFirst(n *node, w Wanted) Wanted {
	test.Must(n.t, n.install(w))
	return w
}

// TestInterruptedUninstall kills an uninstallation at every place. The next run finishes it, or
// installs berth again completely.
func TestInterruptedUninstall(t *testing.T) {
	repaired(t, installedFirst, func(n *node, _ Wanted) error { return n.uninstall() }, map[string]func(*testing.T, *node, Wanted){
		"finished": func(*testing.T, *node, Wanted) {},
		"wanted again": func(t *testing.T, n *node, w Wanted) {
			test.Must(t, n.install(w))
			isInstalled(t, n, "1.0.0")
		},
	})
}

// TestInterruptedUpgrade kills an upgrade at every place. The next run finishes it, or rolls back to
// the previous version, if that is wanted or another new version does not start.
func TestInterruptedUpgrade(t *testing.T) {
	upgraded := func(n *node, w Wanted) Wanted {
		w = installedFirst(n, w)
		writeFile(n.t, filepath.Join(n.payload, "berth.service"), "[Service]\nExecStart=/usr/bin/berth serve --new-flag\n", 0o644)
		w.Version, w.Config, w.Runtimes[0].Version = "1.1.0", w.Config+"\n# more", "1.25"
		return w
	}
	next := func(version string, fail func(*node), want string) func(*testing.T, *node, Wanted) {
		return func(t *testing.T, n *node, w Wanted) {
			t.Helper()
			// If the upgrade was already finished, a failed run rolls back to its version.
			finished := n.version == "1.1.0" && mustState(t, n).Healthy.Version == "1.1.0"
			fail(n)
			w.Version = version
			err := n.install(w)
			if (err != nil) != (version != want) {
				t.Errorf("install of %s returns %v", version, err)
			}
			if finished && err != nil {
				want = "1.1.0"
			}
			isInstalled(t, n, want)
			n.broken, n.doctor = "", ""
		}
	}
	repaired(t, upgraded, (*node).install, map[string]func(*testing.T, *node, Wanted){
		"finished":    next("1.1.0", func(*node) {}, "1.1.0"),
		"rolled back": next("1.0.0", func(*node) {}, "1.0.0"),
		"not started": next("1.2.0", func(n *node) { n.broken = "1.2.0" }, "1.0.0"),
	})
}

func mustState(t *testing.T, n *node) *state {
	t.Helper()
	return test.Value(readState(n.installer().root()))(t)
}

// TestEnded cancels a run at every place, as a kubelet does that stops the pod. The kubelet still has
// a runtime, and the next run finishes the installation.
func TestEnded(t *testing.T) {
	for place, passes := 0, true; passes; place++ {
		n := newTestNode(t)
		w, before := n.wanted(), n.tree()
		ctx, end := context.WithCancel(t.Context())
		left := place
		n.at = func(string) {
			if left--; left < 0 {
				end()
			}
		}
		err := n.installer().Install(ctx, w)
		end()
		n.at = nil
		passes = left < 0
		if passes && err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled at place %d, Install returns %v", place, err)
		}
		if n.endpoint == ours && !n.running["berth"] {
			t.Errorf("cancelled at place %d, the kubelet has no runtime", place)
		}
		test.Mustf(t, n.install(w), "place %d", place)
		test.Mustf(t, n.uninstall(), "place %d", place)
		n.as(before)
	}
}

// An upgrade to a version that does not start is cancelled: the previous version still runs.
func TestEndedWhileDown(t *testing.T) {
	n := newTestNode(t)
	w := installedFirst(n, n.wanted())
	ctx, end := context.WithCancel(t.Context())
	defer end()
	w.Version, n.broken = "1.1.0", "1.1.0"
	n.at = func(place string) {
		if place == "installer.start.linked" {
			n.running["berth"] = false
			end()
		}
	}
	test.ErrorIs(t, n.installer().Install(ctx, w), context.Canceled, "the error")
	isInstalled(t, n, "1.0.0")
}

// A run waits until another run on the same node has ended.
func TestLocked(t *testing.T) {
	n := newTestNode(t)
	w := n.wanted()
	n.at = func(place string) {
		if place != "installer.kubelet.written" {
			return
		}
		ctx, end := context.WithCancel(t.Context())
		end()
		for _, run := range []error{n.installer().Install(ctx, w), n.installer().Uninstall(ctx)} {
			test.ErrorIs(t, run, context.Canceled, "the error")
		}
		if n.kubeletEndpoint() != ours {
			t.Error("another run has moved the kubelet back")
		}
	}
	test.Must(t, n.install(w))
}

// A state file of another format, or a broken one, is not touched.
func TestOtherState(t *testing.T) {
	for text, want := range map[string]string{`{"format": 2}`: "has format 2", "{": "can only be removed by hand"} {
		n := newTestNode(t)
		n.write(stateFile, text)
		before := n.tree()
		for name, err := range map[string]error{"install": n.install(n.wanted()), "uninstall": n.uninstall()} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: got %v, want %q", name, err, want)
			}
		}
		n.as(before)
	}
}

// A killed write leaves its temporary file, which an uninstallation removes.
func TestLeftoversOfKilledWrites(t *testing.T) {
	n := newTestNode(t)
	before := n.tree()
	test.Must(t, n.install(n.wanted()))
	for _, path := range []string{stateFile, unitFile, configFile, extraFile, kubeletconf.DropIn, current} {
		n.write(filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new"), "half")
	}
	test.Must(t, n.uninstall())
	n.as(before)
}
