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
	Bridge           string `json:"bridge"`
	IsGateway        bool   `json:"isGateway"`
	IsDefaultGateway bool   `json:"isDefaultGateway"`
	ForceAddress     bool   `json:"forceAddress"`
	HairpinMode      bool   `json:"hairpinMode"`
	PromiscMode      bool   `json:"promiscMode"`
	PortIsolation    bool   `json:"portIsolation"`
	EnableDAD        bool   `json:"enabledad"`
}

func (b *bridgeConf) check() error {
	b.Bridge = cmp.Or(b.Bridge, "cni0")
	b.IsGateway = b.IsGateway || b.IsDefaultGateway
	if b.HairpinMode && b.PromiscMode {
		return errUnknown
	}
	return b.layer3.check()
}

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
	if err := conf.serveGateways(bridge, r); err != nil {
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
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil && !errors.Is(err, unix.EEXIST) {
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
	if b.IsGateway {
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

// serveGateways gives the bridge the addresses of the gateways.
func (b *bridgeConf) serveGateways(bridge *netlink.Bridge, r *types100.Result) error {
	if !b.IsGateway {
		return nil
	}
	for _, address := range r.IPs {
		if err := b.ensureAddress(bridge, &net.IPNet{IP: address.Gateway, Mask: address.Address.Mask}); err != nil {
			return err
		}
	}
	if err := ip.EnableForward(r.IPs); err != nil {
		return fmt.Errorf("enable forwarding: %w", err)
	}
	return nil
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
