package installer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-cri/berth/pkg/installer/kubelet"
)

func installed(t *testing.T) (*node, Wanted) {
	t.Helper()
	n := newTestNode(t)
	w := n.wanted()
	if err := n.installer("").Install(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	return n, w
}

// An installer that is used again asks for the turn again: another node may have it by now.
func TestTurnOfEachRun(t *testing.T) {
	n := newTestNode(t)
	w, i := n.wanted(), n.installer("")
	n.fails["berth check"] = exited(2)
	if err := i.Install(t.Context(), w); err == nil {
		t.Error("it does not fail")
	}
	n.fails = map[string]error{}
	turns := n.turns
	if err := i.Install(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	if n.turns != turns+1 {
		t.Errorf("the turn was taken %d times", n.turns)
	}
}

// A handler that a brought runtime had is the other daemon's when that goes, also if the values
// without the runtime are no good.
func TestBackKeepsHandlers(t *testing.T) {
	n, w := installed(t)
	w.Runtimes = w.Runtimes[1:]
	w.Config = "[metrics]\naddress = \"127.0.0.1:10248\""
	n.doctor = `{"check":"ports","level":"fail"}`
	if err := n.installer("").Install(t.Context(), w); err == nil {
		t.Error("it does not fail")
	}
	if got := n.read(handlerFile("crun")); !strings.Contains(got, theirs) {
		t.Errorf("crun is %s", got)
	}
}

// Who leads to another version by hand, and starts it, gets the wanted one back.
func TestOtherVersionRuns(t *testing.T) {
	n, w := installed(t)
	w.Version = "1.1.0"
	if err := n.installer("").Install(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(n.root, current)
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("1.0.0", link); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Run(t.Context(), "systemctl", "restart", "berth.service"); err != nil || n.version != "1.0.0" {
		t.Fatalf("%s runs: %v", n.version, err)
	}
	if err := n.installer("").Install(t.Context(), w); err != nil || n.version != "1.1.0" {
		t.Errorf("%s runs: %v", n.version, err)
	}
}

// A berth that was started meanwhile, without files that are written again, has their settings.
func TestStartFollowsFiles(t *testing.T) {
	for name, meanwhile := range map[string]func(*node, Wanted){
		"removed": func(n *node, _ Wanted) {
			if err := os.RemoveAll(filepath.Join(n.root, "etc/berth")); err != nil {
				n.t.Fatal(err)
			}
		},
		"unwanted for a while": func(n *node, _ Wanted) {
			n.pod("abc", "x")
			if err := n.installer("").Uninstall(n.t.Context()); !errors.Is(err, ErrPods) {
				n.t.Fatal(err)
			}
		},
		"other values for a while": func(n *node, w Wanted) {
			w.Config = "[metrics]\naddress = \"127.0.0.1:9998\""
			if !killed(func() { _ = n.installer("installer.config.done").Install(n.t.Context(), w) }) {
				n.t.Fatal("it was not interrupted")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			n, w := installed(t)
			n.t = t
			meanwhile(n, w)
			if _, err := n.Run(t.Context(), "systemctl", "restart", "berth.service"); err != nil { // as at a boot
				t.Fatal(err)
			}
			if err := n.installer("").Install(t.Context(), w); err != nil {
				t.Fatal(err)
			}
			if n.started != n.read(extraFile) {
				t.Errorf("berth runs with %q, and its file is %q", n.started, n.read(extraFile))
			}
		})
	}
}

// TestInterruptedWhileDown ends, or kills, an upgrade to a version that does not start, below a
// kubelet that uses berth: the run itself, or the node's timer, brings the former version back.
func TestInterruptedWhileDown(t *testing.T) {
	for _, kill := range []bool{false, true} {
		t.Run(fmt.Sprintf("killed %t", kill), func(t *testing.T) {
			n, w := installed(t)
			before := w
			ctx, end := context.WithCancel(t.Context())
			defer end()
			w.Version, w.Config, n.broken = "1.1.0", "[metrics]\naddress = \"x\"", "1.1.0"
			i := n.installer("")
			i.at = func(place string) {
				if place == "installer.start.half" {
					n.running["berth"] = false // a restart stops it, and the new one does not come up
					if kill {
						panic(interrupted(place))
					}
					end()
				}
			}
			if was := killed(func() {
				if err := i.Install(ctx, w); err == nil {
					t.Error("it does not fail")
				}
			}); was != kill {
				t.Errorf("killed: %t", was)
			}
			if kill {
				if !n.running["rescue"] || n.running["berth"] {
					t.Fatalf("the rescue is armed: %t", n.running["rescue"])
				}
				if err := n.installer("").Rescue(t.Context()); err != nil {
					t.Fatal(err)
				}
				if !n.running["rescue"] {
					t.Error("nobody finishes what was begun, and the rescue is gone")
				}
			}
			if !n.running["berth"] || n.version != "1.0.0" || n.endpoint != ours || strings.Contains(n.read(extraFile), `"x"`) {
				t.Errorf("berth runs: %t, version %s; the kubelet uses %s", n.running["berth"], n.version, n.endpoint)
			}
			if err := n.installer("").Install(t.Context(), before); err != nil {
				t.Fatal(err)
			}
			if n.running["rescue"] {
				t.Error("the rescue is left")
			}
		})
	}
}

// Going back makes room, and does not wait for it.
func TestBackWithoutRoom(t *testing.T) {
	n, w := installed(t)
	w.Version, w.Config, n.broken = "1.1.0", "[metrics]\naddress = \"x\"", "1.1.0"
	inTheWay := filepath.Join(filepath.Dir(journalFile), ".journal.json.new", "in the way")
	i := n.installer("")
	i.at = func(place string) {
		if place == "installer.start.half" {
			n.running["berth"] = false
			n.write(inTheWay, "")
		}
	}
	if err := i.Install(t.Context(), w); err == nil {
		t.Error("it does not fail")
	}
	link, err := os.Readlink(filepath.Join(n.root, current))
	if !n.running["berth"] || link != "1.0.0" || err != nil || strings.Contains(n.read(extraFile), `"x"`) {
		t.Errorf("berth runs: %t, %s is current (%v), with %s", n.running["berth"], link, err, n.read(extraFile))
	}
	// The same values come into force once they can, though the journal has them as written.
	n.broken = ""
	if err := os.RemoveAll(filepath.Join(n.root, filepath.Dir(inTheWay))); err != nil {
		t.Fatal(err)
	}
	if err := n.installer("").Install(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	if n.version != "1.1.0" || !strings.Contains(n.started, `"x"`) {
		t.Errorf("berth %s runs with %q", n.version, n.started)
	}
}

// A kubelet that was led elsewhere, and cannot be moved again, goes back to where it served. That
// pods are in the way of that is no reason to wait for them, but a failure.
func TestMovedAgainAndFailed(t *testing.T) {
	for _, pods := range []bool{false, true} {
		t.Run(fmt.Sprintf("pods %t", pods), func(t *testing.T) {
			n, w := installed(t)
			for _, path := range []string{kubelet.Config, "/var/lib/kubelet/kubeadm-flags.env"} {
				n.write(path, strings.ReplaceAll(n.read(path), ours, theirs))
			}
			n.endpoint = theirs
			if pods {
				n.pod("abc", "crun")
			}
			i := n.installer("")
			i.at = func(place string) {
				switch place {
				case "installer.kubelet.restarted":
					n.forbidden = fmt.Errorf("cannot get nodes: %w", ErrFinal)
				case "installer.kubelet.restored":
					n.forbidden = nil
				}
			}
			err := i.Install(t.Context(), w)
			if err == nil || errors.Is(err, ErrPods) || !strings.Contains(err.Error(), "cannot get nodes") || strings.Contains(err.Error(), "shop/abc") != pods || !n.held {
				t.Errorf("got %v; the turn is held: %t", err, n.held)
			}
			if !pods && (n.endpoint != theirs || n.kubeletEndpoint() != theirs || n.running["rescue"]) {
				t.Errorf("the kubelet uses %s; the rescue is left: %t", n.endpoint, n.running["rescue"])
			}
			if pods && !n.running["rescue"] {
				t.Error("the node is not rescued")
			}
		})
	}
}
