package remote

import (
	"context"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// maxBehind is how many of them are told. Nobody has as many on one node.
const maxBehind = 64

// LoopGuard are options of a server that refuses calls which this run of berth
// has made itself: a daemon that is a backend of its own, be it through others,
// would ask itself without end. It tells other berths who is behind it, so that
// each of a circle knows.
func LoopGuard(instance string, behind func() []string) []grpc.ServerOption {
	check := func(ctx context.Context) error {
		if slices.Contains(metadata.ValueFromIncomingContext(ctx, viaKey), instance) {
			return status.Error(codes.FailedPrecondition,
				"this call was made by the daemon that received it; change the handler endpoint that leads back to it")
		}
		return nil
	}
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, serve grpc.UnaryHandler) (any, error) {
			if err := check(ctx); err != nil {
				return nil, err
			}
			if info.FullMethod == runtimeapi.RuntimeService_Status_FullMethodName && len(metadata.ValueFromIncomingContext(ctx, viaKey)) > 0 {
				if err := grpc.SetHeader(ctx, metadata.MD{behindKey: append([]string{instance}, behind()...)}); err != nil {
					return nil, err
				}
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

// Behind are the runs of berth that handlers lead to, as far as they said so.
func (p *Pool) Behind() []string {
	var all []string
	for _, b := range p.All() {
		all = append(all, b.node.leadsTo()...)
	}
	slices.Sort(all)
	all = slices.Compact(all)
	return all[:min(len(all), maxBehind)]
}

// leadsTo are the runs of berth behind the daemon.
func (n *node) leadsTo() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.behind
}
