package network

import (
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/namespaces"
)

// InterfaceStats contains the traffic counters of one interface since its creation.
type InterfaceStats struct {
	Name                                    string
	RxBytes, RxPackets, RxErrors, RxDropped uint64
	TxBytes, TxPackets, TxErrors, TxDropped uint64
}

// dumpTries is how often a list is read if it changes during the read.
const dumpTries = 5

// Stats reads the counters of all interfaces in a network namespace except lo, by one netlink dump
// and without a process. The default interface, eth0, is the first if it exists. A namespace that
// is gone is errdefs.ErrNotFound.
func Stats(nsPath string) ([]InterfaceStats, error) {
	var links []netlink.Link
	err := namespaces.Do(nsPath, func() error {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer h.Close()
		// The kernel marks the list as inconsistent if an interface came or went meanwhile.
		for range dumpTries {
			if links, err = h.LinkList(); !errors.Is(err, netlink.ErrDumpInterrupted) {
				break
			}
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("network statistics: %w", err)
	}
	return interfaceStats(links), nil
}

func interfaceStats(links []netlink.Link) []InterfaceStats {
	out := make([]InterfaceStats, 0, len(links))
	for _, link := range links {
		attrs := link.Attrs()
		if attrs.RawFlags&unix.IFF_LOOPBACK != 0 || attrs.Statistics == nil {
			continue
		}
		s := attrs.Statistics
		counted := InterfaceStats{
			Name:    attrs.Name,
			RxBytes: s.RxBytes, RxPackets: s.RxPackets, RxErrors: s.RxErrors, RxDropped: s.RxDropped,
			TxBytes: s.TxBytes, TxPackets: s.TxPackets, TxErrors: s.TxErrors, TxDropped: s.TxDropped,
		}
		if attrs.Name == defaultInterface {
			out = slices.Insert(out, 0, counted)
		} else {
			out = append(out, counted)
		}
	}
	return out
}
