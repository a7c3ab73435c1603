package standard

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/pkg/ip"
	"github.com/vishvananda/netlink"
)

// ptpConf is the configuration of the ptp plugin.
// https://www.cni.dev/plugins/current/main/ptp/
type ptpConf struct {
	common
	layer3
}

// addPTP connects a pod by a pair without a bridge. All traffic of the pod, also to its own subnet,
// goes through the gateway, which is the node's end.
func (p *Plugins) addPTP(ctx context.Context, c call) (types.Result, error) {
	var conf ptpConf
	if err := decode(c.config, &conf); err != nil {
		return nil, err
	}
	r, err := c.allocate(ctx)
	if err != nil {
		return nil, err
	}
	if err := ip.EnableForward(r.IPs); err != nil {
		return nil, fmt.Errorf("enable forwarding: %w", err)
	}
	host, pod := &types100.Interface{}, &types100.Interface{Name: c.ifName, Sandbox: c.netns}
	r.Interfaces = []*types100.Interface{host, pod}
	for _, address := range r.IPs {
		address.Interface = types100.Int(1)
	}
	if err := (pair{
		mtu: conf.MTU, host: host, pod: pod,
		onHost: func(link netlink.Link) error { return serveAsGateway(link, r) },
		inPod:  func(link netlink.Link) error { return routeThroughGateway(link, r) },
	}).create(); err != nil {
		return nil, err
	}
	if conf.IPMasq {
		if err := p.masquerade.Add(c.owner(), prefixes(addressesOf(r))); err != nil {
			return nil, err
		}
	}
	conf.setDNS(r)
	return r.GetAsVersion(conf.CNIVersion)
}

func (p *Plugins) delPTP(ctx context.Context, c call) error {
	return p.disconnect(ctx, c, ip.DelLinkByName)
}

// alone returns an address as a network of its own.
func alone(a net.IP) *net.IPNet {
	bits := 8 * net.IPv6len
	if isV4(a) {
		bits = 8 * net.IPv4len
	}
	return &net.IPNet{IP: a, Mask: net.CIDRMask(bits, bits)}
}

// routeThroughGateway replaces the kernel's routes to the subnets of the pod.
func routeThroughGateway(link netlink.Link, r *types100.Result) error {
	if err := configure(link, r); err != nil {
		return err
	}
	index := link.Attrs().Index
	for _, a := range r.IPs {
		subnet := &net.IPNet{IP: a.Address.IP.Mask(a.Address.Mask), Mask: a.Address.Mask}
		if err := netlink.RouteDel(&netlink.Route{LinkIndex: index, Dst: subnet, Scope: netlink.SCOPE_NOWHERE}); err != nil {
			return fmt.Errorf("remove the route to %s: %w", subnet, err)
		}
		for _, route := range []*netlink.Route{
			{LinkIndex: index, Dst: alone(a.Gateway), Scope: netlink.SCOPE_LINK, Src: a.Address.IP},
			{LinkIndex: index, Dst: subnet, Scope: netlink.SCOPE_UNIVERSE, Gw: a.Gateway, Src: a.Address.IP},
		} {
			if err := netlink.RouteAdd(route); err != nil {
				return fmt.Errorf("add the route to %s: %w", route.Dst, err)
			}
		}
	}
	return nil
}

// serveAsGateway gives the node's end the addresses of the gateways, and routes to the pod.
func serveAsGateway(link netlink.Link, r *types100.Result) error {
	for _, a := range r.IPs {
		if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: alone(a.Gateway)}); err != nil {
			return fmt.Errorf("add the address %s to %s: %w", a.Gateway, link.Attrs().Name, err)
		}
		if err := ip.AddHostRoute(alone(a.Address.IP), nil, link); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("add the route to %s: %w", a.Address.IP, err)
		}
	}
	return nil
}
