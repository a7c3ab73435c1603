package remote

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// streamHosts are the hosts that URLs of exec, attach and port-forward may name. The
// kubelet connects to whatever it is told, and passes on what its client sent.
type streamHosts struct {
	// permitted are more than the node's own, as the configuration has them.
	permitted []string
	// own are the node's addresses.
	own func() ([]net.Addr, error)
}

// check says what is wrong with a URL that a daemon has answered with.
func (s streamHosts) check(address string) error {
	u, err := url.Parse(address)
	switch {
	case err != nil, u.Host == "", u.Scheme != "http" && u.Scheme != "https":
		return fmt.Errorf("the address of its streaming server, %q, is not a http or https URL", address)
	case u.User != nil:
		return fmt.Errorf("the address of its streaming server, on %q, has a user", u.Host)
	}
	host := u.Hostname()
	if slices.Contains(s.permitted, host) || strings.EqualFold(host, "localhost") {
		return nil
	}
	ip, err := netip.ParseAddr(host)
	if err == nil && (ip.Unmap().IsLoopback() || ip.IsUnspecified()) {
		return nil
	}
	if err == nil {
		own, err := s.own()
		if err != nil {
			return fmt.Errorf("list the node's addresses: %w", err)
		}
		if isAmong(ip, own) {
			return nil
		}
	}
	return fmt.Errorf("the address of its streaming server, on %q, is not an address of this node; "+
		"set stream_server_address (containerd) or stream_address (CRI-O), or permit it by streaming.permitted_remote_hosts", host)
}

func isAmong(ip netip.Addr, own []net.Addr) bool {
	ip = ip.Unmap().WithZone("")
	return slices.ContainsFunc(own, func(a net.Addr) bool {
		prefix, err := netip.ParsePrefix(a.String())
		return err == nil && prefix.Addr().Unmap().WithZone("") == ip
	})
}
