package network

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/vishvananda/netlink"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/mountpoint"
	"github.com/berth-cri/berth/pkg/engine/namespaces"
)

func TestPodOnRealPlugins(t *testing.T) {
	n := newRealNode(t)
	p := New(n.config)
	pod := n.pod("pod-real")
	port := freePort(t)
	pod.PortMappings = []PortMapping{{HostPort: port, ContainerPort: 80, Protocol: "tcp"}}

	r := mustSetup(t, p, pod)
	ip, err := netip.ParseAddr(r.IPs[0])
	if err != nil || !netip.MustParsePrefix(n.subnet()).Contains(ip) {
		t.Fatalf("the pod has %v, want an address of %s", r.IPs, n.subnet())
	}
	gateway := netip.MustParsePrefix(n.subnet()).Addr().Next()
	reach(t, pod, net.IP(gateway.AsSlice()))
	if rules := iptables(t); !strings.Contains(rules, fmt.Sprintf("--dport %d", port)) {
		t.Errorf("no rule for host port %d:\n%s", port, rules)
	}

	traffic := Stats(pod.NetNS, pod.NetNS+"-gone", pod.NetNS)
	for _, i := range []int{0, 2} {
		if s := traffic[i]; s.Err != nil || len(s.Interfaces) != 1 || s.Interfaces[0].Name != "eth0" || s.Interfaces[0].RxBytes == 0 || s.Interfaces[0].TxPackets == 0 {
			t.Errorf("statistics %d: %+v", i, s)
		}
	}
	test.Is(t, traffic[1].Err, errdefs.IsNotFound, "the statistics of a network namespace that is gone")

	mustTeardown(t, p, pod, r)
	n.checkClean()
	if rules := iptables(t); strings.Contains(rules, fmt.Sprintf("--dport %d", port)) {
		t.Error("the rule of the host port is left")
	}
	mustTeardown(t, p, pod, r) // a second Teardown is not an error
}

func freePort(t *testing.T) int32 {
	t.Helper()
	l := test.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	return int32(l.Addr().(*net.TCPAddr).Port)
}

// A restarted daemon disconnects a pod by the sandbox's record, whatever is configured by then.
func TestTeardownAfterRestartWithAnotherConfiguration(t *testing.T) {
	for name, change := range map[string]func(*node){
		"other network": func(n *node) {
			n.configure("10-real.conflist", `{"cniVersion": "1.0.0", "name": "other", "plugins": [{"type": "spy"}]}`)
		},
		"no configuration":     func(n *node) { n.unconfigure("10-real.conflist") },
		"broken configuration": func(n *node) { n.configure("10-real.conflist", "{") },
		"cache lost": func(n *node) {
			test.Must(n.t, os.RemoveAll(n.config.CacheDir))
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newRealNode(t)
			n.spy("spy", "")
			pod := n.pod("pod-restart")
			record := test.Value(json.Marshal(mustSetup(t, New(n.config), pod)))(t)
			change(n)
			var r Result
			test.Must(t, json.Unmarshal(record, &r))
			mustTeardown(t, New(n.config), pod, &r)
			n.checkClean()
			if calls := n.called("spy"); len(calls) > 0 {
				t.Errorf("the plugin of the new configuration was called: %v", calls)
			}
		})
	}
}

func (n *node) unconfigure(file string) {
	n.t.Helper()
	test.Must(n.t, os.Remove(filepath.Join(n.config.ConfDir, file)))
}

// Teardown leaves no rules for a pod's address, even if a runtime, a killed plugin, an operator or a
// firewall has removed parts of the pod's network before.
func TestTeardownOfWhatIsGone(t *testing.T) {
	inside := func(f func(n *node, pod Pod, eth0 netlink.Link) error) func(*node, Pod) error {
		return func(n *node, pod Pod) error {
			return namespaces.Do(pod.NetNS, func() error {
				link, err := netlink.LinkByName("eth0")
				if err != nil {
					return err
				}
				return f(n, pod, link)
			})
		}
	}
	half := inside(func(_ *node, _ Pod, eth0 netlink.Link) error { return netlink.LinkDel(eth0) })
	unmounted := func(_ *node, pod Pod) error { return mountpoint.Unmount(pod.NetNS) }
	for name, c := range map[string]struct {
		take     func(*node, Pod) error
		recorded bool // Teardown has the result of ADD
		leftover bool // there is no record of the pod
	}{
		"addresses, by gVisor":            {take: inside(func(_ *node, _ Pod, eth0 netlink.Link) error { return takeAddresses(eth0) }), recorded: true},
		"interface, by an incomplete DEL": {take: half, recorded: true},
		"interface, of a leftover":        {take: half, leftover: true},
		"namespace":                       {take: unmounted, recorded: true},
		"namespace, without a result":     {take: unmounted},
		"configuration and the result":    {take: func(n *node, _ Pod) error { n.unconfigure("10-real.conflist"); return nil }},
		"rules, by a firewall's reload":   {take: func(n *node, _ Pod) error { n.flush(); return nil }, recorded: true},
	} {
		t.Run(name, func(t *testing.T) {
			n := newRealNode(t)
			pod := n.pod("pod-robbed")
			p := New(n.config)
			r := mustSetup(t, p, pod)
			if rules := iptables(t); !strings.Contains(rules, r.IPs[0]) || !strings.Contains(rules, pod.ID) {
				t.Fatalf("there is no rule for the pod:\n%s", rules)
			}
			test.Must(t, c.take(n, pod))
			if !c.recorded {
				r = nil
			}
			if c.leftover {
				test.Must(t, collect(t, New(n.config)))
			} else {
				mustTeardown(t, New(n.config), pod, r)
				mustTeardown(t, New(n.config), pod, r)
			}
			n.checkClean()
			if rules := iptables(t); strings.Contains(rules, pod.ID) {
				t.Errorf("rules for the pod are left:\n%s", rules)
			}
			if left, _ := filepath.Glob(filepath.Join(n.config.CacheDir, "substitutes", "*")); len(left) > 0 {
				t.Errorf("substitutes are left: %v", left)
			}
			if !namespaces.Exists(pod.NetNS) {
				return
			}
			err := namespaces.Do(pod.NetNS, func() error { _, err := netlink.LinkByName("eth0"); return err })
			if !errors.As(err, &netlink.LinkNotFoundError{}) {
				t.Errorf("eth0 in the pod: %v, want that it does not exist", err)
			}
		})
	}
}

func takeAddresses(eth0 netlink.Link) error {
	addresses, err := netlink.AddrList(eth0, netlink.FAMILY_ALL)
	for i := range addresses {
		err = errors.Join(err, netlink.AddrDel(eth0, &addresses[i]))
	}
	return err
}

// flush removes the network's rules for its pods, and the chains of these rules.
func (n *node) flush() {
	n.t.Helper()
	prefix := strings.TrimSuffix(n.subnet(), "0/24")
	for line := range strings.Lines(iptables(n.t)) {
		rule, found := strings.CutPrefix(strings.TrimSpace(line), "-A ")
		if !found || !strings.HasPrefix(rule, "POSTROUTING") || !strings.Contains(rule, prefix) {
			continue
		}
		_, chain, _ := strings.Cut(rule, "-j ")
		for _, command := range []string{"-D " + rule, "-F " + chain, "-X " + chain} {
			if out, err := exec.Command("sh", "-c", "iptables --wait -t nat "+command).CombinedOutput(); err != nil {
				n.t.Fatalf("iptables %s: %v: %s", command, err, out)
			}
		}
	}
}

// The second plugin fails after the first has assigned an address.
func TestFailedSetupLeavesNothing(t *testing.T) {
	n := newRealNode(t)
	n.script("portmap", `cat >/dev/null; [ "$CNI_COMMAND" = DEL ] && exit 0
echo '{"cniVersion": "1.0.0", "code": 7, "msg": "no such table", "details": "nat"}'; exit 1`)
	p := New(n.config)
	checkError(t, test.Err(p.Setup(t.Context(), n.pod("pod-fails"))), errdefs.IsInternal, "portmap", "exit status 1", "no such table", "nat", "code 7", "shop/web")
	n.checkClean()
}

// If the caller's context ends during Setup, the pod is disconnected nevertheless.
func TestCanceledSetupLeavesNothing(t *testing.T) {
	n := newRealNode(t)
	n.script("portmap", `cat >/dev/null; [ "$CNI_COMMAND" = DEL ] && exit 0; sleep 60 & wait`)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	started := time.Now()
	checkError(t, test.Err(New(n.config).Setup(ctx, n.pod("pod-hangs"))), errdefs.IsDeadlineExceeded, "portmap", "killed")
	if took := time.Since(started); took > 20*time.Second {
		t.Errorf("Setup took %v", took)
	}
	n.checkClean()
}

func TestCollectsWhatNobodyOwns(t *testing.T) {
	n := newRealNode(t)
	before := New(n.config)
	kept, lost := n.pod("pod-kept"), n.pod("pod-lost")
	r := mustSetup(t, before, kept)
	mustSetup(t, before, lost)

	after := New(n.config) // as after a restart
	left := after.Leftovers(kept)
	young := n.pod("pod-young")
	ry := mustSetup(t, after, young)
	test.Must(t, left.Collect(t.Context()))
	held, _ := filepath.Glob(filepath.Join(n.ipam, "*", "10.*"))
	if len(held) != 2 {
		t.Errorf("addresses in use: %v, want the kept and the young pod's", held)
	}
	mustTeardown(t, after, kept, r)
	mustTeardown(t, after, young, ry)
	n.checkClean()
}
