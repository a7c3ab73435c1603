package main

import (
	"errors"
	"fmt"
	"runtime"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// tapName is the machine's interface in the pod's network namespace.
const tapName = "tap0_kata"

// networkOf returns the path of the network namespace in a spec, or nil.
func networkOf(spec *specs.Spec) (path *string) {
	i := slices.IndexFunc(spec.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == specs.NetworkNamespace })
	if i < 0 {
		return nil
	}
	return &spec.Linux.Namespaces[i].Path
}

// connect gives the machine an interface with the addresses of the pod. Traffic control redirects
// all packets between eth0 in the pod's network namespace and the machine:
// virtcontainers/network_linux.go, setupTCFiltering. As with Kata, eth0 keeps the addresses.
func connect(path string, machine int) error {
	if path == "" {
		return errors.New("the pod has no network")
	}
	var addresses []netlink.Addr
	var routes []netlink.Route
	err := inNetwork(path, func() error {
		eth, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		if addresses, err = netlink.AddrList(eth, netlink.FAMILY_ALL); err != nil {
			return err
		}
		if routes, err = netlink.RouteList(eth, netlink.FAMILY_ALL); err != nil {
			return err
		}
		veth := &netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: tapName, MTU: eth.Attrs().MTU},
			PeerName:  "eth0", PeerHardwareAddr: eth.Attrs().HardwareAddr, PeerNamespace: netlink.NsPid(machine),
		}
		if err := netlink.LinkAdd(veth); err != nil {
			return err
		}
		tap, err := netlink.LinkByName(tapName)
		if err != nil {
			return err
		}
		return errors.Join(netlink.LinkSetUp(tap), redirect(eth, tap), redirect(tap, eth))
	})
	if err != nil {
		return fmt.Errorf("the pod's end of the network: %w", err)
	}
	err = inNetwork(fmt.Sprintf("/proc/%d/ns/net", machine), func() error { return address(addresses, routes) })
	if err != nil {
		return fmt.Errorf("the machine's end of the network: %w", err)
	}
	return nil
}

// redirect sends the packets that arrive at one interface to another.
func redirect(from, to netlink.Link) error {
	ingress := &netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: from.Attrs().Index, Parent: netlink.HANDLE_INGRESS}}
	filter := &netlink.U32{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: from.Attrs().Index, Parent: netlink.MakeHandle(0xffff, 0), Protocol: unix.ETH_P_ALL},
		Actions: []netlink.Action{&netlink.MirredAction{
			ActionAttrs: netlink.ActionAttrs{Action: netlink.TC_ACT_STOLEN}, MirredAction: netlink.TCA_EGRESS_REDIR, Ifindex: to.Attrs().Index,
		}},
	}
	return errors.Join(netlink.QdiscAdd(ingress), netlink.FilterAdd(filter))
}

// address adds the pod's addresses and routes to this network namespace.
func address(addresses []netlink.Addr, routes []netlink.Route) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	eth, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	if err := errors.Join(netlink.LinkSetUp(lo), netlink.LinkSetUp(eth)); err != nil {
		return err
	}
	for _, a := range addresses {
		if a.IP.IsLinkLocalUnicast() {
			continue
		}
		own := &netlink.Addr{IPNet: a.IPNet, Flags: unix.IFA_F_NODAD}
		if err := netlink.AddrAdd(eth, own); err != nil {
			return err
		}
	}
	for _, r := range routes {
		if r.Gw == nil {
			continue // the kernel adds it with the addresses
		}
		if err := netlink.RouteAdd(&netlink.Route{LinkIndex: eth.Attrs().Index, Dst: r.Dst, Gw: r.Gw}); err != nil {
			return err
		}
	}
	return nil
}

// inNetwork calls f in a network namespace, on a thread that then ends.
func inNetwork(path string, f func() error) error {
	ended := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // without an unlock, so the thread ends with the goroutine
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			err = unix.Setns(fd, unix.CLONE_NEWNET)
			_ = unix.Close(fd)
		}
		if err == nil {
			err = f()
		}
		ended <- err
	}()
	return <-ended
}
