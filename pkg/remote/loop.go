package remote

import (
	"context"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// LoopGuard are options of a server that refuses calls which this run of berth
// has made itself: a daemon that is a backend of its own, be it through others,
// would ask itself without end.
func LoopGuard(instance string) []grpc.ServerOption {
	check := func(ctx context.Context) error {
		if slices.Contains(metadata.ValueFromIncomingContext(ctx, viaKey), instance) {
			return status.Error(codes.FailedPrecondition,
				"this call was made by the very daemon that it has come to; let no handler's endpoint lead back to the berth that has it")
		}
		return nil
	}
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, serve grpc.UnaryHandler) (any, error) {
			if err := check(ctx); err != nil {
				return nil, err
			}
			return serve(ctx, req)
		}),
		grpc.ChainStreamInterceptor(func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, serve grpc.StreamHandler) error {
			if err := check(stream.Context()); err != nil {
				return err
			}
			return serve(srv, stream)
		}),
	}
}
