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

// execs passes on what goes into containers and pods. The addresses that it
// answers with are the daemon's own: streams do not go through this berth. Only
// those of this node are passed on.
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

// permitted is an answer whose address may be connected to.
func permitted[R interface{ GetUrl() string }](e execs, resp R, err error) (R, error) {
	if err == nil {
		if why := e.hosts.check(resp.GetUrl()); why != nil {
			var none R
			return none, status.Errorf(codes.FailedPrecondition, "%s: %v", e.name, why)
		}
	}
	return resp, err
}

// streamHosts are the hosts that URLs of exec, attach and port-forward may name. The
// kubelet connects to any URL, and passes on its client's headers there.
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
