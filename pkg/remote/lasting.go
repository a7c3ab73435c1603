package remote

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"
)

// afterwards is how long a daemon that did not answer keeps a call whose caller
// was told so.
const afterwards = 2 * time.Minute

// lasting is unary for a call that changes something. If the daemon is taken to be
// down meanwhile, its caller hears of it, and the call stays: a daemon that goes
// on would otherwise find it canceled when it is half done, and a containerd that
// is told so while it starts a container can neither start nor remove that any
// more. What has come of the call is in the next list.
func (c *caller) lasting(ctx context.Context, method string, req proto.Message) (frame, error) {
	era, err := c.monitor.admit(ctx)
	if err != nil {
		return nil, err
	}
	call, cancel := detached(ctx)
	answered := make(chan answer, 1)
	go func() {
		defer cancel()
		answered <- c.invoke(call, method, req)
	}()
	select {
	case a := <-answered:
		return c.take(ctx, era, method, a)
	case <-ctx.Done():
		cancel()
		return c.take(ctx, era, method, <-answered)
	case <-era.Done():
		time.AfterFunc(afterwards, cancel)
		return nil, context.Cause(era)
	}
}

// passChange is pass for a call that changes something.
func passChange[R any, P message[R]](ctx context.Context, c *caller, method string, req proto.Message) (P, error) {
	f, err := c.lasting(ctx, method, req)
	if err != nil {
		return nil, err
	}
	resp := P(new(R))
	f.carry(resp)
	return resp, nil
}

// readChange is read for a call that changes something.
func readChange[R any, P message[R]](ctx context.Context, c *caller, method string, req proto.Message) (P, error) {
	f, err := c.lasting(ctx, method, req)
	if err != nil {
		return nil, err
	}
	return decoded[R, P](c, method, f)
}

// detached is ctx that does not end with it, but for its deadline.
func detached(ctx context.Context) (context.Context, context.CancelFunc) {
	alone := context.WithoutCancel(ctx)
	if deadline, there := ctx.Deadline(); there {
		return context.WithDeadline(alone, deadline)
	}
	return context.WithCancel(alone)
}
