package testbed

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/berth-cri/berth/integration/patience"
)

// Snapshot is what a daemon has on the host at one moment, by kind. What may stay (images, logs,
// the daemon itself) is not in it.
type Snapshot map[Kind][]string

// Kind is the kind of an entry in a Snapshot.
type Kind string

// The kinds of a Snapshot.
const (
	Mounts    Kind = "mount"    // below the daemon's directories, and network namespaces of pods
	Cgroups   Kind = "cgroup"   // below the pods' cgroups, in every hierarchy
	Processes Kind = "process"  // supervisors, shims, runtimes, sandbox processes, workloads
	Ports     Kind = "link"     // host ends of veth pairs at the bridge
	Leases    Kind = "lease"    // addresses that IPAM has assigned
	Rules     Kind = "iptables" // rules with the network's name
	States    Kind = "state"    // entries of the state directory: bundles, FIFOs, sockets…
	Records   Kind = "record"   // durable records of sandboxes and containers
	Layers    Kind = "snapshot" // snapshots and unfinished downloads
)

// Snapshot lists what this daemon has on the host now.
func (d *Daemon) Snapshot(t T) Snapshot {
	t.Helper()
	s, err := d.snapshot()
	Mustf(t, err, "look at what the daemon has on the host")
	return s
}

func (d *Daemon) snapshot() (Snapshot, error) {
	s := Snapshot{}
	for _, dir := range d.cgroups() {
		// The client, like a kubelet, removes the pods' own cgroups.
		if _, below, _ := strings.Cut(dir, d.Cgroup+"/"); strings.Contains(below, "/") {
			s[Cgroups] = append(s[Cgroups], dir)
		}
	}
	for _, p := range d.processes() {
		s[Processes] = append(s[Processes], p.String())
	}
	var failures [6]error
	s[Mounts], failures[0] = d.mounts()
	s[Mounts] = slices.DeleteFunc(s[Mounts], ofRuntime)
	s[States], failures[1] = entries(d.State, d.ofPods)
	s[Records], failures[2] = entries(filepath.Join(d.Root, "records"), everything)
	s[Layers], failures[3] = entries(d.Root, layer)
	if cni := d.cni; cni != nil {
		var leases, ports, rules error
		s[Leases], leases = cni.Leases()
		s[Ports], ports = cni.ports()
		s[Rules], rules = cni.rules()
		failures[4] = errors.Join(leases, ports, rules)
	}
	return s, errors.Join(failures[:]...)
}

// ofPods reports whether an entry of the state directory belongs to a pod. Directories that the
// first pod of a daemon or handler creates stay for later pods, so only their content is listed.
func (d *Daemon) ofPods(path string) (listed, enter bool) {
	switch relative := strings.TrimPrefix(path, d.State+"/"); relative {
	case "s", "runtimes", "supervisors":
		return false, true
	default:
		return filepath.Dir(relative) != "runtimes" && !ofRuntime(path), true
	}
}

// ofRuntime reports whether a path may stay: the network namespace that gVisor keeps for its next
// pod, and the files with each runtime's last failure.
func ofRuntime(path string) bool {
	const failures = "failures" // has a file for each handler
	return filepath.Base(path) == "null-netns" || filepath.Base(path) == failures || filepath.Base(filepath.Dir(path)) == failures
}

func everything(string) (listed, enter bool) { return true, true }

// entries returns the paths below dir for which pick returns listed. It does not enter mounts,
// because their content belongs to the container.
func entries(dir string, pick func(path string) (listed, enter bool)) ([]string, error) {
	var paths []string
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // removed during the walk
		}
		if err != nil {
			return err
		}
		if path == dir {
			return nil
		}
		listed, enter := pick(path)
		if listed {
			paths = append(paths, path)
		}
		if entry.IsDir() {
			if !enter {
				return fs.SkipDir
			}
			if mounted, err := mountinfo.Mounted(path); err == nil && mounted {
				return fs.SkipDir
			}
		}
		return nil
	})
	return paths, err
}

// layer lists the snapshots and unfinished downloads of containerd's stores. It does not enter
// them, because their content belongs to an image.
func layer(path string) (listed, enter bool) {
	switch parent := filepath.Base(filepath.Dir(path)); parent {
	case "snapshots", "ingest":
		info, err := os.Stat(path)
		dir := err == nil && info.IsDir()
		return dir, !dir
	default:
		return false, true
	}
}

// identity is the part of a name by which Leaks compares. For a process it is the pid, because a
// container's process changes its command line after its start.
func (k Kind) identity(name string) string {
	if k == Processes {
		name, _, _ = strings.Cut(name, " ")
	}
	return name
}

// Leaks returns what is in after but not in s, as sorted "kind name" strings.
func (s Snapshot) Leaks(after Snapshot) []string {
	var leaks []string
	for kind, names := range after {
		known := map[string]bool{}
		for _, name := range s[kind] {
			known[kind.identity(name)] = true
		}
		for _, name := range names {
			if !known[kind.identity(name)] {
				leaks = append(leaks, string(kind)+" "+name)
			}
		}
	}
	slices.Sort(leaks)
	return leaks
}

// leakPatience is how long supervisors and the kernel may need to clean up after RemovePodSandbox
// has returned.
var leakPatience = patience.Of(30 * time.Second)

// NoLeaks fails if, after leakPatience, the host still has what is not in before.
func (d *Daemon) NoLeaks(t T, before Snapshot) {
	t.Helper()
	var leaks []string
	err := wait.PollUntilContextTimeout(context.WithoutCancel(t.Context()), 50*time.Millisecond, leakPatience, true, func(context.Context) (bool, error) {
		after, err := d.snapshot()
		leaks = before.Leaks(after)
		return len(leaks) == 0, err
	})
	if wait.Interrupted(err) {
		t.Errorf("left behind:\n%s", indent(leaks))
		return
	}
	Mustf(t, err, "look at what the daemon has on the host")
}

func indent(lines []string) string {
	const most = 50
	if len(lines) > most {
		lines = append(slices.Clone(lines[:most]), fmt.Sprintf("… and %d more", len(lines)-most))
	}
	return "  " + strings.Join(lines, "\n  ")
}
