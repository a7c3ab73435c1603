package standard

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/pkg/ip"
	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/utils/sysctl"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// bridgeConf is the configuration of the bridge plugin.
// https://www.cni.dev/plugins/current/main/bridge/
type bridgeConf struct {
	common
	layer3
	Bridge              string   `json:"bridge"`
	IsGateway           bool     `json:"isGateway"`
	IsDefaultGateway    bool     `json:"isDefaultGateway"`
	ForceAddress        bool     `json:"forceAddress"`
	HairpinMode         bool     `json:"hairpinMode"`
	PromiscMode         bool     `json:"promiscMode"`
	PortIsolation       bool     `json:"portIsolation"`
	EnableDAD           bool     `json:"enabledad"`
	VLAN                uint16   `json:"vlan"` // 0 if the network has none
	VLANTrunk           []*trunk `json:"vlanTrunk"`
	PreserveDefaultVLAN bool     `json:"preserveDefaultVlan"`
}

func (b *bridgeConf) check() error {
	b.Bridge = cmp.Or(b.Bridge, "cni0")
	b.IsGateway = b.IsGateway || b.IsDefaultGateway
	if _, ok := b.vlans(); !ok || b.HairpinMode && b.PromiscMode {
		return errUnknown
	}
	return b.layer3.check()
}

// trunk adds a range of VLANs to a port, a single one, or both.
type trunk struct {
	MinID *uint16 `json:"minID"`
	MaxID *uint16 `json:"maxID"`
	ID    *uint16 `json:"id"`
}

// vlans is a range of VLANs of a port. Packets without a tag belong to the native one.
type vlans struct {
	first, last uint16
	native      bool
}

// vlans returns the VLANs of a port in the plugin's order: a later range replaces the flags of an
// earlier one. The result is false for values that the plugin refuses.
func (b *bridgeConf) vlans() (all []vlans, ok bool) {
	if b.VLAN != 0 {
		all = append(all, vlans{b.VLAN, b.VLAN, true})
	}
	for _, t := range b.VLANTrunk {
		if t == nil || (t.MinID == nil) != (t.MaxID == nil) {
			return nil, false
		}
		if t.MinID != nil {
			all = append(all, vlans{*t.MinID, *t.MaxID, false})
		}
		if t.ID != nil {
			all = append(all, vlans{*t.ID, *t.ID, false})
		}
	}
	if b.VLAN == 0 && len(all) > 0 {
		all = append(all, vlans{1, 1, true})
	}
	return all, !slices.ContainsFunc(all, func(v vlans) bool { return v.first == 0 || v.first > v.last || v.last > maxVLAN })
}

const maxVLAN = 4094

// The indexes of the interfaces in a result of the bridge plugin.
const (
	bridgeIndex = iota
	hostIndex
	podIndex
)

func (p *Plugins) addBridge(ctx context.Context, c call) (_ types.Result, err error) {
	var conf bridgeConf
	if err := decode(c.config, &conf); err != nil {
		return nil, err
	}
	bridge, err := p.ensureBridge(&conf)
	if err != nil {
		return nil, err
	}
	r, err := c.allocate(ctx) // if a later step fails, the caller sends DEL
	if err != nil {
		return nil, err
	}
	conf.route(r)
	r.Interfaces = []*types100.Interface{{Name: conf.Bridge}, {}, {Name: c.ifName, Sandbox: c.netns}}
	if err := (pair{
		mtu: conf.MTU, host: r.Interfaces[hostIndex], pod: r.Interfaces[podIndex],
		onHost: func(host netlink.Link) error { return conf.attach(host, bridge) },
		inPod:  func(pod netlink.Link) error { return conf.configure(pod, r) },
	}).create(); err != nil {
		return nil, err
	}
	if err := p.serveGateways(&conf, bridge, r); err != nil {
		return nil, err
	}
	if conf.IPMasq {
		if err := p.masquerade.Add(c.owner(), prefixes(addressesOf(r))); err != nil {
			return nil, err
		}
	}
	if err := conf.describe(ctx, r); err != nil {
		return nil, err
	}
	return r.GetAsVersion(conf.CNIVersion)
}

func (p *Plugins) delBridge(ctx context.Context, c call) error {
	return p.disconnect(ctx, c, removeAddresses)
}

// route completes the result of host-local: gateways, and the default routes to them.
func (b *bridgeConf) route(r *types100.Result) {
	for _, address := range r.IPs {
		address.Interface = types100.Int(podIndex)
		if address.Gateway == nil && b.IsGateway {
			address.Gateway = ip.NextIP(address.Address.IP.Mask(address.Address.Mask))
		}
		everywhere := net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
		if isV4(address.Address.IP) {
			everywhere = net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}
		}
		routed := slices.ContainsFunc(r.Routes, func(other *types.Route) bool {
			return other.GW != nil && other.Dst.String() == everywhere.String()
		})
		if b.IsDefaultGateway && !routed {
			r.Routes = append(r.Routes, &types.Route{Dst: everywhere, GW: address.Gateway})
		}
	}
}

// ensureBridge creates the bridge if it does not exist, and brings it up, for one pod at a time: the
// first pods must not choose different MAC addresses.
func (p *Plugins) ensureBridge(b *bridgeConf) (*netlink.Bridge, error) {
	p.bridges.Lock()
	defer p.bridges.Unlock()
	bridge, err := findBridge(b.Bridge)
	if _, missing := errors.AsType[netlink.LinkNotFoundError](err); missing {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = b.Bridge, b.MTU
		created := &netlink.Bridge{LinkAttrs: attrs}
		if b.VLAN != 0 || b.VLANTrunk != nil {
			created.VlanFiltering = new(true)
		}
		if err := netlink.LinkAdd(created); err != nil && !errors.Is(err, unix.EEXIST) {
			return nil, fmt.Errorf("create the bridge %s: %w", b.Bridge, err)
		}
		bridge, err = findBridge(b.Bridge)
	}
	if err != nil {
		return nil, err
	}
	if b.PromiscMode {
		if err := netlink.SetPromiscOn(bridge); err != nil {
			return nil, fmt.Errorf("set the promiscuous mode of %s: %w", b.Bridge, err)
		}
	}
	// Routers must not add routes. A kernel without IPv6 has no such file.
	_, _ = sysctl.Sysctl("net/ipv6/conf/"+b.Bridge+"/accept_ra", "0")
	if err := netlink.LinkSetUp(bridge); err != nil {
		return nil, fmt.Errorf("bring up %s: %w", b.Bridge, err)
	}
	if b.IsGateway && b.VLAN == 0 {
		return bridge, keepMAC(bridge)
	}
	return bridge, nil
}

func findBridge(name string) (*netlink.Bridge, error) {
	l, err := netlinksafe.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("bridge %s: %w", name, err)
	}
	bridge, is := l.(*netlink.Bridge)
	if !is {
		return nil, fmt.Errorf("interface %s is not a bridge; give the network another \"bridge\", or remove the interface", name)
	}
	return bridge, nil
}

// attach makes the node's end of a pair a port of the bridge.
func (b *bridgeConf) attach(host netlink.Link, bridge *netlink.Bridge) error {
	if err := netlink.LinkSetMaster(host, bridge); err != nil {
		return fmt.Errorf("attach %s to %s: %w", host.Attrs().Name, b.Bridge, err)
	}
	if b.HairpinMode {
		if err := netlink.LinkSetHairpin(host, true); err != nil {
			return fmt.Errorf("set the hairpin mode of %s: %w", host.Attrs().Name, err)
		}
	}
	if b.PortIsolation {
		if err := netlink.LinkSetIsolated(host, true); err != nil {
			return fmt.Errorf("isolate %s: %w", host.Attrs().Name, err)
		}
	}
	return b.setVLANs(host)
}

// setVLANs replaces the default VLAN of a port.
func (b *bridgeConf) setVLANs(port netlink.Link) error {
	all, _ := b.vlans()
	if len(all) > 0 && !b.PreserveDefaultVLAN {
		if err := netlink.BridgeVlanDelRange(port, 1, maxVLAN, false, false, false, true); err != nil {
			return fmt.Errorf("remove the VLANs of %s: %w", port.Attrs().Name, err)
		}
	}
	for _, v := range all {
		if v.first == v.last {
			v.last = 0 // the kernel refuses a range of one
		}
		if err := netlink.BridgeVlanAddRange(port, v.first, v.last, v.native, v.native, false, true); err != nil {
			return fmt.Errorf("add VLAN %d to %s: %w", v.first, port.Attrs().Name, err)
		}
	}
	return nil
}

// configure runs in the pod's network namespace.
func (b *bridgeConf) configure(link netlink.Link, r *types100.Result) error {
	ifName, dad := link.Attrs().Name, "0"
	if b.EnableDAD {
		dad = "1"
		_, _ = sysctl.Sysctl("net/ipv6/conf/"+ifName+"/enhanced_dad", dad)
	}
	_, _ = sysctl.Sysctl("net/ipv6/conf/"+ifName+"/accept_dad", dad) // a kernel without IPv6 has none
	_, _ = sysctl.Sysctl("net/ipv4/conf/"+ifName+"/arp_notify", "1")
	return configure(link, r)
}

// serveGateways gives the gateways' addresses to the bridge, or to the node's interface in the VLAN.
func (p *Plugins) serveGateways(b *bridgeConf, bridge *netlink.Bridge, r *types100.Result) error {
	if !b.IsGateway {
		return nil
	}
	var gateway netlink.Link = bridge
	if b.VLAN != 0 {
		var err error
		if gateway, err = p.ensureVLAN(b, bridge); err != nil {
			return fmt.Errorf("VLAN %d of %s: %w", b.VLAN, b.Bridge, err)
		}
		r.Interfaces = append(r.Interfaces, &types100.Interface{Name: gateway.Attrs().Name, Mac: gateway.Attrs().HardwareAddr.String()})
	}
	for _, address := range r.IPs {
		if err := b.ensureAddress(gateway, &net.IPNet{IP: address.Gateway, Mask: address.Address.Mask}); err != nil {
			return err
		}
	}
	if err := ip.EnableForward(r.IPs); err != nil {
		return fmt.Errorf("enable forwarding: %w", err)
	}
	return nil
}

// ensureVLAN returns the node's interface in the VLAN, and creates it if it does not exist. A new one
// gets its name last, so that a killed daemon leaves none that is not connected.
func (p *Plugins) ensureVLAN(b *bridgeConf, bridge *netlink.Bridge) (netlink.Link, error) {
	p.bridges.Lock()
	defer p.bridges.Unlock()
	name := fmt.Sprintf("%s.%d", b.Bridge, b.VLAN)
	link, err := netlinksafe.LinkByName(name)
	if _, missing := errors.AsType[netlink.LinkNotFoundError](err); missing {
		created := &types100.Interface{Name: "berth-vlan"}
		_ = ip.DelLinkByName(created.Name) // of a call that failed
		port := bridgeConf{Bridge: b.Bridge, VLAN: b.VLAN, PreserveDefaultVLAN: b.PreserveDefaultVLAN}
		if err = (pair{
			mtu: bridge.MTU, host: &types100.Interface{}, pod: created,
			onHost: func(host netlink.Link) error { return port.attach(host, bridge) },
			inPod:  func(link netlink.Link) error { return netlink.LinkSetName(link, name) },
		}).create(); err != nil {
			_ = ip.DelLinkByName(created.Name)
			return nil, err
		}
		link, err = netlinksafe.LinkByName(name)
	}
	if err != nil {
		return nil, err
	}
	return link, errors.Join(netlink.LinkSetUp(link), keepMAC(link))
}

// ensureAddress gives an interface the address of a gateway. Several IPv6 networks may share a
// bridge, several IPv4 networks may not.
func (b *bridgeConf) ensureAddress(link netlink.Link, wanted *net.IPNet) error {
	name, family := link.Attrs().Name, netlink.FAMILY_V6
	if isV4(wanted.IP) {
		family = netlink.FAMILY_V4
	}
	addresses, err := netlinksafe.AddrList(link, family)
	if err != nil {
		return fmt.Errorf("addresses of %s: %w", name, err)
	}
	has := false
	for _, a := range addresses {
		switch {
		case a.IPNet.String() == wanted.String():
			has = true
		case family == netlink.FAMILY_V6 && !a.IPNet.Contains(wanted.IP) && !wanted.Contains(a.IP):
		case !b.ForceAddress:
			return fmt.Errorf("%s has the address %s and not the gateway's %s; give the network another \"bridge\", or set \"forceAddress\"", name, a.IPNet, wanted)
		default:
			if err := netlink.AddrDel(link, &netlink.Addr{IPNet: a.IPNet}); err != nil {
				return fmt.Errorf("remove the address %s of %s: %w", a.IPNet, name, err)
			}
		}
	}
	if has {
		return nil
	}
	if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: wanted}); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add the address %s to %s: %w", wanted, name, err)
	}
	return nil
}

// keepMAC makes the present MAC address permanent: a bridge otherwise takes the lowest one of its
// ports, which changes with the pods.
func keepMAC(link netlink.Link) error {
	mac := link.Attrs().HardwareAddr
	if len(mac) == 0 { // the kernel clears it with the last port
		mac = make(net.HardwareAddr, 6)
		rand.Read(mac)
		mac[0] = mac[0]&^1 | 2 // not multicast, and local
	}
	if err := netlink.LinkSetHardwareAddr(link, mac); err != nil {
		return fmt.Errorf("set the MAC address of %s: %w", link.Attrs().Name, err)
	}
	return nil
}

// portUp limits the wait for the kernel's report that a port of a bridge is up.
const portUp = 2500 * time.Millisecond

// describe completes the result with what the kernel chose.
func (b *bridgeConf) describe(ctx context.Context, r *types100.Result) error {
	ctx, cancel := context.WithTimeout(ctx, portUp)
	defer cancel()
	for wait := time.Millisecond; ; wait *= 2 {
		host, err := netlinksafe.LinkByName(r.Interfaces[hostIndex].Name)
		if err != nil {
			return err
		}
		r.Interfaces[hostIndex].Mac = host.Attrs().HardwareAddr.String()
		if host.Attrs().OperState == netlink.OperUp {
			break
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the port %s of %s is not up: %s: %w", host.Attrs().Name, b.Bridge, host.Attrs().OperState, ctx.Err())
		case <-time.After(wait):
		}
	}
	bridge, err := findBridge(b.Bridge)
	if err != nil {
		return err
	}
	r.Interfaces[bridgeIndex].Mac = bridge.HardwareAddr.String()
	b.setDNS(r)
	return nil
}
