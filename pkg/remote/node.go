package remote

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// node passes on calls about the node as a whole.
type node struct {
	*caller
	names *names
	// redial connects at once, instead of after gRPC's backoff.
	redial func()

	mu sync.Mutex
	// settings is the last request of UpdateRuntimeConfig. It is repeated when the daemon is back,
	// because a restarted daemon has lost it.
	settings *runtimeapi.UpdateRuntimeConfigRequest
	// status is the last answer of the daemon, nil before the first.
	status *runtimeapi.StatusResponse
	// version and driver are from the initialization of the connection.
	version *runtimeapi.VersionResponse
	driver  runtimeapi.CgroupDriver
	// behind are the instances of berth behind the daemon's socket, as the daemon reported them.
	behind        []string
	driverUnknown bool
}

func (n *node) Version(ctx context.Context, req *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return pass[runtimeapi.VersionResponse](ctx, n.caller, runtimeapi.RuntimeService_Version_FullMethodName, req)
}

func (n *node) RuntimeConfig(ctx context.Context, req *runtimeapi.RuntimeConfigRequest) (*runtimeapi.RuntimeConfigResponse, error) {
	return read[runtimeapi.RuntimeConfigResponse](ctx, n.caller, runtimeapi.RuntimeService_RuntimeConfig_FullMethodName, req)
}

// UpdateRuntimeConfig updates the daemon, now or when it answers again.
func (n *node) UpdateRuntimeConfig(ctx context.Context, req *runtimeapi.UpdateRuntimeConfigRequest) (*runtimeapi.UpdateRuntimeConfigResponse, error) {
	n.mu.Lock()
	n.settings = proto.CloneOf(req)
	n.mu.Unlock()
	resp, err := pass[runtimeapi.UpdateRuntimeConfigResponse](ctx, n.caller, runtimeapi.RuntimeService_UpdateRuntimeConfig_FullMethodName, req)
	if unresponsive(ctx, err) || status.Code(err) == codes.Unimplemented {
		return &runtimeapi.UpdateRuntimeConfigResponse{}, nil
	}
	return resp, err
}

// replay sends the last settings again.
func (n *node) replay(ctx context.Context) error {
	n.mu.Lock()
	settings := n.settings
	n.mu.Unlock()
	if settings == nil {
		return nil
	}
	_, err := pass[runtimeapi.UpdateRuntimeConfigResponse](ctx, n.caller, runtimeapi.RuntimeService_UpdateRuntimeConfig_FullMethodName, settings)
	if status.Code(err) == codes.Unimplemented {
		return nil
	}
	return err
}

// initialize fetches what does not change while the daemon runs.
func (n *node) initialize(ctx context.Context) error {
	version, err := read[runtimeapi.VersionResponse](ctx, n.caller, runtimeapi.RuntimeService_Version_FullMethodName, &runtimeapi.VersionRequest{})
	if err != nil {
		return err
	}
	config, err := read[runtimeapi.RuntimeConfigResponse](ctx, n.caller, runtimeapi.RuntimeService_RuntimeConfig_FullMethodName, &runtimeapi.RuntimeConfigRequest{})
	if err != nil && status.Code(err) != codes.Unimplemented {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.version, n.driver = version, config.GetLinux().GetCgroupDriver()
	n.driverUnknown = config.GetLinux() == nil
	return nil
}

// Status returns the daemon's status, with this berth's names of its handlers. If the daemon does
// not answer in time, Status returns its last answer, so that the features do not change meanwhile.
func (n *node) Status(ctx context.Context, req *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	wait, cancel := context.WithTimeout(ctx, timeoutWithin(ctx, checkTimeout))
	defer cancel()
	n.mu.Lock()
	last := n.status
	n.mu.Unlock()
	if last != nil && n.monitor.current().Phase == Lagging {
		cancel()
	}
	resp, err := read[runtimeapi.StatusResponse](wait, n.caller, runtimeapi.RuntimeService_Status_FullMethodName, req)
	switch {
	case err != nil && last != nil && wait.Err() != nil && ctx.Err() == nil && n.monitor.current().Answers():
		resp = proto.CloneOf(last)
	case err != nil:
		return nil, err
	}
	resp.RuntimeHandlers = n.handlers(resp.GetRuntimeHandlers())
	return resp, nil
}

// handlers returns this berth's handlers with the daemon's features for them.
func (n *node) handlers(theirs []*runtimeapi.RuntimeHandler) []*runtimeapi.RuntimeHandler {
	var all []*runtimeapi.RuntimeHandler
	for _, our := range n.names.current.Load().handlers {
		for _, h := range theirs {
			if h.GetName() == our.Remote {
				h = proto.CloneOf(h)
				h.Name = our.Name
				all = append(all, h)
			}
		}
	}
	return all
}

// ask is the monitor's check of the daemon and its runtime, also while the daemon counts as down.
func (n *node) ask(ctx context.Context) observation {
	if !n.monitor.current().Answers() {
		n.redial()
	}
	resp := &runtimeapi.StatusResponse{}
	var header metadata.MD
	err := n.conn.Invoke(n.outgoing(ctx), runtimeapi.RuntimeService_Status_FullMethodName, &runtimeapi.StatusRequest{}, resp, grpc.Header(&header))
	n.mu.Lock()
	n.behind = header.Get(behindKey)
	n.mu.Unlock()
	if err != nil {
		return observationOf(err, ctx.Err() != nil)
	}
	if slices.Contains(header.Get(behindKey), n.via) {
		return observation{lost: leadsBack}
	}
	n.mu.Lock()
	n.status = resp
	n.mu.Unlock()
	return observation{unready: unready(resp)}
}

// observationOf classifies the error of a check. Pure.
func observationOf(err error, late bool) observation {
	switch code := status.Code(err); {
	case late, code == codes.DeadlineExceeded:
		return observation{late: fmt.Sprintf("no response within %v", checkTimeout)}
	case code == codes.Unimplemented:
		return observation{lost: "it is not a CRI daemon, or does not support version v1 of the CRI"}
	case code == codes.Unavailable, code == codes.FailedPrecondition, code == codes.PermissionDenied:
		return observation{lost: lostReason(reason(err))}
	}
	return observation{unready: "it responds with an error: " + reason(err)}
}

// lostReason returns why there is no connection. It replaces gRPC's text if the socket accepts
// connections but sends nothing, or another protocol. Pure.
func lostReason(why string) string {
	if strings.HasPrefix(why, "connection error:") && strings.Contains(why, "preface") {
		return "the process that accepts connections does not speak gRPC: it is not a CRI daemon, or is stopped"
	}
	return why
}

// unready returns why the daemon's runtime is not ready, empty if it is. NetworkReady is ignored:
// it affects the daemon's pods, and is no reason to avoid the daemon. Pure.
func unready(resp *runtimeapi.StatusResponse) string {
	for _, c := range resp.GetStatus().GetConditions() {
		if c.GetType() == runtimeapi.RuntimeReady && !c.GetStatus() {
			return strings.TrimSpace(fmt.Sprintf("its runtime is not ready: %s %s", c.GetReason(), c.GetMessage()))
		}
	}
	return ""
}
