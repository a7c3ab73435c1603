package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/berth-cri/berth/integration/testbed"
)

// compare starts the peers and measures them alternately.
func compare(t testbed.T, o options) report {
	testbed.NeedNetwork(t)
	keepForwarding(t)
	runtimes := map[string]string{}
	for _, handler := range o.handlers {
		runtimes[handler] = testbed.Part(t, handler)
	}
	registry := testbed.NewRegistry(t, testbed.RegistryOptions{})
	image := registry.Push(t, "bench/busybox:1", testbed.Busybox(t))
	var peers []*peer
	for _, start := range o.starters() {
		peers = append(peers, start(t, registry, runtimes, o.handlers[0]))
	}
	r := newReport(t, o, peers)
	var pulls []cold
	if o.wants(groupPull) {
		pulls = colds(t, registry, o.image)
	}
	for _, handler := range o.handlers {
		for _, p := range peers {
			p.Client.Pull(t, handler, image)
		}
		c := &contest{options: o, peers: peers, handler: handler, runtime: runtimes[handler], image: image, colds: pulls, samples: samples{}}
		c.run(t)
		r.add(handler, metrics, c.samples)
	}
	if o.wants(groupRestore) {
		r.Versions[testbed.Runsc] = versionOf(testbed.Part(t, testbed.Runsc))
		r.Restored = restores(t, o)
	}
	r.finish()
	return r
}

// contest is the comparison with one handler.
type contest struct {
	options

	peers   []*peer
	handler string
	runtime string // the OCI runtime's path
	image   string
	colds   []cold
	samples samples
}

// measures are the measurements of a contest, each with its number of rounds.
var measures = []struct {
	groups []string
	rounds func(options) int
	take   func(*trial)
}{
	{[]string{groupPod}, func(o options) int { return o.runs }, (*trial).pod},
	{[]string{groupExec}, func(o options) int { return max(1, o.runs/3) }, (*trial).exec},
	{[]string{groupExit}, func(o options) int { return o.runs }, (*trial).exit},
	{[]string{groupParallel, groupMemory, groupLists, groupIdle, groupRecovery}, options.fleetRounds, (*trial).fleet},
	{[]string{groupPull}, options.fleetRounds, (*trial).pull},
	// Last, because strace distorts times.
	{[]string{groupCounts}, func(options) int { return 1 }, (*trial).counts},
}

func (c *contest) run(t testbed.T) {
	// The extra costs of a daemon's first pod are not measured. A peer that cannot run a pod is
	// reported once, and left out.
	c.peers = c.round(t, 0, (*trial).warm)
	for _, m := range measures {
		if !c.wantsAny(m.groups...) {
			continue
		}
		rounds := m.rounds(c.options)
		t.Logf("%s: %s, rounds: %d", c.handler, strings.Join(m.groups, ", "), rounds)
		for n := range rounds {
			c.round(t, n, m.take)
		}
	}
}

// round measures every peer once; the order changes with each round. It reports failures, goes on
// with the other peers, and returns the peers that did not fail.
func (c *contest) round(t testbed.T, n int, take func(*trial)) (good []*peer) {
	order := slices.Clone(c.peers)
	if n%2 == 1 {
		slices.Reverse(order)
	}
	for _, p := range order {
		if t.Context().Err() != nil {
			return good
		}
		err := testbed.Run(t.Context(), "trial", os.Stderr, func(run testbed.T) {
			take(&trial{T: run, contest: c, peer: p})
		})
		if err != nil {
			t.Errorf("%s under %s: %v", p.name, c.handler, err)
			continue
		}
		good = append(good, p)
	}
	return good
}

// trial is the measurement of one peer in one round. Its T ends with it.
type trial struct {
	testbed.T
	*contest

	peer *peer
}

// record keeps a sample.
func (tr *trial) record(key string, value float64) { tr.samples.add(key, tr.peer.name, value) }

// peer is one of the daemons that are compared.
type peer struct {
	*testbed.Daemon

	name string
	// runtimeRoot is where the OCI runtime of a handler keeps its containers.
	runtimeRoot func(handler string) string
}

// The names of the peers.
const (
	berth      = "berth"
	containerd = "containerd"
)

// starter starts a peer with a bridge of its own. The default runtime is the one with this name.
type starter func(t testbed.T, registry *testbed.Registry, runtimes map[string]string, name string) *peer

// starters start the peers that are measured.
func (o options) starters() []starter {
	if o.alone {
		return []starter{startBerth}
	}
	return []starter{startBerth, startContainerd}
}

func startBerth(t testbed.T, registry *testbed.Registry, runtimes map[string]string, name string) *peer {
	d := testbed.StartBerth(t, testbed.Options{
		Runtimes: runtimes, DefaultRuntime: name, CNI: testbed.NewCNI(t), Registries: []*testbed.Registry{registry},
		// The default of berth; the testbed's level is debug.
		Config: "[log]\nlevel = \"info\"\n",
	}).Daemon
	return &peer{
		name: berth, Daemon: d,
		runtimeRoot: func(handler string) string { return filepath.Join(d.State, "runtimes", handler) },
	}
}

func startContainerd(t testbed.T, registry *testbed.Registry, runtimes map[string]string, name string) *peer {
	d := testbed.StartContainerd(t, testbed.ContainerdOptions{
		Runtimes: runtimes, DefaultRuntime: name, CNI: testbed.NewCNI(t), Registry: registry,
	})
	return &peer{name: containerd, Daemon: d, runtimeRoot: d.ContainerdRuntimeRoot}
}

// keepForwarding restores the host's ip_forward at the end, because the bridge plugin sets it.
func keepForwarding(t testbed.T) {
	const path = "/proc/sys/net/ipv4/ip_forward"
	was, err := os.ReadFile(path)
	testbed.Mustf(t, err, "read ip_forward")
	t.Cleanup(func() {
		testbed.Checkf(t, os.WriteFile(path, was, 0o644), "restore ip_forward")
	})
}
