package testbed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"k8s.io/apimachinery/pkg/util/wait"
)

// CNI is a network of one testbed: a bridge with masquerading, host-local
// addresses and port mappings.
type CNI struct {
	// ConfDir has the configuration list, and nothing else.
	ConfDir string
	// BinDir has the plugins.
	BinDir string
	// Name is the name of the network and of its bridge.
	Name string
	// Subnet is the range of its addresses.
	Subnet string

	leases string
	plain  bool
}

// CNIOption changes a network.
type CNIOption func(*CNI)

// Plain is a network without masquerading and host ports, for tests that need neither: the iptables
// rules and the portmap plugin take half of the time to set up a network.
func Plain(c *CNI) { c.plain = true }

// NewCNI writes the configuration of a new network. The first pod creates the bridge. A cleanup
// removes the bridge, and the firewall rules of pods that were not removed.
func NewCNI(t T, options ...CNIOption) *CNI {
	t.Helper()
	NeedNetwork(t)
	bin, err := CNIBinDir()
	if err != nil {
		t.Fatalf("%v", err)
	}
	subnet, err := freeSubnet()
	if err != nil {
		t.Fatalf("%v", err)
	}
	dir := t.TempDir()
	c := &CNI{
		ConfDir: filepath.Join(dir, "net.d"),
		BinDir:  bin,
		Name:    fmt.Sprintf("bt%d-%d", os.Getpid(), networks.Add(1)),
		Subnet:  subnet,
		leases:  filepath.Join(dir, "leases"),
	}
	for _, change := range options {
		change(c)
	}
	Mustf(t, os.Mkdir(c.ConfDir, 0o755), "make the CNI directory")
	if err := c.Write(); err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() {
		Checkf(t, errors.Join(c.removeRules(), c.removeBridge()), "remove the CNI network")
	})
	return c
}

var networks atomic.Int64

// Path is the file of the configuration list.
func (c *CNI) Path() string { return filepath.Join(c.ConfDir, "10-"+c.Name+".conflist") }

// Write writes the configuration list; a test that removed it can call Write again.
func (c *CNI) Write() error {
	type object = map[string]any
	plugins := []object{{
		"type": "bridge", "bridge": c.Name, "isGateway": true, "ipMasq": !c.plain, "promiscMode": true,
		"ipam": object{
			"type":    "host-local",
			"ranges":  [][]object{{{"subnet": c.Subnet}}},
			"routes":  []object{{"dst": "0.0.0.0/0"}},
			"dataDir": c.leases,
		},
	}}
	if !c.plain {
		plugins = append(plugins, object{"type": "portmap", "capabilities": object{"portMappings": true}})
	}
	list, err := json.MarshalIndent(object{"cniVersion": "1.0.0", "name": c.Name, "plugins": plugins}, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(c.Path(), list, 0o600); err != nil {
		return fmt.Errorf("write the CNI configuration: %w", err)
	}
	return nil
}

// Leases returns the addresses that IPAM has assigned.
func (c *CNI) Leases() ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(c.leases, c.Name))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var addresses []string
	for _, entry := range entries {
		if net.ParseIP(entry.Name()) != nil {
			addresses = append(addresses, entry.Name())
		}
	}
	return addresses, nil
}

// Left returns the network's leases, links and firewall rules on the host; without pods it must be
// empty.
func (c *CNI) Left() ([]string, error) {
	leases, err := c.Leases()
	ports, portsErr := c.ports()
	rules, rulesErr := c.rules()
	return slices.Concat(leases, ports, rules), errors.Join(err, portsErr, rulesErr)
}

// ports returns the names of the links that are attached to the bridge.
func (c *CNI) ports() ([]string, error) {
	bridge, err := netlink.LinkByName(c.Name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	links, err := whole(netlink.LinkList)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, link := range links {
		if link.Attrs().MasterIndex == bridge.Attrs().Index {
			names = append(names, link.Attrs().Name)
		}
	}
	return names, nil
}

func (c *CNI) removeBridge() error {
	bridge, err := netlink.LinkByName(c.Name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil
	}
	if err != nil {
		return err
	}
	return netlink.LinkDel(bridge)
}

// rules returns the iptables rules that name this network, and the nftables sets that have pods of
// it, as iptables-save and nft print them.
func (c *CNI) rules() ([]string, error) {
	saved, err := exec.Command("iptables-save", "-t", "nat").Output()
	if err != nil {
		return nil, fmt.Errorf("iptables-save: %w", err)
	}
	var rules []string
	for rule := range strings.Lines(string(saved)) {
		// The plugins quote the name inside of a quoted comment.
		if strings.Contains(rule, `name: \"`+c.Name+`\"`) {
			rules = append(rules, strings.TrimSpace(rule))
		}
	}
	tables, err := c.tables()
	for _, set := range tables {
		if strings.Contains(set, "elements") {
			rules = append(rules, set)
		}
	}
	return rules, err
}

// tables returns the set of this network's pods in each table that masquerades them, by the name of
// the table.
func (c *CNI) tables() (map[string]string, error) {
	names, err := exec.Command("nft", "list", "tables", "inet").Output()
	if err != nil {
		return nil, fmt.Errorf("nft list tables: %w", err)
	}
	sets := map[string]string{}
	for line := range strings.Lines(string(names)) {
		name, berths := strings.CutPrefix(strings.TrimSpace(line), "table inet berth_")
		if !berths {
			continue
		}
		text, _ := exec.Command("nft", "list", "set", "inet", "berth_"+name, "pods_"+c.Subnet).Output() // it may be gone meanwhile
		if len(text) > 0 {
			sets["berth_"+name] = string(text)
		}
	}
	return sets, nil
}

// removeRules removes the tables that masquerade this network's pods, the rules that jump to chains
// of its pods, and then those chains.
func (c *CNI) removeRules() error {
	tables, err := c.tables()
	if err != nil {
		return err
	}
	for name := range tables {
		if out, err := exec.Command("nft", "delete", "table", "inet", name).CombinedOutput(); err != nil {
			return fmt.Errorf("nft delete table: %w: %s", err, out)
		}
	}
	rules, err := c.rules()
	if err != nil {
		return err
	}
	restore := "*nat\n"
	chains := map[string]bool{}
	for _, rule := range rules {
		fields := strings.Fields(rule)
		if len(fields) < 2 || fields[0] != "-A" {
			continue
		}
		restore += "-D" + strings.TrimPrefix(rule, "-A") + "\n"
		if target := fields[len(fields)-1]; strings.HasPrefix(target, "CNI-") {
			chains[target] = true
		}
		if strings.HasPrefix(fields[1], "CNI-") && !strings.HasPrefix(fields[1], "CNI-HOSTPORT-") {
			chains[fields[1]] = true
		}
	}
	if len(rules) == 0 {
		return nil
	}
	for chain := range chains {
		restore += "-F " + chain + "\n-X " + chain + "\n"
	}
	command := exec.Command("iptables-restore", "--noflush", "--wait")
	command.Stdin = strings.NewReader(restore + "COMMIT\n")
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("iptables-restore: %w: %s", err, out)
	}
	return nil
}

// whole repeats a list that was interrupted by a change: other tests create and remove links all
// the time.
func whole[T any](list func() ([]T, error)) (all []T, err error) {
	_ = wait.PollUntilContextTimeout(context.Background(), 10*time.Millisecond, 5*time.Second, true, func(context.Context) (bool, error) {
		all, err = list()
		return !errors.Is(err, netlink.ErrDumpInterrupted), nil
	})
	return all, err
}

// given are the subnets that this process uses: a network has no route before its first pod.
var given sync.Map

// freeSubnet returns a /23 that has no route on this host, and never the same twice. Processes
// start their search at different subnets, so that two processes do not choose the same one.
func freeSubnet() (string, error) {
	routes, err := whole(func() ([]netlink.Route, error) { return netlink.RouteList(nil, netlink.FAMILY_V4) })
	if err != nil {
		return "", fmt.Errorf("list routes: %w", err)
	}
	const subnets = 1 << 13 // the /23 of 10.128.0.0/10
	start := os.Getpid()*16 + int(networks.Load())
	for i := range subnets {
		n := (start + i) % subnets
		candidate := &net.IPNet{IP: net.IPv4(10, byte(128+n>>7), byte(n<<1), 0).To4(), Mask: net.CIDRMask(23, 32)}
		if routed(routes, candidate) {
			continue
		}
		if _, taken := given.LoadOrStore(candidate.String(), true); !taken {
			return candidate.String(), nil
		}
	}
	return "", errors.New("every subnet of 10.128.0.0/10 is in use on this host")
}

func routed(routes []netlink.Route, candidate *net.IPNet) bool {
	for _, route := range routes {
		if route.Dst == nil {
			continue
		}
		if ones, _ := route.Dst.Mask.Size(); ones == 0 {
			continue // the default route uses no subnet
		}
		if route.Dst.Contains(candidate.IP) || candidate.Contains(route.Dst.IP) {
			return true
		}
	}
	return false
}

// NewAddress gives this host one more address, on a new link, for a server that cannot use
// loopback. Pods reach it too. A cleanup removes it.
func NewAddress(t T) net.IP {
	t.Helper()
	NeedRoot(t)
	subnet, err := freeSubnet()
	if err != nil {
		t.Fatalf("%v", err)
	}
	address, err := netlink.ParseAddr(subnet)
	Mustf(t, err, "parse %s", subnet)
	address.IP[len(address.IP)-1] = 1
	// A bridge, because every host with a CNI network supports bridges.
	attributes := netlink.NewLinkAttrs()
	attributes.Name = fmt.Sprintf("bh%d-%d", os.Getpid(), networks.Add(1))
	link := &netlink.Bridge{LinkAttrs: attributes}
	Mustf(t, netlink.LinkAdd(link), "make link %s", attributes.Name)
	t.Cleanup(func() {
		Checkf(t, netlink.LinkDel(link), "remove link %s", attributes.Name)
	})
	Mustf(t, netlink.AddrAdd(link, address), "give %s to link %s", address, attributes.Name)
	Mustf(t, netlink.LinkSetUp(link), "set link %s up", attributes.Name)
	return address.IP
}
