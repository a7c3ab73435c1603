package router

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// execs routes what runs in, or talks to, containers that exist.
type execs struct {
	owners *owners
}

func (e execs) ExecSync(ctx context.Context, req *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
	return byContainer(ctx, e.owners, req, Backend.ExecSync)
}

func (e execs) Exec(ctx context.Context, req *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	return byContainer(ctx, e.owners, req, Backend.Exec)
}

func (e execs) Attach(ctx context.Context, req *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	return byContainer(ctx, e.owners, req, Backend.Attach)
}

func (e execs) PortForward(ctx context.Context, req *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error) {
	return bySandbox(ctx, e.owners, req, Backend.PortForward)
}
