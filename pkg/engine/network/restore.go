package network

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path/filepath"

	"github.com/containerd/log"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/namespaces"
)

// restoreAddresses gives a pod's interface the addresses back that ADD put on it.
// The bridge and ptp plugins learn there, and nowhere else, which masquerading
// rules a DEL has to remove, and two things take that away:
//
//   - runtimes with a network stack of their own (gVisor) take the addresses off
//     the interface;
//   - a DEL that was killed can have removed the interface and not yet the rules,
//     or the namespace is a substitute. A new interface takes its place then, for
//     the next DEL to remove. replaced tells of it.
func (p *Plugins) restoreAddresses(pod Pod, a *Attachment, nsPath string) (replaced bool, err error) {
	masquerades, err := a.masquerades()
	if err != nil || !masquerades {
		return false, err
	}
	addresses, err := p.addresses(pod, a)
	if err != nil || len(addresses) == 0 {
		return false, err
	}
	err = namespaces.Do(nsPath, func() error {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return fmt.Errorf("open a netlink socket: %w", err)
		}
		defer h.Close()
		var link netlink.Link
		if link, replaced, err = standIn(h, a.Interface); err != nil {
			return err
		}
		for _, address := range addresses {
			// Nobody will send from it: there is no duplicate to look for.
			err := h.AddrAdd(link, &netlink.Addr{IPNet: &address, Flags: unix.IFA_F_NODAD})
			if err != nil && !errors.Is(err, unix.EEXIST) {
				return fmt.Errorf("put %s on %s: %w", &address, a.Interface, err)
			}
		}
		return nil
	})
	return replaced, err
}

// substitute is a namespace for the DEL of a pod that has lost its own, because
// somebody unmounted it: plugins that are told of none leave their masquerading rules
// to whoever gets the address next. It is "" if there are no such rules.
func (p *Plugins) substitute(ctx context.Context, pod Pod, a *Attachment) (path string, release func(), err error) {
	release = func() {}
	masquerades, err := a.masquerades()
	if err != nil || !masquerades {
		return "", release, err
	}
	if addresses, err := p.addresses(pod, a); err != nil || len(addresses) == 0 {
		return "", release, err
	}
	dir := filepath.Join(p.config.CacheDir, "substitutes", pod.ID)
	if err := namespaces.Release(dir); err != nil { // that of a daemon that was killed
		return "", release, err
	}
	ns, err := namespaces.Create(ctx, namespaces.Request{Dir: dir, Net: true})
	if err != nil {
		return "", release, err
	}
	return ns.Net, func() {
		if err := namespaces.Release(dir); err != nil {
			log.G(ctx).WithError(err).WithField("sandbox", pod.ID).Warn("Failed to release network namespace; the next start will retry")
		}
	}, nil
}

// standIn is the interface of that name, or a new one if there is none: a pair of
// interfaces, which these plugins make too, so that the kernel can. It goes with
// its first end.
func standIn(h *netlink.Handle, name string) (link netlink.Link, replaced bool, err error) {
	link, err = h.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		if err := h.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "berth-peer"}); err != nil {
			return nil, false, fmt.Errorf("replace missing %s: %w", name, err)
		}
		replaced = true
		link, err = h.LinkByName(name)
	}
	if err != nil {
		return nil, replaced, fmt.Errorf("find %s: %w", name, err)
	}
	return link, replaced, nil
}

// masquerades reports whether a plugin of the network made rules for the
// addresses of the pod. Others are given no interface: host-device would move it
// to the host.
func (a *Attachment) masquerades() (bool, error) {
	list, err := a.list()
	if err != nil {
		return false, err
	}
	for _, plugin := range list.Plugins {
		var config struct {
			IPMasq bool `json:"ipMasq"`
		}
		// What is no boolean there is none that these plugins know.
		if err := json.Unmarshal(plugin.Bytes, &config); err == nil && config.IPMasq {
			return true, nil
		}
	}
	return false, nil
}

// addresses are those that ADD put on the attachment's interface. There are none
// if ADD had not completed.
func (p *Plugins) addresses(pod Pod, a *Attachment) ([]net.IPNet, error) {
	raw, err := p.result(pod, a)
	if err != nil {
		return nil, fmt.Errorf("stored result of network %q: %w", a.Network, err)
	}
	if raw == nil {
		return nil, nil
	}
	result, err := types100.NewResultFromResult(raw)
	if err != nil {
		return nil, fmt.Errorf("stored result of network %q: %w", a.Network, err)
	}
	var addresses []net.IPNet
	for _, ip := range result.IPs {
		if onInterface(result, ip.Interface, a.Interface) {
			addresses = append(addresses, ip.Address)
		}
	}
	return addresses, nil
}

// result is what ADD answered, from the record of the pod or, for a pod that has
// none, from libcni's cache; nil if it is in neither.
func (p *Plugins) result(pod Pod, a *Attachment) (types.Result, error) {
	if len(a.Result) > 0 {
		return create.CreateFromBytes(a.Result)
	}
	list, err := a.list()
	if err != nil {
		return nil, err
	}
	return p.cni.GetNetworkListCachedResult(list, a.runtimeConf(pod.ID, ""))
}
