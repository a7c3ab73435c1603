package main

import (
	"context"
	"net"
	"path"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// relayAll passes unary calls on, and reads nothing of them: the least that a
// program on gRPC's library can do between a client and a daemon.
func relayAll(from, to string) error {
	const window = 1 << 20 // one that is given is not measured, which costs pings
	conn, err := grpc.NewClient("unix://"+to,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(), grpc.WithIdleTimeout(0),
		grpc.WithInitialWindowSize(window), grpc.WithInitialConnWindowSize(window),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(unread{}), grpc.MaxCallRecvMsgSize(maxList)))
	if err != nil {
		return err
	}
	l, err := net.Listen("unix", from)
	if err != nil {
		return err
	}
	s := grpc.NewServer(grpc.ForceServerCodecV2(unread{}), grpc.NumStreamWorkers(8), grpc.InitialWindowSize(window), grpc.InitialConnWindowSize(window))
	service := grpc.ServiceDesc{ServiceName: runtimeapi.RuntimeService_ServiceDesc.ServiceName, HandlerType: (*any)(nil)}
	for _, method := range []string{runtimeapi.RuntimeService_ContainerStatus_FullMethodName, runtimeapi.RuntimeService_ListContainers_FullMethodName} {
		service.Methods = append(service.Methods, grpc.MethodDesc{
			MethodName: path.Base(method),
			Handler: func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
				var req, resp mem.BufferSlice
				if err := decode(&req); err != nil {
					return nil, err
				}
				if err := conn.Invoke(ctx, method, &req, &resp); err != nil {
					return nil, err
				}
				return &resp, nil
			},
		})
	}
	s.RegisterService(&service, nil)
	return s.Serve(l)
}

// unread has messages as they are sent.
type unread struct{}

func (unread) Name() string { return "proto" }

func (unread) Marshal(v any) (mem.BufferSlice, error) { return *v.(*mem.BufferSlice), nil }

func (unread) Unmarshal(b mem.BufferSlice, v any) error {
	b.Ref()
	*v.(*mem.BufferSlice) = b
	return nil
}
