package network

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/namespaces"
)

// pluginDir returns the directory of the plugins that package standard replaces.
func pluginDir(t testing.TB) string {
	dir := os.Getenv("BERTH_TEST_CNI")
	if _, err := os.Stat(filepath.Join(dir, "bridge")); err != nil {
		t.Fatalf("this test needs the CNI plugins at BERTH_TEST_CNI; make runtimes builds them: %v", err)
	}
	return dir
}

// comparison is one configuration, in which BRIDGE and DATA are placeholders, and the preparation of
// the node and the pod.
type comparison struct {
	plugins string
	version string                            // of the configuration; 1.0.0 if empty
	second  string                            // the plugins of a second network
	subnets string                            // what flannel's daemon wrote, if not empty
	before  func(t *testing.T, bridge string) // changes the node before the pod is connected
	pod     func(*Pod)
	fails   bool
	// executed is set if berth must execute the plugins although InProcess is set.
	executed bool
}

const (
	v4       = `"ipam": {"type": "host-local", "dataDir": "DATA", "ranges": [[{"subnet": "10.98.7.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}`
	v6       = `"ipam": {"type": "host-local", "dataDir": "DATA", "ranges": [[{"subnet": "fd98:7::/64"}]], "routes": [{"dst": "::/0"}]}`
	dual     = `"ipam": {"type": "host-local", "dataDir": "DATA", "ranges": [[{"subnet": "10.98.7.0/24"}], [{"subnet": "fd98:7::/64"}]], "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}`
	unrouted = `"ipam": {"type": "host-local", "dataDir": "DATA", "ranges": [[{"subnet": "10.98.7.0/24"}], [{"subnet": "fd98:7::/64"}]]}`
	portmap  = `, {"type": "portmap", "capabilities": {"portMappings": true}}`
	limits   = `, {"type": "bandwidth", "capabilities": {"bandwidth": true}}`
	ipRange  = `"ipam": {"type": "host-local", "dataDir": "DATA", "ranges": [[{"subnet": "10.98.7.0/24", "rangeStart": "10.98.7.20", "rangeEnd": "10.98.7.30", "gateway": "10.98.7.254"}]]}`
	ipRanges = `"ipam": {"type": "host-local", "dataDir": "DATA", "ranges": [[{"subnet": "10.98.7.0/28"}, {"subnet": "10.98.7.16/28"}]]}`
	loopback = `{"type": "loopback"}`
	one      = `"ipam": {"type": "host-local", "dataDir": "DATA", "ranges": [[{"subnet": "10.98.7.0/30"}]]}`
	legacy   = `"ipam": {"type": "host-local", "dataDir": "DATA", "subnet": "10.98.7.0/24", "routes": [{"dst": "192.0.2.0/24"}]}`
	routes   = `"ipam": {"type": "host-local", "dataDir": "DATA", "ranges": [[{"subnet": "10.98.7.0/24"}]], "routes": [{"dst": "192.0.2.0/24", "gw": "10.98.7.9"}, {"dst": "198.51.100.0/24", "priority": 77, "table": 100}, {"dst": "0.0.0.0/0", "mtu": 1300}]}`
)

// What flannel's daemon writes.
const (
	env     = "FLANNEL_NETWORK=10.98.0.0/16\nFLANNEL_SUBNET=10.98.7.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"
	envV6   = "FLANNEL_IPV6_NETWORK=fd98::/48\nFLANNEL_IPV6_SUBNET=fd98:0:0:7::1/64\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"
	envDual = "FLANNEL_IPV6_NETWORK=fd98::/48\nFLANNEL_IPV6_SUBNET=fd98:0:0:7::1/64\nFLANNEL_NETWORK=10.98.0.0/16\nFLANNEL_SUBNET=10.98.7.1/24\nFLANNEL_MTU=1400\nFLANNEL_IPMASQ=false\n"
)

// flannelWith returns the plugin of flannel. The directories and the bridge are the test's; all else
// is as in kube-flannel's ConfigMap.
func flannelWith(keys, delegate string) string {
	return `{"type": "flannel", "subnetFile": "DATA/subnet.env", "dataDir": "DATA/flannel"` + keys +
		`, "delegate": {"bridge": "BRIDGE", "hairpinMode": true, "isDefaultGateway": true` + delegate + `}}`
}

const inData = `, "ipam": {"dataDir": "DATA"}`

func bridgeWith(keys, ipam string) string {
	return `{"type": "bridge", "bridge": "BRIDGE"` + keys + `, ` + ipam + `}`
}

func ptpWith(keys, ipam string) string { return `{"type": "ptp"` + keys + `, ` + ipam + `}` }

// existing creates the bridge before the pod.
func existing(change func(*netlink.Bridge), addresses ...string) func(*testing.T, string) {
	return func(t *testing.T, name string) {
		b := &netlink.Bridge{LinkAttrs: netlink.NewLinkAttrs()}
		b.Name = name
		if change != nil {
			change(b)
		}
		if b.VlanFiltering != nil && !filtersVLANs() {
			t.Skip("the kernel cannot create the bridge: it has no VLAN filtering")
		}
		test.Must(t, netlink.LinkAdd(b))
		for _, a := range addresses {
			address := test.Value(netlink.ParseAddr(a))(t)
			test.Must(t, netlink.AddrAdd(b, address))
		}
	}
}

// filtering sets the VLAN filter of a bridge, and the default VLAN of its ports.
func filtering(on bool, vlan uint16) func(*netlink.Bridge) {
	return func(b *netlink.Bridge) { b.VlanFiltering, b.VlanDefaultPVID = &on, &vlan }
}

// interfaceInVLAN creates the node's interface in the VLAN 100 before the pod, with an address.
func interfaceInVLAN(address string) func(*testing.T, string) {
	return func(t *testing.T, bridge string) {
		name := bridge + ".100"
		existing(nil, address)(t, name)
		test.Must(t, netlink.LinkSetUp(test.Value(netlink.LinkByName(name))(t)))
	}
}

// filtersVLANs reports whether the kernel has VLAN filtering. Debian's has; see integration/vm.
var filtersVLANs = sync.OnceValue(func() bool {
	b := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "btfilter"}, VlanFiltering: new(true)}
	return netlink.LinkAdd(b) == nil && netlink.LinkDel(b) == nil
})

var comparisons = map[string]comparison{
	"a bridge":                        {plugins: bridgeWith(``, v4)},
	"the default bridge of the list":  {plugins: bridgeWith(`, "capabilities": {"mac": true}`, v4)},
	"a gateway":                       {plugins: bridgeWith(`, "isGateway": true`, v4)},
	"a default gateway":               {plugins: bridgeWith(`, "isDefaultGateway": true`, ipRanges)},
	"masquerading":                    {plugins: bridgeWith(`, "isGateway": true, "ipMasq": true`, v4)},
	"masquerading by nftables":        {plugins: bridgeWith(`, "isGateway": true, "ipMasq": true, "ipMasqBackend": "nftables"`, v4)},
	"masquerading by iptables":        {plugins: bridgeWith(`, "isGateway": true, "ipMasq": true, "ipMasqBackend": "iptables"`, v4), executed: true},
	"an MTU":                          {plugins: bridgeWith(`, "isGateway": true, "mtu": 1400`, v4)},
	"hairpin":                         {plugins: bridgeWith(`, "isGateway": true, "hairpinMode": true`, v4)},
	"promiscuous":                     {plugins: bridgeWith(`, "isGateway": true, "promiscMode": true`, v4)},
	"hairpin and promiscuous":         {plugins: bridgeWith(`, "hairpinMode": true, "promiscMode": true`, v4), executed: true, fails: true},
	"isolated":                        {plugins: bridgeWith(`, "isGateway": true, "portIsolation": true`, v4)},
	"duplicate address detection":     {plugins: bridgeWith(`, "isGateway": true, "enabledad": true`, v6)},
	"IPv6":                            {plugins: bridgeWith(`, "isGateway": true`, v6)},
	"both families":                   {plugins: bridgeWith(`, "isGateway": true, "ipMasq": true`, dual)},
	"both families, default gateways": {plugins: bridgeWith(`, "isDefaultGateway": true`, unrouted)},
	"a range":                         {plugins: bridgeWith(`, "isGateway": true`, ipRange)},
	"the old form of a range":         {plugins: bridgeWith(`, "isGateway": true`, legacy)},
	"routes":                          {plugins: bridgeWith(`, "isGateway": true`, routes)},
	"DNS":                             {plugins: bridgeWith(`, "dns": {"nameservers": ["10.98.7.1"], "search": ["a.example"]}`, v4)},
	"CNI 0.3.1":                       {plugins: bridgeWith(`, "isGateway": true`, v4), version: "0.3.1"},
	"CNI 0.4.0":                       {plugins: bridgeWith(`, "isGateway": true`, dual) + portmap, version: "0.4.0"},
	"CNI 1.1.0":                       {plugins: bridgeWith(`, "isGateway": true`, routes) + portmap, version: "1.1.0"},
	"idle plugins":                    {plugins: bridgeWith(`, "isGateway": true`, v4) + portmap + limits},
	"a host port": {plugins: bridgeWith(`, "isGateway": true`, v4) + portmap, pod: func(p *Pod) {
		p.PortMappings = []PortMapping{{HostPort: 18987, ContainerPort: 80, Protocol: "tcp"}}
	}},
	"a limit": {plugins: bridgeWith(`, "isGateway": true`, v4) + limits, pod: func(p *Pod) {
		p.Bandwidth = &Bandwidth{IngressRate: 10_000_000, IngressBurst: 80_000_000}
	}},
	"a limit of the network":    {plugins: bridgeWith(`, "isGateway": true`, v4) + `, {"type": "bandwidth", "ingressRate": 10000000, "ingressBurst": 80000000}`, executed: true},
	"no addresses":              {plugins: `{"type": "bridge", "bridge": "BRIDGE"}`, executed: true, fails: true},
	"an unknown key":            {plugins: bridgeWith(`, "color": "red"`, v4), executed: true},
	"an existing bridge":        {plugins: bridgeWith(`, "isGateway": true, "mtu": 1400`, v4), before: existing(nil)},
	"an existing address":       {plugins: bridgeWith(`, "isGateway": true`, v4), before: existing(nil, "10.98.7.1/24")},
	"another address":           {plugins: bridgeWith(`, "isGateway": true`, v4), before: existing(nil, "10.98.6.1/24"), fails: true},
	"another address, replaced": {plugins: bridgeWith(`, "isGateway": true, "forceAddress": true`, v4), before: existing(nil, "10.98.6.1/24")},
	"another network beside":    {plugins: bridgeWith(`, "isGateway": true`, v6), before: existing(nil, "fd98:6::1/64")},
	"an interface that is no bridge": {plugins: bridgeWith(``, v4), fails: true, before: func(t *testing.T, name string) {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		test.Must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: name + "-p"}))
	}},
	"the only address is taken": {plugins: bridgeWith(``, one), fails: true, before: func(t *testing.T, _ string) {}},
	"loopback first":            {plugins: loopback + `, ` + bridgeWith(`, "isGateway": true`, v4)},
	"loopback last":             {plugins: bridgeWith(`, "isGateway": true`, v4) + `, ` + loopback, version: "0.4.0"},
	"loopback with a key":       {plugins: bridgeWith(``, v4) + `, {"type": "loopback", "mtu": 9000}`, executed: true},
	"CRI-O":                     {plugins: bridgeWith(`, "isGateway": true, "ipMasq": true, "hairpinMode": true`, dual), second: loopback},
	"CRI-O, IPv4":               {plugins: bridgeWith(`, "isGateway": true, "ipMasq": true, "hairpinMode": true`, v4), second: loopback},
	"kindnet":                   {plugins: ptpWith(`, "ipMasq": false, "mtu": 1500`, v4) + portmap, version: "0.3.1"},
	"kindnet, both families":    {plugins: ptpWith(`, "ipMasq": false, "mtu": 1500`, dual) + portmap, version: "0.3.1"},
	"kube-flannel":              {plugins: flannelWith(inData, ``) + portmap, version: "0.3.1", subnets: env},
	"k3s":                       {plugins: flannelWith(inData, `, "forceAddress": true`) + portmap + limits, subnets: env},
	"flannel, IPv6":             {plugins: flannelWith(inData, ``) + portmap, subnets: envV6},
	"flannel, both families":    {plugins: flannelWith(inData, ``) + portmap, subnets: envDual},
	"flannel, its values replaced": {
		plugins: flannelWith(`, "ipam": {"dataDir": "DATA", "routes": [{"dst": "192.0.2.0/24", "gw": "10.98.7.9"}]}`, `, "type": "bridge", "mtu": 1300, "ipMasq": true, "isGateway": false`), subnets: env,
	},
	"flannel, a host port": {plugins: flannelWith(inData, ``) + portmap, subnets: env, pod: func(p *Pod) {
		p.PortMappings = []PortMapping{{HostPort: 18988, ContainerPort: 80, Protocol: "tcp"}}
	}},
	"flannel, a capability":        {plugins: flannelWith(inData+`, "capabilities": {"dns": true}`, ``), subnets: env, pod: func(p *Pod) { p.DNS = &DNS{Servers: []string{"10.98.7.1"}} }},
	"flannel, another plugin":      {plugins: flannelWith(inData, `, "type": "ptp"`), subnets: env, executed: true},
	"flannel, an unknown key":      {plugins: flannelWith(inData, `, "color": "red"`), subnets: env, executed: true},
	"flannel, a name":              {plugins: flannelWith(inData, `, "name": "other"`), subnets: env, executed: true, fails: true},
	"flannel without its daemon":   {plugins: flannelWith(inData, ``), executed: true, fails: true},
	"flannel, no MTU":              {plugins: flannelWith(inData, ``), subnets: strings.Replace(env, "MTU", "", 1), executed: true, fails: true},
	"flannel, no network":          {plugins: flannelWith(inData, ``), subnets: strings.Replace(env, "NETWORK", "", 1), executed: true, fails: true},
	"flannel, no subnet":           {plugins: flannelWith(inData, ``), subnets: strings.Replace(env, "SUBNET", "", 1), executed: true, fails: true},
	"flannel, no masquerading":     {plugins: flannelWith(inData, ``), subnets: strings.Replace(env, "IPMASQ", "", 1), executed: true, fails: true},
	"flannel, a subnet of nothing": {plugins: flannelWith(inData, ``), subnets: strings.Replace(env, "10.98.7.1/24", "10.98.7", 1), executed: true, fails: true},
	"ptp":                          {plugins: ptpWith(``, v4)},
	"ptp, IPv6":                    {plugins: ptpWith(``, v6)},
	"ptp, both families":           {plugins: ptpWith(`, "ipMasq": true, "mtu": 1400`, dual) + portmap},
	"ptp, DNS and routes":          {plugins: ptpWith(`, "dns": {"domain": "a.example"}`, routes)},

	// The kernel of a host may have no VLAN filtering; see filtersVLANs.
	"VLAN":                            {plugins: bridgeWith(`, "vlan": 100`, v4)},
	"VLAN, a gateway":                 {plugins: bridgeWith(`, "vlan": 100, "isGateway": true, "mtu": 1400, "hairpinMode": true, "portIsolation": true`, v4)},
	"VLAN, default gateways":          {plugins: bridgeWith(`, "vlan": 100, "isDefaultGateway": true, "ipMasq": true, "enabledad": true`, unrouted) + portmap, version: "0.4.0"},
	"VLAN, the default preserved":     {plugins: bridgeWith(`, "vlan": 100, "isGateway": true, "vlanTrunk": [{"id": 10}], "preserveDefaultVlan": true`, v4)},
	"VLAN, an existing bridge":        {plugins: bridgeWith(`, "vlan": 100, "isGateway": true`, v4), before: existing(filtering(false, 7), "10.98.7.1/24")},
	"VLAN, an existing filter":        {plugins: bridgeWith(`, "isGateway": true`, v4), before: existing(filtering(true, 1))},
	"VLAN, another address":           {plugins: bridgeWith(`, "vlan": 100, "isGateway": true`, v4), before: interfaceInVLAN("10.98.6.1/24"), fails: true},
	"VLAN, another address, replaced": {plugins: bridgeWith(`, "vlan": 100, "isGateway": true, "forceAddress": true`, v4), before: interfaceInVLAN("10.98.6.1/24")},
	"VLAN, flannel":                   {plugins: flannelWith(inData, `, "vlan": 100`), subnets: env},
	"VLAN in its trunk":               {plugins: bridgeWith(`, "vlan": 11, "isGateway": true, "vlanTrunk": [{"minID": 1, "maxID": 4094}]`, v4)},
	"VLAN trunk":                      {plugins: bridgeWith(`, "isGateway": true, "vlanTrunk": [{"minID": 10, "maxID": 14, "id": 12}, {"minID": 12, "maxID": 16}, {"id": 1}, {"minID": 30, "maxID": 30, "id": 40}, {}]`, v4)},
	"VLAN trunk of nothing":           {plugins: bridgeWith(`, "vlanTrunk": []`, v4)},

	"no VLAN":                             {plugins: bridgeWith(`, "vlan": 0, "vlanTrunk": null, "preserveDefaultVlan": true`, v4)},
	"a VLAN out of range":                 {plugins: bridgeWith(`, "vlan": 4095`, v4), executed: true, fails: true},
	"a VLAN below zero":                   {plugins: bridgeWith(`, "vlan": -1`, v4), executed: true, fails: true},
	"a trunk, reversed":                   {plugins: bridgeWith(`, "vlanTrunk": [{"minID": 12, "maxID": 10}]`, v4), executed: true, fails: true},
	"a trunk without a minimum":           {plugins: bridgeWith(`, "vlanTrunk": [{"maxID": 10}]`, v4), executed: true, fails: true},
	"a trunk without a maximum":           {plugins: bridgeWith(`, "vlanTrunk": [{"minID": 10}]`, v4), executed: true, fails: true},
	"a trunk, its minimum out of range":   {plugins: bridgeWith(`, "vlanTrunk": [{"minID": 0, "maxID": 10}]`, v4), executed: true, fails: true},
	"a trunk, its maximum out of range":   {plugins: bridgeWith(`, "vlanTrunk": [{"minID": 10, "maxID": 4095}]`, v4), executed: true, fails: true},
	"a trunk, a single VLAN out of range": {plugins: bridgeWith(`, "vlanTrunk": [{"id": 0}]`, v4), executed: true, fails: true},
	"a trunk, no element":                 {plugins: bridgeWith(`, "vlanTrunk": [null]`, v4), executed: true, fails: true},
}

// A network that is set up in process must equal the one that plugins set up: in the pod, on the
// node, and in host-local's files. Both ways must be able to disconnect it.
func TestInProcessIsLikePlugins(t *testing.T) {
	dir := pluginDir(t)
	if !alone(t) {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(comparisons)) {
		c := comparisons[name]
		t.Run(name, func(t *testing.T) {
			if strings.HasPrefix(name, "VLAN") && !filtersVLANs() {
				c.fails = true // both ways
			}
			want := c.run(t, dir, false, false)
			for _, in := range []struct{ process, undo bool }{{true, true}, {true, false}, {false, true}} {
				got := c.run(t, dir, in.process, in.undo)
				for i, stage := range []string{"connected", "disconnected"} {
					want, got := want[i], got[i]
					if c.fails { // berth reserves addresses before it creates an interface
						_, want, _ = strings.Cut(want, "# addresses")
						_, got, _ = strings.Cut(got, "# addresses")
					}
					if differs := difference(want, got); differs != "" {
						t.Errorf("%s, in process: %+v\n%s", stage, in, differs)
					}
				}
			}
		})
	}
}

// alone reports whether the test runs in a network namespace of its own, where no other test changes
// the node. If not, alone runs the test in such a namespace, in another process.
func alone(t *testing.T) bool {
	const variable = "BERTH_TEST_ALONE"
	if os.Getenv(variable) != "" {
		return true
	}
	_, subtests, _ := strings.Cut(flag.Lookup("test.run").Value.String(), "/")
	cmd := exec.Command("unshare", "--net", os.Args[0], "-test.run=^"+t.Name()+"$/"+subtests, "-test.v")
	cmd.Env = append(os.Environ(), variable+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("%v\n%s", err, out)
	}
	return false
}

// run connects and disconnects one pod, and returns the result of look after each of the two steps.
func (c comparison) run(t *testing.T, dir string, inProcess, undoInProcess bool) [2]string {
	t.Helper()
	n := newNode(t)
	n.config.BinDirs = []string{dir}
	n.bridge = "btcompare"
	n.removeBridge()
	if c.before != nil {
		c.before(t, n.bridge)
	}
	defer n.removeBridge()
	n.config.InProcess, n.config.MasqueradeTable = inProcess, "berth_compare"
	text := fmt.Sprintf(`{"cniVersion": %q, "name": "compared", "plugins": [%s]}`, cmp.Or(c.version, "1.0.0"), c.plugins)
	n.configure("10-compared.conflist", strings.NewReplacer("BRIDGE", n.bridge, "DATA", n.ipam).Replace(text))
	if c.second != "" {
		n.config.MaxConfNum = 2
		n.configure("20-second.conflist", fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "second", "plugins": [%s]}`, c.second))
	}
	p := New(n.config)
	if c.subnets != "" {
		test.Must(t, os.MkdirAll(n.ipam, 0o755))
		test.Must(t, os.WriteFile(filepath.Join(n.ipam, "subnet.env"), []byte(c.subnets), 0o644))
	}
	if strings.Contains(c.plugins, one) {
		test.Must(t, os.MkdirAll(filepath.Join(n.ipam, "compared"), 0o755))
		test.Must(t, os.WriteFile(filepath.Join(n.ipam, "compared", "10.98.7.2"), []byte("other\r\neth0"), 0o600))
	}
	pod := n.pod("compared-pod")
	if c.pod != nil {
		c.pod(&pod)
	}
	r, err := p.Setup(t.Context(), pod)
	if c.fails != (err != nil) {
		t.Fatalf("in process: %t: %v", inProcess, err)
	}
	var seen [2]string
	seen[0] = n.look(t, pod, r)
	if r != nil {
		for i := range r.Attachments {
			test.Equal(t, "in process", r.Attachments[i].InProcess, inProcess && !c.executed)
			r.Attachments[i].InProcess = undoInProcess && !c.executed
		}
	}
	mustTeardown(t, p, pod, r)
	test.Must(t, namespaces.Release(filepath.Dir(pod.NetNS)))
	test.Retry(t, n.portsLeft)
	pod.NetNS = ""
	seen[1] = n.look(t, pod, nil)
	test.Must(t, p.Resume(nil)) // as the next start does, after a downgrade
	if !inProcess && undoInProcess {
		// Only the plugins find their rules of masquerading, so berth leaves each pod to what connected it.
		out, err := exec.Command("nft", "flush", "ruleset").CombinedOutput()
		test.Mustf(t, err, "%s", out)
	}
	return seen
}

// look returns the state of the pod's namespace, of the node, and of host-local's files, without
// the parts that differ in each run.
func (n *node) look(t *testing.T, pod Pod, r *Result) string {
	t.Helper()
	var all strings.Builder
	show := func(title string, command ...string) {
		out, err := exec.Command(command[0], command[1:]...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v: %s", command, err, out)
		}
		fmt.Fprintf(&all, "# %s\n%s\n", title, out)
	}
	if pod.NetNS != "" {
		in := func(title string, command ...string) {
			show(title, append([]string{"nsenter", "--net=" + pod.NetNS}, command...)...)
		}
		in("pod's interfaces", "ip", "-d", "addr", "show")
		in("pod's routes", "ip", "-d", "route", "show", "table", "all")
		in("pod's routes, IPv6", "ip", "-d", "-6", "route", "show", "table", "all")
		in("pod's settings", "sh", "-c", "grep -s . /proc/sys/net/ipv[46]/conf/eth0/*; true")
	}
	show("interfaces", "ip", "-d", "addr", "show")
	show("routes", "ip", "route", "show", "table", "all")
	show("routes, IPv6", "ip", "-6", "route", "show", "table", "all")
	show("VLANs", "sh", "-c", "bridge -d vlan show || true") // fails without VLAN filtering in the kernel
	show("settings", "sh", "-c", "grep -s . /proc/sys/net/ipv[46]/conf/all/forwarding /proc/sys/net/ipv[46]/conf/"+n.bridge+"*/*; true")
	show("addresses", "sh", "-c", "cd "+n.ipam+" 2>/dev/null && grep -r . . | sort; true")
	if r != nil {
		for _, a := range r.Attachments {
			fmt.Fprintf(&all, "# result\n%s\n", a.Result)
		}
	}
	text := all.String()
	if pod.NetNS != "" {
		text = strings.ReplaceAll(text, pod.NetNS, "NETNS")
	}
	// A bridge whose address is not set has the lowest one of its ports: of any of them.
	for _, port := range n.ports() {
		mac := port.HardwareAddr
		inID := fmt.Sprintf("8000.%x:%x:%x:%x:%x:%x", mac[0], mac[1], mac[2], mac[3], mac[4], mac[5])
		text = strings.NewReplacer(mac.String(), "PORT", inID, "8000.PORT").Replace(text)
	}
	return normal(strings.ReplaceAll(text, n.ipam, "DATA"))
}

var (
	macs    = regexp.MustCompile(`([0-9a-f]{2}[:.]){5}[0-9a-f]{2}|[0-9a-f]{4}\.([0-9a-f]{1,2}[:.]){5}[0-9a-f]{1,2}`)
	veths   = regexp.MustCompile(`veth[0-9a-f]{8}`)
	changes = regexp.MustCompile(`(?m)^.*inet6 fe80::.*\n|^\d+: |@if\d+|link-netns\S* \S+|fe80::[0-9a-f:]+|\S+_timer +\S+|topology_change\S* \S+| (tentative|dadfailed|stable-privacy)|designated_port \d+|port_id \S+|port_no \S+|state (LOWERLAYERDOWN|DOWN|UP|UNKNOWN|forwarding|disabled|learning|blocking)|proto kernel_lo|expires \S+|stable_secret.*|iif \S+|NO-CARRIER,|,LOWER_UP|^.* table local .*\n|^Error: .*\n| linkdown|(hello|fdb)_\S+ \S+|root_path_cost \d+|root_port \d+`)
)

// normal numbers MAC addresses and veth interfaces in the order in which they appear, and removes
// numbers, states and addresses that the kernel chooses.
func normal(text string) string {
	text = changes.ReplaceAllString(text, "")
	for name, pattern := range map[string]*regexp.Regexp{"MAC": macs, "VETH": veths} {
		seen := map[string]string{}
		text = pattern.ReplaceAllStringFunc(text, func(found string) string {
			if seen[found] == "" {
				seen[found] = fmt.Sprintf("%s%d", name, len(seen))
			}
			return seen[found]
		})
	}
	return text
}

// difference returns the lines that are only in one of two texts.
func difference(want, got string) string {
	a, b := strings.Split(want, "\n"), strings.Split(got, "\n")
	var out []string
	for _, line := range a {
		if !slices.Contains(b, line) {
			out = append(out, "- "+line)
		}
	}
	for _, line := range b {
		if !slices.Contains(a, line) {
			out = append(out, "+ "+line)
		}
	}
	return strings.Join(out, "\n")
}

// Packets of a pod to another network have the node's address, those to its own network the pod's.
// Status restores the table after another program removed it, and Resume after a restart.
func TestMasqueradedTraffic(t *testing.T) {
	dir := pluginDir(t)
	if !alone(t) {
		return
	}
	n := newNode(t)
	n.config.BinDirs, n.bridge = []string{dir}, "btmasq"
	n.config.InProcess, n.config.MasqueradeTable = true, "berth_masq"
	text := `{"cniVersion": "1.0.0", "name": "masq", "plugins": [` + bridgeWith(`, "isGateway": true, "ipMasq": true`, dual) + `]}`
	n.configure("10-masq.conflist", strings.NewReplacer("BRIDGE", n.bridge, "DATA", n.ipam).Replace(text))
	t.Chdir(t.TempDir())
	outside := n.pod("outside")
	for _, command := range [][]string{
		{"ip", "link", "add", "uplink", "type", "veth", "peer", "name", "eth0"},
		{"ip", "link", "set", "uplink", "up"},
		{"ip", "addr", "add", "192.0.2.1/24", "dev", "uplink"},
		{"ip", "-6", "addr", "add", "2001:db8::1/64", "dev", "uplink", "nodad"},
		{"mkdir", "-p", "/run/netns"},
		{"ip", "link", "set", "eth0", "netns", outside.NetNS},
		{"nsenter", "--net=" + outside.NetNS, "ip", "link", "set", "eth0", "up"},
		{"nsenter", "--net=" + outside.NetNS, "ip", "addr", "add", "192.0.2.2/24", "dev", "eth0"},
		{"nsenter", "--net=" + outside.NetNS, "ip", "-6", "addr", "add", "2001:db8::2/64", "dev", "eth0", "nodad"},
		{"nsenter", "--net=" + outside.NetNS, "ip", "route", "add", "10.98.0.0/16", "via", "192.0.2.1"},
		{"nsenter", "--net=" + outside.NetNS, "ip", "-6", "route", "add", "fd98:7::/64", "via", "2001:db8::1"},
	} {
		out, err := exec.Command(command[0], command[1:]...).CombinedOutput()
		test.Mustf(t, err, "%v: %s", command, out)
	}
	p := New(n.config)
	pod, neighbor := n.pod("masq-pod"), n.pod("masq-neighbor")
	r, other := mustSetup(t, p, pod), mustSetup(t, p, neighbor)
	sees := func(when string) {
		t.Helper()
		test.Equal(t, when+", outside sees", seenBy(t, outside, "192.0.2.2", pod), "192.0.2.1")
		test.Equal(t, when+", outside sees", seenBy(t, outside, "2001:db8::2", pod), "2001:db8::1")
		test.Equal(t, when+", a neighbor sees", seenBy(t, neighbor, other.IPs[0], pod), r.IPs[0])
	}
	sees("at first")
	out, err := exec.Command("nft", "delete", "table", "inet", "berth_masq").CombinedOutput()
	test.Mustf(t, err, "nft: %s", out)
	test.Equal(t, "without the table, outside sees", seenBy(t, outside, "192.0.2.2", pod), r.IPs[0])
	test.Must(t, p.Status())
	sees("after a flush")
	out, err = exec.Command("sh", "-c", "nft list table inet berth_masq > masq.nft && nft delete table inet berth_masq && nft -f masq.nft").CombinedOutput()
	test.Mustf(t, err, "nft does not read its own listing: %s", out)
	sees("after a script of the listing")
	for _, subnet := range []string{"10.98.7.0/24", "fd98_7__/64"} {
		out, err = exec.Command("nft", "flush", "set", "inet", "berth_masq", "pods_"+subnet).CombinedOutput()
		test.Mustf(t, err, "nft: %s", out)
	}
	time.Sleep(checkInterval)
	test.Must(t, p.Status())
	sees("after a flush of the sets")
	p = New(n.config)
	test.Must(t, p.Resume(map[string]*Result{"masq-pod": r, "masq-neighbor": other, "other": {}}))
	sees("after a restart")
	mustTeardown(t, p, pod, r)
	mustTeardown(t, p, neighbor, other)
	out, err = exec.Command("nft", "list", "table", "inet", "berth_masq").CombinedOutput()
	test.Mustf(t, err, "nft: %s", out)
	if strings.Contains(string(out), "elements") {
		t.Errorf("addresses are left:\n%s", out)
	}
	test.Must(t, New(n.config).Resume(nil))
	if out, err := exec.Command("nft", "list", "table", "inet", "berth_masq").CombinedOutput(); err == nil {
		t.Errorf("the table is left:\n%s", out)
	}
}

// Pods that start at once reach their gateway by one interface of the node, also if a killed daemon
// left its unfinished one.
func TestVLANOfSeveralPods(t *testing.T) {
	dir := pluginDir(t)
	if !filtersVLANs() {
		t.Skip("the kernel has no VLAN filtering")
	}
	if !alone(t) {
		return
	}
	n := newNode(t)
	n.config.BinDirs, n.bridge = []string{dir}, "btvlan"
	n.config.InProcess, n.config.MasqueradeTable = true, "berth_vlan"
	text := `{"cniVersion": "1.0.0", "name": "vlan", "plugins": [` + bridgeWith(`, "vlan": 100, "isGateway": true`, v4) + `]}`
	n.configure("10-vlan.conflist", strings.NewReplacer("BRIDGE", n.bridge, "DATA", n.ipam).Replace(text))
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "berth-vlan"
	test.Must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "unfinished"}))
	p, pods := New(n.config), []Pod{n.pod("vlan-1"), n.pod("vlan-2"), n.pod("vlan-3")}
	results := make([]*Result, len(pods))
	var all sync.WaitGroup
	for i, pod := range pods {
		all.Go(func() {
			var err error
			results[i], err = p.Setup(t.Context(), pod)
			test.Check(t, err)
		})
	}
	all.Wait()
	if t.Failed() {
		return
	}
	for i, pod := range pods {
		test.Equal(t, "in process", results[i].Attachments[0].InProcess, true)
		test.Equal(t, "the gateway sees", seenBy(t, Pod{NetNS: "/proc/self/ns/net"}, "10.98.7.1", pod), results[i].IPs[0])
		test.Equal(t, "a neighbor sees", seenBy(t, pods[0], results[0].IPs[0], pod), results[i].IPs[0])
	}
	test.Equal(t, "ports", len(n.ports()), len(pods)+1)
	if _, err := netlink.LinkByName(attrs.Name); err == nil {
		t.Errorf("%s is left", attrs.Name)
	}
	for i, pod := range pods {
		mustTeardown(t, p, pod, results[i])
	}
	n.removeBridge()
}

// seenBy returns the address from which a pod connects to a server at the address, in its namespace.
func seenBy(t *testing.T, server Pod, address string, from Pod) string {
	t.Helper()
	var l net.Listener
	test.Must(t, namespaces.Do(server.NetNS, func() (err error) { l, err = net.Listen("tcp", net.JoinHostPort(address, "0")); return err }))
	defer l.Close()
	seen := make(chan string, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			seen <- err.Error()
			return
		}
		defer conn.Close()
		host, _, _ := net.SplitHostPort(conn.RemoteAddr().String())
		seen <- host
	}()
	test.Must(t, namespaces.Do(from.NetNS, func() error {
		conn, err := net.DialTimeout("tcp", l.Addr().String(), time.Minute)
		if err != nil {
			return err
		}
		return conn.Close()
	}))
	return <-seen
}
