package standard

import (
	"context"
	"encoding/json"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"

	"github.com/berth-cri/berth/pkg/engine/namespaces"
)

// addLoopback returns the result of the plugin before it, or the addresses of lo, which is up in
// every namespace of package namespaces.
func (p *Plugins) addLoopback(_ context.Context, c call) (types.Result, error) {
	var conf common
	if err := json.Unmarshal(c.config, &conf); err != nil || len(conf.PrevResult) > 0 {
		return pass(c)
	}
	r := &types100.Result{
		CNIVersion: types100.ImplementedSpecVersion,
		Interfaces: []*types100.Interface{{Name: "lo", Mac: "00:00:00:00:00:00", Sandbox: c.netns}},
	}
	read := func(lo netlink.Link) error {
		for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			addresses, err := netlinksafe.AddrList(lo, family)
			if err != nil {
				return err
			}
			if len(addresses) > 0 {
				r.IPs = append(r.IPs, &types100.IPConfig{Interface: types100.Int(0), Address: *addresses[0].IPNet})
			}
		}
		return nil
	}
	if err := namespaces.Do(c.netns, func() error { return guarded(func() error { return withLink("lo", read) }) }); err != nil {
		return nil, err
	}
	return r.GetAsVersion(conf.CNIVersion)
}

// delLoopback leaves lo to the end of the namespace.
func (p *Plugins) delLoopback(context.Context, call) error { return nil }
