package remote

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// execs passes on what goes into containers and pods. The addresses that it
// answers with are the daemon's own: streams do not go through this berth.
type execs struct{ *caller }

func (e execs) ExecSync(ctx context.Context, req *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
	return pass[runtimeapi.ExecSyncResponse](ctx, e.caller, runtimeapi.RuntimeService_ExecSync_FullMethodName, req)
}

func (e execs) Exec(ctx context.Context, req *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	return pass[runtimeapi.ExecResponse](ctx, e.caller, runtimeapi.RuntimeService_Exec_FullMethodName, req)
}

func (e execs) Attach(ctx context.Context, req *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	return pass[runtimeapi.AttachResponse](ctx, e.caller, runtimeapi.RuntimeService_Attach_FullMethodName, req)
}

func (e execs) PortForward(ctx context.Context, req *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error) {
	return pass[runtimeapi.PortForwardResponse](ctx, e.caller, runtimeapi.RuntimeService_PortForward_FullMethodName, req)
}
