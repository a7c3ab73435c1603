package main

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/berth-cri/berth/integration/testbed"
)

// lanes are the ways to a daemon that are compared.
type lanes struct{ direct, copied, relayed, through *grpc.ClientConn }

// maxList is how large an answer may be, in bytes.
const maxList = 80 << 20

// open makes connections to the daemon, to hops before it, and to berth. Their
// answers are not decoded: that would be this program's time.
func open(t testbed.T, other, berth string) lanes {
	t.Helper()
	dial := func(socket string) *grpc.ClientConn {
		c, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.ForceCodecV2(undecoded{}), grpc.MaxCallRecvMsgSize(maxList)))
		testbed.Mustf(t, err, "connect to %s", socket)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	return lanes{dial(other), dial(startHop(t, copierVariable, other)), dial(startHop(t, relayVariable, other)), dial(berth)}
}

// undecoded encodes requests and leaves answers as they come.
type undecoded struct{}

func (undecoded) Name() string { return "proto" }

func (undecoded) Marshal(v any) (mem.BufferSlice, error) {
	b, err := proto.Marshal(v.(proto.Message))
	return mem.BufferSlice{mem.SliceBuffer(b)}, err
}

func (undecoded) Unmarshal(mem.BufferSlice, any) error { return nil }

// call is a call that can be made on every lane.
func call(method string, req proto.Message) func(context.Context, *grpc.ClientConn) error {
	return func(ctx context.Context, c *grpc.ClientConn) error {
		return c.Invoke(ctx, method, req, nil, grpc.WaitForReady(true))
	}
}

// times are how long calls took on each lane, in seconds.
type times struct{ direct, copied, relayed, through []float64 }

// inTurns makes n calls on each lane by several clients at once.
func (l lanes) inTurns(t testbed.T, n, clients int, call func(context.Context, *grpc.ClientConn) error) times {
	t.Helper()
	on := func(c *grpc.ClientConn) func(context.Context) error {
		return func(ctx context.Context) error { return call(ctx, c) }
	}
	for range 2 { // warm
		for _, c := range []*grpc.ClientConn{l.direct, l.copied, l.relayed, l.through} {
			_ = many(t, clients, on(c))
		}
	}
	var all times
	for range (n + batch - 1) / batch {
		all.direct = append(all.direct, many(t, clients, on(l.direct))...)
		all.copied = append(all.copied, many(t, clients, on(l.copied))...)
		all.relayed = append(all.relayed, many(t, clients, on(l.relayed))...)
		all.through = append(all.through, many(t, clients, on(l.through))...)
	}
	return all
}

// used is the time of CPUs that all threads of a process have had.
func used(t testbed.T, pid int) time.Duration {
	t.Helper()
	d, err := cpuTime(pid)
	testbed.Mustf(t, err, "time of process %d", pid)
	return d
}
