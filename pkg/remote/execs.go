package remote

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// execs passes on calls that run a process in a container or connect to a pod. Streams do not pass
// through this berth: clients get the daemon's URLs, if streamHosts permits them.
type execs struct {
	*caller
	hosts streamHosts
}

func (e execs) ExecSync(ctx context.Context, req *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
	return pass[runtimeapi.ExecSyncResponse](ctx, e.caller, runtimeapi.RuntimeService_ExecSync_FullMethodName, req)
}

func (e execs) Exec(ctx context.Context, req *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	resp, err := read[runtimeapi.ExecResponse](ctx, e.caller, runtimeapi.RuntimeService_Exec_FullMethodName, req)
	return permitted(e, resp, err)
}

func (e execs) Attach(ctx context.Context, req *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	resp, err := read[runtimeapi.AttachResponse](ctx, e.caller, runtimeapi.RuntimeService_Attach_FullMethodName, req)
	return permitted(e, resp, err)
}

func (e execs) PortForward(ctx context.Context, req *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error) {
	resp, err := read[runtimeapi.PortForwardResponse](ctx, e.caller, runtimeapi.RuntimeService_PortForward_FullMethodName, req)
	return permitted(e, resp, err)
}

// permitted returns resp, or an error if clients must not connect to its URL.
func permitted[R interface{ GetUrl() string }](e execs, resp R, err error) (R, error) {
	if err == nil {
		if why := e.hosts.check(resp.GetUrl()); why != nil {
			var none R
			return none, status.Errorf(codes.FailedPrecondition, "%s: %v", e.name, why)
		}
	}
	return resp, err
}

// streamHosts are the hosts that URLs of exec, attach and port-forward may name. The kubelet would
// connect to any URL, and send its client's headers there.
type streamHosts struct {
	// permitted are the additional hosts of the configuration.
	permitted []string
	// own are the node's addresses.
	own func() ([]net.Addr, error)
}

// check returns why clients must not connect to a URL from a daemon, or nil.
func (s streamHosts) check(address string) error {
	u, err := url.Parse(address)
	switch {
	case err != nil, u.Host == "", u.Scheme != "http" && u.Scheme != "https":
		return fmt.Errorf("the address of its streaming server, %q, is not an http or https URL", address)
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
