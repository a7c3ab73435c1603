package standard

import (
	"context"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"
	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
)

const hostLocal = `"ipam": {"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/16"}]]}`

func TestKnows(t *testing.T) {
	for config, want := range map[string]bool{
		`{"type": "bridge", ` + hostLocal + `}`: true,
		`{"type": "bridge", "name": "n", "cniVersion": "1.0.0", "mtu": 9000, "isGateway": true, ` + hostLocal + `}`: true,
		`{"type": "bridge", "capabilities": {"mac": true}, "ipMasqBackend": "nftables", ` + hostLocal + `}`:         true,
		`{"type": "bridge", "ipMasqBackend": "iptables", ` + hostLocal + `}`:                                        false,
		`{"type": "bridge", "vlanTrunk": [{"id": 7}], ` + hostLocal + `}`:                                           true,
		`{"type": "bridge", "vlanTrunk": [{"id": 7, "name": "a"}], ` + hostLocal + `}`:                              false,
		`{"type": "bridge", "macspoofchk": true, ` + hostLocal + `}`:                                                false,
		`{"type": "bridge", "args": {"cni": {"mac": "c2:11:22:33:44:55"}}, ` + hostLocal + `}`:                      false,
		`{"type": "bridge", "hairpinMode": true, "promiscMode": true, ` + hostLocal + `}`:                           false,
		`{"type": "bridge", "vlan": 7, ` + hostLocal + `}`:                                                          true,
		`{"type": "bridge", "mtu": "large", ` + hostLocal + `}`:                                                     false,
		`{"type": "bridge"}`:                           false,
		`{"type": "bridge", "ipam": {}}`:               false,
		`{"type": "bridge", "ipam": {"type": "dhcp"}}`: false,
		`{"type": "bridge", "ipam": {"type": "host-local", "resolvConf": "/etc/resolv.conf"}}`:                       false,
		`{"type": "bridge", "ipam": {"type": "host-local", "shuffle": true}}`:                                        false,
		`{"type": "ptp", "ipMasq": true, "dns": {"nameservers": ["10.1.0.1"]}, ` + hostLocal + `}`:                   true,
		`{"type": "ptp", "bridge": "br0", ` + hostLocal + `}`:                                                        false,
		`{"type": "portmap", "capabilities": {"portMappings": true}, "snat": true}`:                                  true,
		`{"type": "portmap", "backend": "none"}`:                                                                     false,
		`{"type": "ptp", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/16"}]], "routes": [null]}}`: false,
		`{"type": "portmap", "markMasqBit": 3}`:                                                                      false,
		`{"type": "bandwidth", "capabilities": {"bandwidth": true}}`:                                                 true,
		`{"type": "bandwidth", "ingressRate": 1000, "ingressBurst": 1000}`:                                           false,
		`{"type": "loopback"}`:              true,
		`{"type": "loopback", "mtu": 9000}`: false,
		`{"type": "flannel"}`:               true,
		`{"type": "flannel", "subnetFile": "/a", "dataDir": "/b", "ipam": {"routes": []}, "delegate": null}`: true,
		`{"type": "flannel", "delegate": {"type": "bridge", "hairpinMode": true}}`:                           true,
		`{"type": "flannel", "delegate": {"type": "ipvlan"}}`:                                                false,
		`{"type": "flannel", "delegate": {"type": 7}}`:                                                       false,
		`{"type": "flannel", "delegate": {"ipam": {}}}`:                                                      false,
		`{"type": "flannel", "delegate": {"name": "n"}}`:                                                     false,
		`{"type": "flannel", "ipam": {"routes": {}}}`:                                                        false,
		`{"type": "flannel", "delegate": {"IPAM": {"dataDir": "/d"}}}`:                                       false,
		`{"type": "flannel", "backend": "vxlan"}`:                                                            false,
		`{"type": "portmap"`: false,
	} {
		kind := strings.Split(config, `"`)[3]
		test.Equal(t, config, standard[kind].knows([]byte(config)), want)
	}
}

func TestIdle(t *testing.T) {
	for config, want := range map[string]bool{
		`{}`:                    true,
		`{"runtimeConfig": {}}`: true,
		`{"runtimeConfig": {"portMappings": []}}`:                 true,
		`{"runtimeConfig": {"portMappings": null}}`:               true,
		`{"runtimeConfig": {"portMappings": [{"hostPort": 80}]}}`: false,
		`{"runtimeConfig": 7}`:                                    false,
	} {
		test.Equal(t, config, standard["portmap"].idle([]byte(config)), want)
	}
}

func TestRoute(t *testing.T) {
	everywhere := netip.MustParsePrefix("0.0.0.0/0")
	for name, c := range map[string]struct {
		conf           bridgeConf
		gateway        string
		routes         []*types.Route
		wantGW, routed string
	}{
		"no gateway":               {},
		"a gateway of its own":     {conf: bridgeConf{IsGateway: true}, wantGW: "10.1.0.1"},
		"a gateway of host-local":  {conf: bridgeConf{IsGateway: true}, gateway: "10.1.0.254", wantGW: "10.1.0.254"},
		"a default gateway":        {conf: bridgeConf{IsGateway: true, IsDefaultGateway: true}, wantGW: "10.1.0.1", routed: "0.0.0.0/0 10.1.0.1"},
		"a default route is there": {conf: bridgeConf{IsGateway: true, IsDefaultGateway: true}, wantGW: "10.1.0.1", routes: []*types.Route{{Dst: ipNet(everywhere), GW: net.ParseIP("10.1.0.9")}}, routed: "0.0.0.0/0 10.1.0.9"},
	} {
		r := &types100.Result{IPs: []*types100.IPConfig{{Address: ipNet(netip.MustParsePrefix("10.1.2.3/16")), Gateway: net.ParseIP(c.gateway)}}, Routes: c.routes}
		c.conf.route(r)
		gateway := ""
		if gw := r.IPs[0].Gateway; gw != nil {
			gateway = gw.String()
		}
		test.Equal(t, name+": the gateway", gateway, c.wantGW)
		var routed []string
		for _, route := range r.Routes {
			routed = append(routed, route.Dst.String()+" "+route.GW.String())
		}
		test.Equal(t, name+": the routes", strings.Join(routed, ", "), c.routed)
	}
}

func ipNet(p netip.Prefix) net.IPNet {
	return net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func TestPrefixes(t *testing.T) {
	got := prefixes([]net.IPNet{{IP: net.ParseIP("10.1.2.3"), Mask: net.CIDRMask(16, 32)}, {IP: net.ParseIP("fd00::3"), Mask: net.CIDRMask(64, 128)}})
	if want := []netip.Prefix{netip.MustParsePrefix("10.1.2.3/16"), netip.MustParsePrefix("fd00::3/64")}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// The configuration for the bridge plugin must be, byte by byte, that of flannel's plugin 1.9.1, which
// reads it again for DEL.
func TestDelegate(t *testing.T) {
	file := filepath.Join(t.TempDir(), "subnet.env")
	test.Must(t, os.WriteFile(file, []byte("FLANNEL_NETWORK=10.98.0.0/16,10.97.0.0/16,10.98.0.0/16\n"+
		"FLANNEL_SUBNET=10.98.7.1/24\nFLANNEL_IPV6_NETWORK=fd98::/48,fd97::/48\n"+
		"FLANNEL_IPV6_SUBNET=fd98:0:0:7::1/64\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=1\n"), 0o644))
	got, err := delegate([]byte(`{"cniVersion": "1.0.0", "name": "n", "type": "flannel", "subnetFile": "` + file + `",
		"delegate": {"hairpinMode": true, "bridge": "brx"}, "ipam": {"dataDir": "/d", "routes": [{"dst": "192.0.2.0/24"}]},
		"runtimeConfig": {"dns": {"servers": ["10.0.0.1"]}}}`))
	test.Must(t, err)
	test.Equal(t, "the configuration", string(got), `{"bridge":"brx","cniVersion":"1.0.0","hairpinMode":true,"ipMasq":true,`+
		`"ipam":{"dataDir":"/d","ranges":[[{"subnet":"10.98.7.0/24"}],[{"subnet":"fd98:0:0:7::/64"}]],`+
		`"routes":[{"dst":"192.0.2.0/24"},{"dst":"10.98.0.0/16"},{"dst":"10.97.0.0/16"},{"dst":"fd98::/48"},{"dst":"fd97::/48"}],"type":"host-local"},`+
		`"isGateway":true,"mtu":1450,"name":"n","runtimeConfig":{"dns":{"servers":["10.0.0.1"]}},"type":"bridge"}`)
}

// A node has one subnet of each family. The plugin refuses a list there, too.
func TestDelegateRefusesSubnets(t *testing.T) {
	file := filepath.Join(t.TempDir(), "subnet.env")
	test.Must(t, os.WriteFile(file, []byte("FLANNEL_NETWORK=10.98.0.0/16\nFLANNEL_SUBNET=10.98.7.1/24,10.98.8.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=1\n"), 0o644))
	_, err := delegate([]byte(`{"cniVersion": "1.0.0", "name": "n", "type": "flannel", "subnetFile": "` + file + `"}`))
	test.Says(t, err, "FLANNEL_SUBNET")
}

// Only genuine plugins are served in process. Another program of the same name must be executed,
// because it may do something else. A plugin's file is read again after it was replaced.
func TestServesOnlyGenuinePlugins(t *testing.T) {
	genuine := filepath.Join(os.Getenv("BERTH_TEST_CNI"), "bridge")
	dir := t.TempDir()
	find := func(name string) (string, error) {
		if name == "host-local" {
			return filepath.Join(os.Getenv("BERTH_TEST_CNI"), name), nil
		}
		return filepath.Join(dir, name), nil
	}
	list := test.Value(libcni.NetworkConfFromBytes([]byte(`{"cniVersion": "1.0.0", "name": "n", "plugins": [{"type": "bridge", ` + hostLocal + `}]}`)))(t)
	p := New(nil, NewMasquerade("berth_test"))
	serves := func(what string, want bool) {
		t.Helper()
		test.Equal(t, what, p.Serves(list, find), want)
	}
	serves("a missing file", false)
	test.Must(t, os.WriteFile(filepath.Join(dir, "bridge"), []byte("#!/bin/sh\n"), 0o755))
	serves("a script", false)
	test.Must(t, os.WriteFile(filepath.Join(dir, "bridge"), []byte(test.File(t, genuine)), 0o755))
	serves("the plugin", true)
	test.Must(t, os.WriteFile(filepath.Join(dir, "bridge"), []byte(test.File(t, filepath.Join(os.Getenv("BERTH_TEST_CNI"), "ptp"))), 0o755))
	serves("another plugin of that name", false)

	// k3s builds one program from a main package at the root of the project; each plugin is a link to it.
	project := t.TempDir()
	test.Must(t, os.WriteFile(filepath.Join(project, "go.mod"), []byte("module github.com/containernetworking/plugins\n"), 0o644))
	test.Must(t, os.WriteFile(filepath.Join(project, "main.go"), []byte("package main\n\nfunc main() {}\n"), 0o644))
	build := exec.Command("go", "build", "-o", filepath.Join(dir, "cni"))
	build.Dir, build.Env = project, append(os.Environ(), "GOWORK=off")
	out, err := build.CombinedOutput()
	test.Mustf(t, err, "%s", out)
	test.Must(t, os.Remove(filepath.Join(dir, "bridge")))
	test.Must(t, os.Symlink("cni", filepath.Join(dir, "bridge")))
	serves("a link to k3s's program", true)
}

// A call whose context has ended must not create anything.
func TestCanceledCall(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := New(nil, nil).ExecPlugin(ctx, "/opt/cni/bin/bridge", []byte(`{}`), []string{"CNI_COMMAND=ADD"})
	test.ErrorIs(t, err, context.Canceled, "a call whose context has ended")
}

// A panic in the plugins' packages must fail one call and not the daemon.
func TestPanicFailsTheCall(t *testing.T) {
	test.Says(t, guarded(func() error { panic("index out of range") }), "panic: index out of range", "TestPanicFailsTheCall")
}

// A call must not wait longer than its caller for a process that holds the lock of host-local.
func TestLockOfAnotherProcess(t *testing.T) {
	dir := t.TempDir()
	store := test.Value(disk.New("n", dir))(t)
	test.Must(t, store.Lock())
	c := call{containerID: "a", ifName: "eth0", config: []byte(`{"cniVersion": "1.0.0", "name": "n", "type": "bridge", "ipam": {"type": "host-local", "dataDir": "` + dir + `", "ranges": [[{"subnet": "10.1.0.0/16"}]]}}`)}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := c.allocate(ctx)
	test.ErrorIs(t, err, context.DeadlineExceeded, "while the lock is held")
	test.Must(t, store.Unlock())
	r := test.Value(c.allocate(t.Context()))(t)
	test.Equal(t, "the address", r.IPs[0].Address.String(), "10.1.0.2/16")
	test.Must(t, c.release(t.Context()))
	test.Equal(t, "the address after its release", len(store.GetByID("a", "eth0")), 0)
}

// If an address now belongs to another pod, Remove of the old pod leaves the address masqueraded.
func TestRemoveKeepsTheAddressOfAnotherPod(t *testing.T) {
	m := NewMasquerade("berth_test_shared")
	t.Cleanup(func() { test.Check(t, m.Restore(nil)) })
	address := []netip.Prefix{netip.MustParsePrefix("10.1.0.2/16")}
	test.Must(t, m.Add("old", address))
	test.Must(t, m.Add("new", address))
	test.Must(t, m.Remove("old"))
	if !m.isWhole() || len(m.in(netip.MustParsePrefix("10.1.0.0/16"))) != 1 {
		t.Error("the address is not masqueraded any more")
	}
	test.Must(t, m.Remove("new"))
	test.Must(t, m.Remove("new")) // again is fine
}

// The next pod of a subnet must not wait for a new table.
func TestRuleOutlivesTheLastPod(t *testing.T) {
	m := NewMasquerade("berth_test_outlives")
	t.Cleanup(func() { test.Check(t, m.Restore(nil)) })
	address := []netip.Prefix{netip.MustParsePrefix("10.1.0.2/16")}
	test.Must(t, m.Add("first", address))
	conn := test.Value(nftables.New())(t)
	conn.AddChain(&nftables.Chain{Name: "mark", Table: m.table()}) // it goes with the table
	test.Must(t, conn.Flush())
	test.Must(t, m.Remove("first"))
	test.Must(t, m.Add("second", address))
	if !m.isWhole() {
		t.Error("the table is not whole")
	}
	_ = test.Value(conn.ListChain(m.table(), "mark"))(t)
	test.Must(t, m.Remove("second"))
}

// A rule that another program removed while its subnet had no pods must be back for the next pod.
func TestRepairWithoutPods(t *testing.T) {
	m := NewMasquerade("berth_test_flushed")
	t.Cleanup(func() { test.Check(t, m.Restore(nil)) })
	address := []netip.Prefix{netip.MustParsePrefix("10.1.0.2/16")}
	test.Must(t, m.Add("first", address))
	test.Must(t, m.Remove("first"))
	conn := test.Value(nftables.New())(t)
	conn.FlushChain(m.chain())
	test.Must(t, conn.Flush())
	test.Must(t, m.Repair())
	test.Must(t, m.Add("second", address))
	if !m.isWhole() {
		t.Error("the next pod is not masqueraded")
	}
	test.Must(t, m.Remove("second"))
}

// Repair must replace a table that another program removed, and list it only after changes.
func TestRepairListsOnlyAfterChanges(t *testing.T) {
	runtime.LockOSThread() // the thread ends with the test, and its namespace with it
	test.Must(t, unix.Unshare(unix.CLONE_NEWNET))
	m := NewMasquerade("berth_test_generation")
	defer m.close()
	test.Must(t, m.Add("pod", []netip.Prefix{netip.MustParsePrefix("10.1.0.2/16")}))
	test.Must(t, m.Repair())
	whole := generation()
	m.pods["unknown to the kernel"] = []netip.Prefix{netip.MustParsePrefix("10.1.0.3/16")}
	test.Must(t, m.Repair())
	test.Equal(t, "after a Repair without changes, the generation", generation(), whole)
	conn := test.Value(nftables.New())(t)
	conn.DelTable(m.table())
	test.Must(t, conn.Flush())
	test.Must(t, m.Repair())
	if !m.isWhole() {
		t.Error("a removed table is not repaired")
	}
}

// Both addresses of a pod must go, although another program removed one of them before.
func TestRemoveAfterAFlushedSet(t *testing.T) {
	m := NewMasquerade("berth_test_half")
	t.Cleanup(func() { test.Check(t, m.Restore(nil)) })
	v6 := netip.MustParsePrefix("fd00::2/64")
	test.Must(t, m.Add("pod", []netip.Prefix{netip.MustParsePrefix("10.1.0.2/16"), v6}))
	test.Must(t, m.Add("other", []netip.Prefix{netip.MustParsePrefix("10.1.0.3/16")}))
	conn := test.Value(nftables.New())(t)
	conn.FlushSet(m.set(v6.Masked()))
	test.Must(t, conn.Flush())
	test.Must(t, m.Remove("pod"))
	if !m.isWhole() {
		t.Error("an address of the removed pod is left")
	}
	test.Must(t, m.Remove("other"))
}

// A stopped daemon must leave a table only for pods.
func TestCloseRemovesTheTableOfNoPods(t *testing.T) {
	m := NewMasquerade("berth_test_closed")
	t.Cleanup(func() { test.Check(t, m.Restore(nil)) })
	test.Must(t, m.Close())
	test.Must(t, m.Add("pod", []netip.Prefix{netip.MustParsePrefix("10.1.0.2/16")}))
	test.Must(t, m.Close())
	test.Equal(t, "with a pod, the table exists", m.exists(), true)
	test.Must(t, m.Remove("pod"))
	test.Must(t, m.Close())
	test.Equal(t, "without pods, the table exists", m.exists(), false)
}
