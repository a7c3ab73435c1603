package network

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/containernetworking/cni/libcni"
)

// BenchmarkSetup is ADD and BenchmarkTeardown DEL of bridge, host-local and
// portmap; the Plain ones are libcni with nothing around it, as the measure.
func BenchmarkSetup(b *testing.B) {
	n := newRealNode(b)
	p := New(n.config)
	pod := n.pod("bench")
	for b.Loop() {
		r := mustSetup(b, p, pod)
		b.StopTimer()
		mustTeardown(b, p, pod, r)
		b.StartTimer()
	}
}

func BenchmarkTeardown(b *testing.B) {
	n := newRealNode(b)
	p := New(n.config)
	pod := n.pod("bench")
	for b.Loop() {
		b.StopTimer()
		r := mustSetup(b, p, pod)
		b.StartTimer()
		mustTeardown(b, p, pod, r)
	}
}

func plain(b *testing.B) (*libcni.CNIConfig, *libcni.NetworkConfigList, *libcni.RuntimeConf) {
	n := newRealNode(b)
	lists, _, err := load(n.config.ConfDir, 1)
	if err != nil {
		b.Fatal(err)
	}
	pod := n.pod("bench")
	return libcni.NewCNIConfigWithCacheDir(n.config.BinDirs, n.config.CacheDir, nil), lists[0],
		&libcni.RuntimeConf{ContainerID: pod.ID, NetNS: pod.NetNS, IfName: "eth0", Args: cniArgs(pod)}
}

func BenchmarkPlainAdd(b *testing.B) {
	cni, list, rt := plain(b)
	for b.Loop() {
		if _, err := cni.AddNetworkList(b.Context(), list, rt); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := cni.DelNetworkList(b.Context(), list, rt); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

func BenchmarkPlainDel(b *testing.B) {
	cni, list, rt := plain(b)
	for b.Loop() {
		b.StopTimer()
		if _, err := cni.AddNetworkList(b.Context(), list, rt); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		if err := cni.DelNetworkList(b.Context(), list, rt); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkOwnCost is a pod's life with plugins that cost nothing but their
// start: what this package and libcni add.
func BenchmarkOwnCost(b *testing.B) {
	n := newNode(b)
	n.configure("10-true.conflist", `{"cniVersion": "1.0.0", "name": "none", "plugins": [{"type": "answer"}]}`)
	n.script("answer", `echo '{"cniVersion": "1.0.0", "ips": [{"address": "10.98.0.7/24"}]}'`)
	p := New(n.config)
	pod := n.pod("bench")
	for b.Loop() {
		mustTeardown(b, p, pod, mustSetup(b, p, pod))
	}
}

func BenchmarkFourInParallel(b *testing.B) {
	n := newRealNode(b)
	p := New(n.config)
	pods := make([]Pod, 4)
	for i := range pods {
		pods[i] = n.pod(fmt.Sprintf("bench-%d", i))
	}
	var next atomic.Int64
	b.ResetTimer()
	var wg sync.WaitGroup
	for _, pod := range pods {
		wg.Go(func() {
			for next.Add(1) <= int64(b.N) {
				r, err := p.Setup(b.Context(), pod)
				if err == nil {
					err = p.Teardown(b.Context(), pod, r)
				}
				if err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func BenchmarkStatus(b *testing.B) {
	n := newRealNode(b)
	p := New(n.config)
	for b.Loop() {
		if err := p.Status(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkConfiguration(b *testing.B) {
	n := newRealNode(b)
	d := New(n.config).directory("")
	for b.Loop() {
		if _, err := d.networks(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkStats(b *testing.B) {
	n := newRealNode(b)
	p := New(n.config)
	pod := n.pod("bench")
	r := mustSetup(b, p, pod)
	defer mustTeardown(b, p, pod, r)
	for b.Loop() {
		if _, err := Stats(pod.NetNS); err != nil {
			b.Fatal(err)
		}
	}
}
