package router

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

var errNotReady = status.Error(codes.Unavailable, "berth is still recovering its pods; try again in a moment")

// gate refuses calls until it is open.
type gate struct {
	open atomic.Bool
}

// guard returns a copy of a service whose methods pass the gate. It sits below
// the interceptors, so that refused calls are counted and logged as any other,
// and costs one atomic load once it is open.
func (g *gate) guard(desc *grpc.ServiceDesc) *grpc.ServiceDesc {
	guarded := *desc
	guarded.Methods = make([]grpc.MethodDesc, len(desc.Methods))
	for i, m := range desc.Methods {
		guarded.Methods[i] = g.method(m)
	}
	guarded.Streams = make([]grpc.StreamDesc, len(desc.Streams))
	for i, s := range desc.Streams {
		guarded.Streams[i] = g.stream(s)
	}
	return &guarded
}

func (g *gate) method(m grpc.MethodDesc) grpc.MethodDesc {
	serve := m.Handler
	m.Handler = func(srv any, ctx context.Context, decode func(any) error, next grpc.UnaryServerInterceptor) (any, error) {
		if g.open.Load() {
			return serve(srv, ctx, decode, next)
		}
		return serve(srv, ctx, decode, refuse(next))
	}
	return m
}

// refuse is an interceptor that lets next see a call which fails.
func refuse(next grpc.UnaryServerInterceptor) grpc.UnaryServerInterceptor {
	refused := func(context.Context, any) (any, error) { return nil, errNotReady }
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, _ grpc.UnaryHandler) (any, error) {
		if next == nil {
			return nil, errNotReady
		}
		return next(ctx, req, info, refused)
	}
}

func (g *gate) stream(s grpc.StreamDesc) grpc.StreamDesc {
	serve := s.Handler
	s.Handler = func(srv any, stream grpc.ServerStream) error {
		if !g.open.Load() {
			return errNotReady
		}
		return serve(srv, stream)
	}
	return s
}
