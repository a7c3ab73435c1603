package network

import (
	"errors"
	"fmt"
	"net"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/pin"
)

// restoreAddresses gives a pod's interface the addresses back that ADD put on it.
// Runtimes with a network stack of their own (gVisor) take them off the
// interface, and the bridge plugin learns there, and nowhere else, which
// masquerading rules a DEL has to remove. An interface that is gone is fine.
func (a *Attachment) restoreAddresses(nsPath string) error {
	addresses, err := a.addresses()
	if err != nil || len(addresses) == 0 {
		return err
	}
	return pin.Do(nsPath, func() error {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return fmt.Errorf("open a netlink socket: %w", err)
		}
		defer h.Close()
		link, err := h.LinkByName(a.Interface)
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("find %s: %w", a.Interface, err)
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
}

// addresses are those that ADD put on the attachment's interface.
func (a *Attachment) addresses() ([]net.IPNet, error) {
	if len(a.Result) == 0 {
		return nil, nil
	}
	raw, err := create.CreateFromBytes(a.Result)
	if err != nil {
		return nil, fmt.Errorf("stored result of network %q: %w", a.Network, err)
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
