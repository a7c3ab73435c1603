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

// maxBehind bounds the instances that are reported; no node has as many.
const maxBehind = 64

// LoopGuard returns options of a server that refuses calls made by this run of berth itself: a
// berth that is its own backend, directly or through others, would call itself endlessly. In Status
// answers to other berths the server lists the instances behind it, so that each berth in a loop
// detects the loop.
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

// Behind returns the instances of berth that handlers lead to, as reported by their daemons.
func (p *Pool) Behind() []string {
	var all []string
	for _, b := range p.All() {
		all = append(all, b.node.leadsTo()...)
	}
	slices.Sort(all)
	all = slices.Compact(all)
	return all[:min(len(all), maxBehind)]
}

// leadsTo returns the instances of berth behind the daemon.
func (n *node) leadsTo() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.behind
}
