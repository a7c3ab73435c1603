package installer

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// killed says whether f was interrupted. What it had on disk by then is all that is left.
func killed(f func()) (was bool) {
	defer func() {
		if r := recover(); r != nil {
			if _, was = r.(interrupted); !was {
				panic(r)
			}
		}
	}()
	f()
	return false
}

// failpoints are all at which an installation and its undoing come by.
func failpoints(t *testing.T) (doing, undoing []string) {
	t.Helper()
	n := newTestNode(t)
	w := n.wanted()
	i := n.installer("")
	i.at = func(place string) { doing = append(doing, place) }
	if err := i.Install(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	i.at = func(place string) { undoing = append(undoing, place) }
	if err := i.Uninstall(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(doing) < 25 || len(undoing) < 14 {
		t.Fatalf("places: %v, %v", doing, undoing)
	}
	return slices.Compact(doing), slices.Compact(undoing)
}

// TestInterrupted kills an installation at every place. The next one finishes it, or an
// uninstallation undoes it.
func TestInterrupted(t *testing.T) {
	doing, undoing := failpoints(t)
	for _, place := range doing {
		t.Run(place, func(t *testing.T) {
			t.Parallel()
			for name, next := range map[string]func(*Installer, Wanted) error{
				"finished": func(i *Installer, w Wanted) error { return i.Install(t.Context(), w) },
				"undone":   func(i *Installer, _ Wanted) error { return i.Uninstall(t.Context()) },
			} {
				n := newTestNode(t)
				w, before := n.wanted(), n.tree()
				if !killed(func() { _ = n.installer(place).Install(t.Context(), w) }) {
					t.Fatal("it was not interrupted")
				}
				if err := next(n.installer(""), w); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				if name == "finished" {
					if n.endpoint != ours {
						t.Errorf("the kubelet uses %s", n.endpoint)
					}
					if err := n.installer("").Uninstall(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				n.as(before)
			}
		})
	}
	for _, place := range undoing {
		t.Run(place, func(t *testing.T) {
			t.Parallel()
			n := newTestNode(t)
			w, before := n.wanted(), n.tree()
			if err := n.installer("").Install(t.Context(), w); err != nil {
				t.Fatal(err)
			}
			if !killed(func() { _ = n.installer(place).Uninstall(t.Context()) }) {
				t.Fatal("it was not interrupted")
			}
			// Somebody wants it again, and gets it as a whole.
			if err := n.installer("").Install(t.Context(), w); err != nil {
				t.Fatal(err)
			}
			if n.endpoint != ours {
				t.Errorf("the kubelet uses %s", n.endpoint)
			}
			if !killed(func() { _ = n.installer(place).Uninstall(t.Context()) }) {
				t.Fatal("it was not interrupted")
			}
			if err := n.installer("").Uninstall(t.Context()); err != nil {
				t.Fatal(err)
			}
			n.as(before)
		})
	}
}

// TestInterruptedUpgrade kills an upgrade at every place. The next run finishes it, or goes back
// to the version before, which runs as well when the new one turns out to be no good.
func TestInterruptedUpgrade(t *testing.T) {
	upgraded := func(t *testing.T) (*node, Wanted, string) {
		t.Helper()
		n := newTestNode(t)
		w, before := n.wanted(), n.tree()
		if err := n.installer("").Install(t.Context(), w); err != nil {
			t.Fatal(err)
		}
		w.Version = "1.1.0"
		w.Config += "\n# more"
		return n, w, before
	}
	var places []string
	n, w, _ := upgraded(t)
	i := n.installer("")
	i.at = func(place string) { places = append(places, place) }
	if err := i.Install(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(places, "installer.start.half") || !slices.Contains(places, "installer.start.run") {
		t.Fatalf("places: %v", places)
	}
	for _, place := range slices.Compact(places) {
		for name, c := range map[string]struct {
			version string
			change  func(*node)
			fails   string
		}{
			"finished":  {"1.1.0", func(*node) {}, ""},
			"back":      {"1.0.0", func(*node) {}, ""},
			"not green": {"1.1.0", func(n *node) { n.doctor = `{"check":"handlers","level":"fail"}` }, "1.0.0"},
			"no start":  {"1.1.0", func(n *node) { n.broken = "1.1.0" }, "1.0.0"},
		} {
			t.Run(place+"/"+name, func(t *testing.T) {
				t.Parallel()
				n, w, before := upgraded(t)
				if !killed(func() { _ = n.installer(place).Install(t.Context(), w) }) {
					t.Fatal("it was not interrupted")
				}
				c.change(n)
				w.Version = c.version
				want := c.version
				if err := n.installer("").Install(t.Context(), w); err != nil {
					want = c.fails
				}
				if link, err := os.Readlink(filepath.Join(n.root, current)); n.version != want || link != want {
					t.Errorf("version %q runs, %q is current (%v), want %q", n.version, link, err, want)
				}
				if n.endpoint != ours || !n.running["berth"] {
					t.Errorf("the kubelet uses %s; berth runs: %t", n.endpoint, n.running["berth"])
				}
				if err := n.installer("").Uninstall(t.Context()); err != nil {
					t.Fatal(err)
				}
				n.as(before)
			})
		}
	}
}

// Somebody ends the pod meanwhile: nothing is undone, and the next run goes on.
func TestEnded(t *testing.T) {
	n := newTestNode(t)
	w, before := n.wanted(), n.tree()
	ctx, end := context.WithCancel(t.Context())
	i := n.installer("")
	i.at = func(place string) {
		if place == "installer.kubelet.restarted" {
			end()
			n.running["berth"] = false // it does not answer at once
		}
	}
	if err := i.Install(ctx, w); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if n.endpoint != ours {
		t.Errorf("the kubelet uses %s", n.endpoint)
	}
	n.running["berth"] = true
	if err := n.installer("").Install(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	if err := n.installer("").Uninstall(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.as(before)
}

// TestRescue has a move interrupted at every place, and no pod start again: the node's own
// timer has the kubelet use what it used before.
func TestRescue(t *testing.T) {
	doing, undoing := failpoints(t)
	for _, c := range []struct {
		places []string
		first  func(*Installer, Wanted) error
	}{
		{doing, func(*Installer, Wanted) error { return nil }},
		{undoing, func(i *Installer, w Wanted) error { return i.Install(t.Context(), w) }},
	} {
		for _, place := range c.places {
			if !strings.HasPrefix(place, "installer.kubelet.") {
				continue
			}
			t.Run(place, func(t *testing.T) {
				t.Parallel()
				n := newTestNode(t)
				w, before := n.wanted(), n.tree()
				if err := c.first(n.installer(""), w); err != nil {
					t.Fatal(err)
				}
				if !killed(func() {
					_ = errors.Join(n.installer(place).Install(t.Context(), w), n.installer(place).Uninstall(t.Context()))
				}) {
					t.Fatal("it was not interrupted")
				}
				// Files that lead to berth have the timer, over a reboot as well.
				if n.kubeletEndpoint() == ours && place != "installer.kubelet.made" && place != "installer.kubelet.done" && place != "installer.kubelet.undoing" {
					if link, err := os.Readlink(filepath.Join(n.root, units, "timers.target.wants", rescueTimer)); err != nil || n.read(link) == "" || n.read(rescueProgram) != "bin/berth-pause" {
						t.Errorf("the node is not rescued: %q, %v", link, err)
					}
				}
				if err := n.installer("").Rescue(t.Context()); err != nil {
					t.Fatal(err)
				}
				if want := map[bool]string{true: ours, false: theirs}[place == "installer.kubelet.done"]; n.endpoint != want || n.kubeletEndpoint() != want {
					t.Errorf("the kubelet uses %s, want %s", n.endpoint, want)
				}
				if n.running["rescue"] {
					t.Error("the rescue is left")
				}
				if err := n.installer("").Install(t.Context(), w); err != nil {
					t.Fatal(err)
				}
				if n.endpoint != ours {
					t.Errorf("the kubelet uses %s", n.endpoint)
				}
				if err := n.installer("").Uninstall(t.Context()); err != nil {
					t.Fatal(err)
				}
				n.as(before)
			})
		}
	}
}

// Two runs on one node wait for each other, and the rescue does not get between.
func TestLocked(t *testing.T) {
	n := newTestNode(t)
	w := n.wanted()
	i := n.installer("")
	i.at = func(place string) {
		if place != "installer.kubelet.written" {
			return
		}
		if err := n.installer("").Rescue(t.Context()); err != nil {
			t.Error(err)
		}
		ctx, end := context.WithCancel(t.Context())
		end()
		for _, run := range []error{n.installer("").Install(ctx, w), n.installer("").Uninstall(ctx)} {
			if !errors.Is(run, context.Canceled) {
				t.Errorf("got %v", run)
			}
		}
		if n.kubeletEndpoint() != ours {
			t.Error("another run has undone what this one does")
		}
	}
	if err := i.Install(t.Context(), w); err != nil {
		t.Fatal(err)
	}
}

// A journal that cannot be written, as on a full disk, keeps nothing from being undone.
func TestUndoneWithoutRoom(t *testing.T) {
	n := newTestNode(t)
	before := n.tree()
	if err := n.installer("").Install(t.Context(), n.wanted()); err != nil {
		t.Fatal(err)
	}
	n.write(filepath.Join(filepath.Dir(journalFile), ".journal.json.new", "in the way"), "")
	w := n.wanted()
	w.Kubelet = false
	if err := n.installer("").Install(t.Context(), w); err == nil || !strings.Contains(err.Error(), "write the journal") {
		t.Errorf("got %v", err)
	}
	if n.endpoint != theirs {
		t.Errorf("the kubelet uses %s", n.endpoint)
	}
	if err := n.installer("").Uninstall(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.as(before)
}

// A node that waits for its turn is rescued meanwhile, and then made as it is wanted.
func TestRescuedWhileWaiting(t *testing.T) {
	n := newTestNode(t)
	w, before := n.wanted(), n.tree()
	if !killed(func() { _ = n.installer("installer.kubelet.restarted").Install(t.Context(), w) }) {
		t.Fatal("it was not interrupted")
	}
	n.waits = func() {
		if err := n.installer("").Rescue(t.Context()); err != nil {
			t.Error(err)
		}
		if n.endpoint != theirs {
			t.Errorf("the kubelet uses %s", n.endpoint)
		}
	}
	if err := n.installer("").Install(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	n.waits = nil
	if n.endpoint != ours || n.running["rescue"] || n.held {
		t.Errorf("the kubelet uses %s; the rescue is left: %t; the turn is held: %t", n.endpoint, n.running["rescue"], n.held)
	}
	if err := n.installer("").Uninstall(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.as(before)
}
