package session

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/namespaces"
)

// newNetwork returns the path of a network namespace that exists until the test ends.
func newNetwork(t *testing.T) (path string) {
	t.Helper()
	made, over := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		path = fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), unix.Gettid())
		made <- unix.Unshare(unix.CLONE_NEWNET)
		<-over
	}()
	test.Must(t, <-made)
	t.Cleanup(func() { close(over) })
	return path
}

// inNetwork runs f in the network namespace at path.
func inNetwork(t *testing.T, path string, f func() error) {
	t.Helper()
	test.Must(t, namespaces.Do(path, f))
}

// cable connects two namespaces with a pair of interfaces, and sets these up.
func cable(t *testing.T, from, name, to, peer string) {
	t.Helper()
	there := test.Value(os.Open(to))(t)
	defer there.Close()
	inNetwork(t, from, func() error {
		veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: peer, PeerNamespace: netlink.NsFd(there.Fd())} //nolint:gosec // a descriptor
		return errors.Join(netlink.LinkAdd(veth), up(name), up("lo"))
	})
	inNetwork(t, to, func() error { return errors.Join(up(peer), up("lo")) })
}

func up(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(link)
}

// addressed gives an interface addresses that can be used at once.
func addressed(t *testing.T, ns, name string, addresses ...string) {
	t.Helper()
	inNetwork(t, ns, func() error {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		for _, a := range addresses {
			addr, err := netlink.ParseAddr(a)
			if err != nil {
				return err
			}
			addr.Flags = unix.IFA_F_NODAD
			if err := netlink.AddrAdd(link, addr); err != nil {
				return err
			}
		}
		return nil
	})
}

// TestDialAMachine reaches a workload that is connected to the pod's network namespace
// (inner) by a cable, as a virtual machine is. The namespace has a loopback interface, but
// nothing listens there.
func TestDialAMachine(t *testing.T) {
	node, inner, machine := newNetwork(t), newNetwork(t), newNetwork(t)
	cable(t, node, "cni0", inner, "eth0")
	cable(t, inner, "tap0", machine, "eth0")
	inNetwork(t, inner, func() error {
		bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}
		err := errors.Join(netlink.LinkAdd(bridge), up("br0"))
		for _, name := range []string{"eth0", "tap0"} {
			link, lerr := netlink.LinkByName(name)
			if lerr != nil {
				return lerr
			}
			err = errors.Join(err, netlink.LinkSetMaster(link, bridge))
		}
		return err
	})
	addressed(t, node, "cni0", "10.99.0.1/24", "fd99::1/64")
	addressed(t, machine, "eth0", "10.99.0.2/24", "fd99::2/64")

	for _, ip := range []string{"10.99.0.2", "fd99::2"} {
		ways := waysTo(true, inner, []string{"10.99.0.2", "fd99::2"})
		for i := range ways {
			if ways[i].netns == "" {
				ways[i].netns = node
			}
		}
		var l net.Listener
		inNetwork(t, machine, func() (err error) {
			l, err = net.Listen("tcp", net.JoinHostPort(ip, "0"))
			return err
		})
		port := l.Addr().(*net.TCPAddr).Port
		go func() {
			if c, err := l.Accept(); err == nil {
				_, _ = io.WriteString(c, "machine")
				_ = c.Close()
			}
		}()
		conn, err := dialPod(t.Context(), ways, port)
		test.Mustf(t, err, "%s", ip)
		test.Equal(t, ip, string(test.Value(io.ReadAll(conn))(t)), "machine")
		test.Check(t, errors.Join(conn.Close(), l.Close()))
		var refused *refusedError
		if _, err := dialPod(t.Context(), ways, port); !errors.As(err, &refused) || !strings.Contains(refused.where(), "10.99.0.2 or fd99::2") {
			t.Errorf("dial without a listener: %v", err)
		}
	}
}
