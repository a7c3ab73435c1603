package beside

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/integration/testbed"
)

// TestContainerd starts, stops and kills a containerd that has a pod on the network of berth's
// pods. Neither harms the other's pods.
func TestContainerd(t *testing.T) {
	onNode(t, []string{testbed.Containerd, testbed.RuncShim}, func(t *testing.T) {
		b := newBed(t)
		before, stays := b.pod(t), b.pod(t)
		containerd := testbed.StartContainerd(t, testbed.ContainerdOptions{
			Runtimes: map[string]string{"runc": testbed.Part(t, testbed.Runc)}, DefaultRuntime: "runc", CNI: b.CNI, Registry: b.Registry,
		})
		theirs := containerd.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}})
		address, names := theirs.IP(t), theirNamespaces(t)
		if len(names) != 1 {
			t.Fatalf("containerd has the network namespaces %q, want one", names)
		}
		unharmed := func(when string) {
			t.Helper()
			theirs.Container.Exec(t, "true")
			if leases, err := b.CNI.Leases(); err != nil || !slices.Contains(leases, address) {
				t.Errorf("%s containerd's pod has lost its address %s: %q, %v", when, address, leases, err)
			}
			if now := theirNamespaces(t); !slices.Equal(now, names) || mounted(t, names[0]) == 0 {
				t.Errorf("%s containerd has the network namespaces %q, want %q", when, now, names)
			}
			if !strings.Contains(natRules(t), address) {
				t.Errorf("%s there is no masquerading for containerd's pod", when)
			}
		}
		unharmed("at first")
		before.Stop(t)
		before.Remove(t)
		after := b.pod(t)
		unharmed("after berth stopped and started pods")
		b.Kill9(t)
		b.Start(t)
		unharmed("after berth was killed and started")

		// As `systemctl stop containerd`, whose unit has KillMode=process: its shims and pods stay.
		containerd.Stop(t)
		stays.Container.Exec(t, "true")
		stays.Remove(t)
		b.pod(t).Remove(t)
		containerd.Start(t)
		unharmed("after a restart of containerd")

		// As with KillMode=control-group: its shims are killed too.
		containerd.Kill9(t)
		killShims(t, containerd.Socket)
		after.Container.Exec(t, "true")
		b.Restart(t)
		after.Container.Exec(t, "true")
		after.Stop(t)
		containerd.Start(t)
		theirs.Remove(t)
		after.Remove(t)
		b.nothingLeft(t)
		if left := theirNamespaces(t); len(left) > 0 {
			t.Errorf("containerd could not remove its namespaces %q", left)
		}
	})
}

// theirNamespaces returns the paths of containerd's network namespaces.
func theirNamespaces(t *testing.T) []string {
	t.Helper()
	names, err := filepath.Glob(netns + "/cni-*")
	testbed.Must(t, err)
	return names
}

// killShims kills the shims of a containerd, whose command lines have the path of its socket.
func killShims(t *testing.T, socket string) {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	testbed.Must(t, err)
	killed := 0
	for _, path := range lines {
		line, err := os.ReadFile(path)
		arguments := strings.Split(string(line), "\x00")
		if err != nil || filepath.Base(arguments[0]) != testbed.RuncShim || !slices.ContainsFunc(arguments, func(a string) bool { return strings.HasPrefix(a, socket) }) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		testbed.Must(t, err)
		testbed.Must(t, unix.Kill(pid, unix.SIGKILL))
		killed++
	}
	if killed == 0 {
		t.Error("found no shim of containerd to kill")
	}
}
