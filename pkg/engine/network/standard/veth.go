package standard

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/containerd/errdefs"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/pkg/ip"
	"github.com/containernetworking/plugins/pkg/ipam"
	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/failpoint"
	"github.com/berth-cri/berth/pkg/engine/namespaces"
)

// pair are the two ends of a veth pair, with functions that configure each in its namespace.
type pair struct {
	mtu  int
	host *types100.Interface
	pod  *types100.Interface
	// onHost configures the node's end, before inPod configures the pod's.
	onHost, inPod func(netlink.Link) error
}

// create creates a pair; one end is the pod's interface, or the node's if it has no sandbox.
func (p pair) create() error {
	node, err := ns.GetCurrentNS()
	if err != nil {
		return err
	}
	defer func() { _ = node.Close() }()
	if p.pod.Sandbox == "" {
		return p.createIn(node)
	}
	return namespaces.Do(p.pod.Sandbox, func() error { return guarded(func() error { return p.createIn(node) }) })
}

func (p pair) createIn(node ns.NetNS) error {
	host, pod, err := ip.SetupVeth(p.pod.Name, p.mtu, "", node)
	if err != nil {
		return fmt.Errorf("create the interface %s: %w", p.pod.Name, err)
	}
	p.host.Name, p.host.Mac, p.pod.Mac = host.Name, host.HardwareAddr.String(), pod.HardwareAddr.String()
	onNode := func(ns.NetNS) error { return guarded(func() error { return withLink(host.Name, p.onHost) }) }
	if err := node.Do(onNode); err != nil { // on another goroutine, so guarded by itself
		return err
	}
	if err := withLink(p.pod.Name, p.inPod); err != nil {
		return err
	}
	failpoint.Hit(failpoint.SandboxLinked)
	return nil
}

func withLink(name string, f func(netlink.Link) error) error {
	link, err := netlinksafe.LinkByName(name)
	if err != nil {
		return fmt.Errorf("interface %s: %w", name, err)
	}
	return f(link)
}

// configure gives a pod's interface the addresses and routes of a result.
func configure(link netlink.Link, r *types100.Result) error {
	return ipam.ConfigureIface(link.Attrs().Name, r)
}

func (l *layer3) setDNS(r *types100.Result) {
	if !l.DNS.IsEmpty() {
		r.DNS = l.DNS
	}
}

// prefixes converts addresses with the masks of their subnets.
func prefixes(addresses []net.IPNet) []netip.Prefix {
	all := make([]netip.Prefix, len(addresses))
	for i, address := range addresses {
		a, _ := netip.AddrFromSlice(address.IP) // it has 4 or 16 bytes
		bits, _ := address.Mask.Size()
		all[i] = netip.PrefixFrom(a.Unmap(), bits)
	}
	return all
}

func addressesOf(r *types100.Result) []net.IPNet {
	var all []net.IPNet
	for _, address := range r.IPs {
		all = append(all, address.Address)
	}
	return all
}

// disconnect takes a pod's addresses off its interface, and then releases them, so that no other pod
// gets an address that is in use. A missing interface or namespace is not an error.
func (p *Plugins) disconnect(ctx context.Context, c call, take func(ifName string) error) error {
	var err error
	if c.netns != "" {
		err = namespaces.Do(c.netns, func() error { return guarded(func() error { return take(c.ifName) }) })
	}
	if err != nil && !errors.Is(err, ip.ErrLinkNotFound) && !errdefs.IsNotFound(err) {
		return err
	}
	failpoint.Hit(failpoint.SandboxUnlinked)
	if err := p.masquerade.Remove(c.owner()); err != nil {
		return err
	}
	return c.release(ctx)
}

// removeAddresses removes the addresses at once, and the interface in the background, for which the
// kernel needs some 20 ms. The socket keeps the namespace until then.
func removeAddresses(ifName string) error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	link, err := h.LinkByName(ifName)
	if err != nil {
		h.Close()
		if _, missing := errors.AsType[netlink.LinkNotFoundError](err); missing {
			return ip.ErrLinkNotFound
		}
		return err
	}
	defer func() {
		go func() {
			defer h.Close()
			_ = h.LinkDel(link) // else it goes with its namespace
		}()
	}()
	addresses, err := h.AddrList(link, netlink.FAMILY_ALL)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return fmt.Errorf("addresses of %s: %w", ifName, err)
	}
	for _, a := range addresses {
		// The kernel removes the secondary addresses of a subnet with the first one.
		if err := h.AddrDel(link, &a); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return fmt.Errorf("remove the address %s of %s: %w", a.IPNet, ifName, err)
		}
	}
	return nil
}
