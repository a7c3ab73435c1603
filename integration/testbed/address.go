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
	Mustf(t, err, "parse %s", subnet)
	address.IP[len(address.IP)-1] = 1
	// A bridge, for every host with a CNI network has those.
	attributes := netlink.NewLinkAttrs()
	attributes.Name = fmt.Sprintf("bh%d-%d", os.Getpid(), networks.Add(1))
	link := &netlink.Bridge{LinkAttrs: attributes}
	Mustf(t, netlink.LinkAdd(link), "make link %s", attributes.Name)
	t.Cleanup(func() {
		Checkf(t, netlink.LinkDel(link), "remove link %s", attributes.Name)
	})
	Mustf(t, netlink.AddrAdd(link, address), "give %s to link %s", address, attributes.Name)
	Mustf(t, netlink.LinkSetUp(link), "set link %s up", attributes.Name)
	return address.IP
}
