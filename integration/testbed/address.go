package testbed

import (
	"fmt"
	"net"
	"os"

	"github.com/vishvananda/netlink"
)

// NewAddress gives this host one more address, on a link of its own, for what
// refuses to serve on loopback. Pods reach it too. A cleanup takes it away.
func NewAddress(t T) net.IP {
	t.Helper()
	NeedRoot(t)
	subnet, err := freeSubnet()
	if err != nil {
		t.Fatalf("%v", err)
	}
	address, err := netlink.ParseAddr(subnet)
	if err != nil {
		t.Fatalf("parse %s: %v", subnet, err)
	}
	address.IP[len(address.IP)-1] = 1
	// A bridge, for every host with a CNI network has those.
	attributes := netlink.NewLinkAttrs()
	attributes.Name = fmt.Sprintf("bh%d-%d", os.Getpid(), networks.Add(1))
	link := &netlink.Bridge{LinkAttrs: attributes}
	if err := netlink.LinkAdd(link); err != nil {
		t.Fatalf("make link %s: %v", attributes.Name, err)
	}
	t.Cleanup(func() {
		if err := netlink.LinkDel(link); err != nil {
			t.Errorf("remove link %s: %v", attributes.Name, err)
		}
	})
	if err := netlink.AddrAdd(link, address); err != nil {
		t.Fatalf("give %s to link %s: %v", address, attributes.Name, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		t.Fatalf("set link %s up: %v", attributes.Name, err)
	}
	return address.IP
}
