package installer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-cri/berth/pkg/installer/kubelet"
)

// portInUse is a configuration with which berth does not start again.
const portInUse = "[metrics]\naddress = \"127.0.0.1:10248\""

// A first move of the kubelet was interrupted, and the next run has other values: until the move is
// finished or undone, the rescue stays.
func TestRescueOfUnfinishedMove(t *testing.T) {
	for _, how := range []string{"killed", "fails, and pods are in the way", "fails, and the other daemon is away"} {
		t.Run(how, func(t *testing.T) {
			n := newTestNode(t)
			w := n.wanted()
			if !killed(func() { _ = n.installer("installer.kubelet.restarted").Install(t.Context(), w) }) || !n.running["rescue"] {
				t.Fatal("it was not interrupted")
			}
			w.Config = portInUse
			i := n.installer("installer.start.done")
			i.patience = time.Second
			switch how {
			case "killed":
				if !killed(func() { _ = i.Install(t.Context(), w) }) {
					t.Fatal("it was not interrupted")
				}
			default:
				n.doctor = `{"check":"ports","level":"fail"}`
				if strings.Contains(how, "pods") {
					n.pod("abc", "x")
				} else {
					i.at = func(p string) {
						if p == "installer.start.noted" {
							n.dead = true
						}
					}
				}
				if err := i.Install(t.Context(), w); err == nil {
					t.Error("it does not fail")
				}
			}
			if !n.running["rescue"] {
				t.Errorf("the kubelet uses %s, and the rescue is gone", n.endpoint)
			}
		})
	}
}

// The link cannot be changed: the configuration goes back, or the rescue stays.
func TestRescueIfTheLinkStays(t *testing.T) {
	n, w := installed(t)
	good := n.read(extraFile)
	w.Version, w.Config = "1.1.0", portInUse
	i := n.installer("")
	i.at = func(p string) {
		if p == "installer.start.noted" {
			n.write("/opt/berth/.current.new/in the way", "")
		}
	}
	err := i.Install(t.Context(), w)
	link, _ := os.Readlink(filepath.Join(n.root, current))
	if err == nil || n.read(extraFile) != good && !n.running["rescue"] {
		t.Errorf("%v\ncurrent is %s, the file is %q, the rescue is armed: %t", err, link, n.read(extraFile), n.running["rescue"])
	}
}

// Going back fails, and the former berth still runs: the rescue stays.
func TestRescueIfGoingBackFails(t *testing.T) {
	n, w := installed(t)
	good := n.read(extraFile)
	w.Config = portInUse
	n.fails["berth check"] = exited(2)
	i := n.installer("")
	i.at = func(p string) {
		if p == "installer.config.back" {
			n.write("/etc/berth/conf.d/.90-installer.toml.new/in the way", "")
		}
	}
	err := i.Install(t.Context(), w)
	if n.read(extraFile) != good && !n.running["rescue"] {
		t.Errorf("%v\nthe file is %q, the rescue is armed: %t", err, n.read(extraFile), n.running["rescue"])
	}
}

// Killed after a restart into a version that runs and cannot run pods: the rescue goes back.
func TestRescueOfWhatIsNotWell(t *testing.T) {
	n, w := installed(t)
	w.Version = "1.1.0"
	if !killed(func() { _ = n.installer("installer.start.run").Install(t.Context(), w) }) {
		t.Fatal("it was not interrupted")
	}
	n.doctor = `{"check":"cgroups","level":"fail"}`
	for range 3 {
		if err := n.installer("").Rescue(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if n.version != "1.0.0" {
		t.Errorf("version %s runs, the doctor fails, and the rescue does nothing", n.version)
	}
}

// An upgrade takes a handler away that was there. The next node would meet the same.
func TestUpgradeThatLosesHandlers(t *testing.T) {
	n, w := installed(t)
	w.Version = "1.1.0"
	i := n.installer("")
	i.patience = time.Second
	i.at = func(p string) {
		if p == "installer.start.done" {
			n.fails["berth handlers -o json"] = exited(1)
		}
	}
	err := i.Install(t.Context(), w)
	if err == nil || !n.held {
		t.Errorf("got %v; the turn is held: %t", err, n.held)
	}
}

// badUnit is a node whose berth does not start by a new unit.
type badUnit struct{ *node }

func (b badUnit) Run(ctx context.Context, name string, args ...string) ([]byte, error) {
	if strings.Join(args, " ") == "restart berth.service" && strings.Contains(b.read(unitFile), "--new-flag") {
		b.running["berth"] = false
		return nil, exited(1)
	}
	return b.node.Run(ctx, name, args...)
}

// An edited unit goes back with its version, and the next version that starts has its own.
func TestEditedUnitGoesBack(t *testing.T) {
	n, w := installed(t)
	n.write(unitFile, "# edited\n"+n.read(unitFile))
	n.running["berth"] = false // so that start is done again, with the edit
	if err := n.installer("").Install(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(n.payload, "berth.service"), "[Service]\nExecStart=/usr/bin/berth serve --new-flag\n", 0o644)
	w.Version, n.broken = "1.1.0", "1.1.0"
	if err := n.installer("").Install(t.Context(), w); err == nil {
		t.Fatal("it starts")
	}
	n.broken = ""
	if err := n.installer("").Install(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(n.read(unitFile), "--new-flag") {
		t.Errorf("version %s runs by %q", n.version, n.read(unitFile))
	}
}

// Only the unit is another: it goes back, and berth is started by it.
func TestUnitGoesBack(t *testing.T) {
	n, w := installed(t)
	writeFile(t, filepath.Join(n.payload, "berth.service"), "[Service]\nExecStart=/usr/bin/berth serve --new-flag\n", 0o644)
	n.running["berth"] = false
	i := n.installer("")
	i.Host = badUnit{n}
	err := i.Install(t.Context(), w)
	if err == nil || !n.running["berth"] {
		t.Errorf("got %v; berth runs: %t with %q", err, n.running["berth"], n.read(unitFile))
	}
}

// A file that the values no longer have goes back without the journal. The next run removes it.
func TestFileGoesBackWithoutRoom(t *testing.T) {
	n, w := installed(t)
	w.Config, n.doctor = "", `{"check":"ports","level":"fail"}`
	inTheWay := filepath.Join(filepath.Dir(journalFile), ".journal.json.new", "in the way")
	i := n.installer("")
	i.at = func(place string) {
		if place == "installer.start.half" {
			n.write(inTheWay, "")
		}
	}
	if err := i.Install(t.Context(), w); err == nil {
		t.Error("it does not fail")
	}
	n.doctor = ""
	if err := os.RemoveAll(filepath.Join(n.root, filepath.Dir(inTheWay))); err != nil {
		t.Fatal(err)
	}
	if err := n.installer("").Install(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	if got := n.read(extraFile); !strings.Contains(got, "no such file") {
		t.Errorf("as wanted, with %q", got)
	}
}

// A runtime waits for its pods, and the endpoint is another meanwhile: it is led there, and stays so.
func TestOtherEndpointWhileWaiting(t *testing.T) {
	const other = "unix:///run/other/containerd.sock"
	n, w := installed(t)
	n.pod("abc", "crun")
	w.Runtimes = w.Runtimes[1:]
	w.Endpoint = other
	b := &others{[]string{"crun", "runc"}}
	for k := range 3 {
		i := n.installer("")
		i.Backend = b
		n.asked = nil
		i.at = func(p string) {
			if p == "installer.config.noted" && k > 0 {
				t.Errorf("attempt %d: crun is %q", k, n.read(handlerFile("crun")))
			}
		}
		err := i.Install(t.Context(), w)
		if !errors.Is(err, ErrPods) {
			t.Fatal(err)
		}
	}
	if kept := n.read(handlerFile("crun") + ".kept"); !strings.Contains(kept, "no such file") {
		t.Errorf("nobody has edited %q", kept)
	}
}

// A kubelet that was led elsewhere, and whose move is refused before anything changes, runs on.
func TestRefusedMoveRestartsNothing(t *testing.T) {
	n, w := installed(t)
	for _, path := range []string{kubelet.Config, "/var/lib/kubelet/kubeadm-flags.env"} {
		n.write(path, strings.ReplaceAll(n.read(path), ours, theirs))
	}
	n.endpoint = theirs
	n.forbidden = fmt.Errorf("cannot get nodes: %w", ErrFinal)
	n.asked = nil
	err := n.installer("").Install(t.Context(), w)
	if slices.Contains(n.asked, "systemctl restart kubelet.service") {
		t.Errorf("the kubelet is restarted: %v", err)
	}
}

// The configuration is gone, and the run that would write it again is killed: the rescue does.
func TestRescueOfLostConfiguration(t *testing.T) {
	n, w := installed(t)
	was := n.read(configFile)
	if err := os.Remove(filepath.Join(n.root, configFile)); err != nil {
		t.Fatal(err)
	}
	if !killed(func() { _ = n.installer("installer.config.noted").Install(t.Context(), w) }) {
		t.Fatal("it was not interrupted")
	}
	n.running["berth"] = false
	if err := n.installer("").Rescue(t.Context()); err != nil || !n.running["berth"] || n.read(configFile) != was {
		t.Errorf("berth runs: %t with %s, %v", n.running["berth"], n.read(configFile), err)
	}
}

// Going back leaves an edit of the unit, which no version has written.
func TestUnitThatIsEditedStays(t *testing.T) {
	n, w := installed(t)
	edit := "# edited\n" + n.read(unitFile)
	n.write(unitFile, edit)
	n.asked = nil
	w.Config = portInUse
	n.fails["berth check"] = exited(2)
	if err := n.installer("").Install(t.Context(), w); err == nil {
		t.Error("it does not fail")
	}
	if n.read(unitFile) != edit || slices.Contains(n.asked, "systemctl restart berth.service") {
		t.Errorf("it is %q after %q", n.read(unitFile), n.asked)
	}
}

// A runtime that waits for its pods is read of again, in case the first time failed.
func TestReloadedWhileWaiting(t *testing.T) {
	n, w := installed(t)
	n.pod("abc", "crun")
	w.Runtimes = w.Runtimes[1:]
	const reload = "berth reload --wait -o json"
	n.fails[reload] = errors.New("killed")
	if err := n.installer("").Install(t.Context(), w); err == nil || errors.Is(err, ErrPods) {
		t.Errorf("got %v", err)
	}
	n.fails, n.asked = map[string]error{}, nil
	if err := n.installer("").Install(t.Context(), w); !errors.Is(err, ErrPods) || !slices.Contains(n.asked, reload) {
		t.Errorf("got %v after %q", err, n.asked)
	}
}
