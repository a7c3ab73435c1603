package installer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

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
			i := n.installer("")
			i.patience = time.Second // the files of the handlers are gone as well
			if err := i.Install(t.Context(), w); err != nil {
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

// What the next start of berth reads is not changed before the node's timer waits, and that waits
// until a run has finished what was begun.
func TestArmedBeforeFiles(t *testing.T) {
	for _, place := range []string{"installer.config.half", "installer.config.made", "installer.config.done", "installer.start.noted", "installer.start.half"} {
		t.Run(place, func(t *testing.T) {
			n, w := installed(t)
			w.Config = "[metrics]\naddress = \"127.0.0.1:10248\""
			if !killed(func() { _ = n.installer(place).Install(t.Context(), w) }) {
				t.Fatal("it was not interrupted")
			}
			// The former berth still runs, and the next start would be by what nobody has proved.
			if err := n.installer("").Rescue(t.Context()); err != nil || !n.running["rescue"] {
				t.Errorf("the rescue is armed: %t, %v", n.running["rescue"], err)
			}
			if err := n.installer("").Install(t.Context(), w); err != nil || n.running["rescue"] {
				t.Errorf("the rescue is left: %t, %v", n.running["rescue"], err)
			}
		})
	}
	n, w := installed(t)
	good := n.read(extraFile)
	n.fails["systemctl enable --now "+rescueTimer] = exited(1)
	w.Config = "[metrics]\naddress = \"127.0.0.1:10248\""
	if err := n.installer("").Install(t.Context(), w); err == nil || n.read(extraFile) != good {
		t.Errorf("without a rescue it has %q, %v", n.read(extraFile), err)
	}
}

// What goes back is all that the daemon starts with: its unit, and where its handlers lead.
func TestBackWithAll(t *testing.T) {
	const other = "unix:///run/other/containerd.sock"
	n, w := installed(t)
	n.others = []string{other}
	unit := n.read(unitFile)
	writeFile(t, filepath.Join(n.payload, "berth.service"), "[Service]\nExecStart=/usr/bin/berth serve --new-flag\n", 0o644)
	before := w
	w.Version, w.Endpoint, n.broken = "1.1.0", other, "1.1.0"
	back := func() {
		t.Helper()
		if n.version != "1.0.0" || n.read(unitFile) != unit || !strings.Contains(n.read(configFile), theirs) {
			t.Errorf("berth %s runs by %q with %s", n.version, n.read(unitFile), n.read(configFile))
		}
	}
	if err := n.installer("").Install(t.Context(), w); err == nil {
		t.Error("it starts")
	}
	back()
	n.pod("abc", "x")
	if err := n.installer("").Uninstall(t.Context()); !errors.Is(err, ErrPods) {
		t.Errorf("got %v", err)
	}
	back()
	n.broken = ""
	if err := n.installer("").Install(t.Context(), before); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(n.read(configFile), theirs) || !strings.Contains(n.read(unitFile), "--new-flag") {
		t.Errorf("it has %s by %q", n.read(configFile), n.read(unitFile))
	}
	// A program that cannot be run is a failure as any other.
	good := n.read(extraFile)
	n.fails["berth check"] = os.ErrPermission
	before.Config = "[metrics]\naddress = \"127.0.0.1:10248\""
	if err := n.installer("").Install(t.Context(), before); err == nil || !strings.Contains(err.Error(), "noexec") || n.read(extraFile) != good {
		t.Errorf("got %v; the file is %q", err, n.read(extraFile))
	}
}

// An installation that never came to its end stays a new one, whatever of it has to be done again.
func TestNewStaysNew(t *testing.T) {
	n := newTestNode(t)
	w, before := n.wanted(), n.tree()
	if !killed(func() { _ = n.installer("installer.start.done").Install(t.Context(), w) }) {
		t.Fatal("it was not interrupted")
	}
	n.running["berth"] = false
	n.forbidden = fmt.Errorf("cannot get nodes: %w", ErrFinal)
	if err := n.installer("").Install(t.Context(), w); err == nil {
		t.Error("it does not fail")
	}
	n.as(before)
}

// A single file that is gone is brought again. What runs keeps its own meanwhile.
func TestLostFiles(t *testing.T) {
	for _, path := range []string{"/opt/berth/1.0.0/bin/berth-shim", rescueProgram, "/opt/berth/runtimes/crun/1.24/crun"} {
		t.Run(filepath.Base(path), func(t *testing.T) {
			n, w := installed(t)
			was := n.read(path)
			if err := os.Remove(filepath.Join(n.root, path)); err != nil {
				t.Fatal(err)
			}
			if strings.Contains(path, "runtimes") { // berth says that the handler is not ready
				j, err := readJournal(n.installer("").root())
				if err != nil {
					t.Fatal(err)
				}
				j.entry("runtime-crun").State = doing
				if err := j.write(); err != nil {
					t.Fatal(err)
				}
			}
			i := n.installer("")
			i.at = func(string) {
				if n.read(program) != "bin/berth" {
					t.Error("the version that runs is away")
				}
			}
			if err := i.Install(t.Context(), w); err != nil || n.read(path) != was {
				t.Errorf("it is %s, %v", n.read(path), err)
			}
		})
	}
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
		i := n.installer("")
		i.Backend = other
		if err := i.Install(t.Context(), w); err != nil {
			t.Fatal(err)
		}
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
	if err := n.installer("").Uninstall(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.as(before)
}

// A mistake is told before anything is undone, and an edit is kept beside one that was kept before.
func TestNothingIsLostByMistakes(t *testing.T) {
	n, w := installed(t)
	good := w.Runtimes[0]
	w.Runtimes[0].Handler = "containerd"
	if err := n.installer("").Install(t.Context(), w); err == nil || !strings.Contains(err.Error(), "choose another name") {
		t.Errorf("got %v", err)
	}
	if got := n.read("/opt/berth/runtimes/crun/1.24/crun"); got != "crun 1.24" {
		t.Errorf("crun is %s", got)
	}
	w.Runtimes[0] = good
	for _, edit := range []string{"# first\n", "# second\n"} {
		n.write(handlerFile("runc"), edit)
		w.Version += ".1"
		w.Config += "\n# more"
		if err := os.Remove(filepath.Join(n.root, configFile)); err != nil {
			t.Fatal(err)
		}
		if err := n.installer("").Install(t.Context(), w); err != nil {
			t.Fatal(err)
		}
	}
	if kept := n.read(handlerFile("runc")+".kept") + n.read(handlerFile("runc")+".kept.2"); kept != "# first\n# second\n" {
		t.Errorf("kept is %q", kept)
	}
}
