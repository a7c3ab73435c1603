package remote

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/berth-cri/berth/pkg/wire"
)

// maxMessage bounds a message, in bytes. A full node's lists and ExecSync's output must fit.
const maxMessage = 80 << 20

// window is the flow-control window for answers, in bytes. Almost all answers are smaller, and the
// window allocates nothing in advance.
const window = 16 << 20

// dialTimeout bounds one attempt to connect. An attempt at a unix socket usually succeeds or fails
// at once.
const dialTimeout = 2 * time.Second

// dialer connects to one socket and keeps the result of the last attempt.
type dialer struct {
	path string
	last atomic.Pointer[error]
	// connections counts the successful attempts.
	connections atomic.Uint64
}

func (d *dialer) dial(ctx context.Context, _ string) (net.Conn, error) {
	c, err := d.connect(ctx)
	d.last.Store(&err)
	if err == nil {
		d.connections.Add(1)
	}
	return c, err
}

func (d *dialer) connect(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", d.path)
	if err != nil {
		return nil, d.explain(err)
	}
	return c, nil
}

// failure returns the error of the last attempt to connect, or nil.
func (d *dialer) failure() error {
	if err := d.last.Load(); err != nil {
		return *err
	}
	return nil
}

// explain describes why a socket could not be connected to.
func (d *dialer) explain(err error) error {
	info, statErr := os.Stat(d.path)
	switch {
	case errors.Is(statErr, os.ErrNotExist):
		return fmt.Errorf("%s does not exist; check that its daemon is running", d.path)
	case errors.Is(err, os.ErrPermission) || errors.Is(statErr, os.ErrPermission):
		return fmt.Errorf("permission denied for %s; check its mode and owner, and those of its directories", d.path)
	case statErr == nil && info.Mode()&os.ModeSocket == 0:
		return fmt.Errorf("%s is not a socket", d.path)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("no process listens on %s; check that its daemon is running", d.path)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, syscall.EAGAIN):
		return fmt.Errorf("the daemon at %s does not accept connections", d.path)
	}
	return err
}

// open returns a connection that reconnects when its daemon is back.
func (d *dialer) open() (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///localhost",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(d.dial),
		// Fixed windows disable the bandwidth estimation, which costs a ping for each answer.
		grpc.WithInitialWindowSize(window), grpc.WithInitialConnWindowSize(window),
		grpc.WithNoProxy(), grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(), grpc.WithIdleTimeout(0),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 3 * time.Second},
			MinConnectTimeout: dialTimeout,
		}),
		grpc.WithDefaultCallOptions(
			grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage), grpc.ForceCodecV2(wire.NewCodec()),
		),
	)
}
