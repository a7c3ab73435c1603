package main

import (
	"os"
	"path/filepath"

	"github.com/berth-cri/berth/integration/testbed"
)

// peer is one of the daemons that are compared.
type peer struct {
	*testbed.Daemon

	name string
	// runtimeRoot is where the OCI runtime of a handler keeps its containers.
	runtimeRoot func(handler string) string
}

// names of the peers.
const (
	berth      = "berth"
	containerd = "containerd"
)

// startPeers starts both daemons, each with a bridge of its own, on the same
// runtimes.
func startPeers(t testbed.T, registry *testbed.Registry, runtimes map[string]string, first string) []*peer {
	ours := testbed.StartBerth(t, testbed.Options{
		Runtimes: runtimes, DefaultRuntime: first, CNI: testbed.NewCNI(t), Registries: []*testbed.Registry{registry},
		// As shipped: the testbed's is for those who look for mistakes.
		Config: "[log]\nlevel = \"info\"\n",
	})
	theirs := testbed.StartContainerd(t, testbed.ContainerdOptions{
		Runtimes: runtimes, DefaultRuntime: first, CNI: testbed.NewCNI(t), Registry: registry,
	})
	return []*peer{
		{
			name: berth, Daemon: ours.Daemon,
			runtimeRoot: func(handler string) string { return filepath.Join(ours.State, "runtimes", handler) },
		},
		{
			name: containerd, Daemon: theirs,
			runtimeRoot: theirs.ContainerdRuntimeRoot,
		},
	}
}

// keepForwarding undoes what the bridge plugin does to the whole host.
func keepForwarding(t testbed.T) {
	const path = "/proc/sys/net/ipv4/ip_forward"
	was, err := os.ReadFile(path)
	testbed.Mustf(t, err, "read ip_forward")
	t.Cleanup(func() {
		testbed.Checkf(t, os.WriteFile(path, was, 0o644), "restore ip_forward")
	})
}
