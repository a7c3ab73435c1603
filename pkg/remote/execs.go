package remote

import (
	"context"

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
