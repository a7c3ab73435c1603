package disk

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"sync"
	"time"

	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/proxy"
	"github.com/containerd/containerd/v2/defaults"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/log"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/berth-cri/berth/pkg/printable"
)

const (
	// proxiedCall bounds a call to another program, proxiedWork one that may fetch or copy files,
	// and proxiedCommit a commit, which locks the metadata.
	proxiedCall, proxiedWork, proxiedCommit = 10 * time.Second, 5 * time.Minute, 30 * time.Second
	// ProxiedStart bounds how long a start of berth waits for a proxy snapshotter.
	ProxiedStart = 5 * time.Second
	// proxiedCheck bounds a health check, and proxiedInterval is the time between two checks.
	proxiedCheck, proxiedInterval = 3 * time.Second, 2 * time.Second
	// proxiedDoubt is how many failed checks in a row make a snapshotter unresponsive.
	proxiedDoubt = 2
	// missingSnapshot is a name that no snapshot has, for health checks.
	missingSnapshot = "berth-is-it-there"
)

// Proxied is a proxy snapshotter, a program that is reached by containerd's protocol. While it is
// unresponsive, new and pending calls fail at once. This affects only the handlers that use it.
type Proxied struct {
	snapshots.Snapshotter
	// unbounded makes calls even if the program is unresponsive.
	unbounded     snapshots.Snapshotter
	name, address string
	conn          *grpc.ClientConn // nil if the snapshotter is not configured any more
	// changed receives a value when the snapshotter becomes unresponsive, or answers again.
	changed chan<- struct{}
	doubted chan struct{}
	closed  sync.Once
	// CatchUp does what was impossible while the snapshotter was unresponsive. It is set before
	// Check is called.
	CatchUp func(ctx context.Context) error

	mu      sync.Mutex
	failure error
	// known is set once checks have shown whether the snapshotter answers.
	known bool
	// behind counts the reasons to catch up, and caught the reasons that CatchUp has covered.
	behind, caught int
	misses         int
	calls          context.Context // ends when the snapshotter becomes unresponsive
	end            context.CancelFunc
}

// newProxied returns the snapshotter at a socket, without contacting it. Without an address its
// calls always fail. Check must run before other calls.
func newProxied(name, address string, changed chan<- struct{}) (*Proxied, error) {
	p := &Proxied{name: name, address: strings.TrimPrefix(address, "unix://"), changed: changed, doubted: make(chan struct{}, 1), behind: 1}
	p.Snapshotter = proxy.NewSnapshotter(snapshotsapi.NewSnapshotsClient(boundedCalls{of: p}), name)
	p.failure = fmt.Errorf("snapshotter %s was not checked yet: %w", name, errdefs.ErrUnavailable)
	p.calls, p.end = context.WithCancel(context.Background())
	if address == "" {
		p.failure = fmt.Errorf("snapshotter %s is not configured any more; add [snapshotters.%s] and restart berth: %w", name, name, errdefs.ErrUnavailable)
		return p, nil
	}
	retry := backoff.DefaultConfig
	retry.MaxDelay = proxiedInterval
	var err error
	p.conn, err = grpc.NewClient("unix://"+p.address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: retry, MinConnectTimeout: proxiedCheck}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(defaults.DefaultMaxRecvMsgSize), grpc.MaxCallSendMsgSize(defaults.DefaultMaxSendMsgSize)))
	if err != nil {
		return nil, fmt.Errorf("snapshotter %s: %w", name, err)
	}
	p.unbounded = proxy.NewSnapshotter(snapshotsapi.NewSnapshotsClient(p.conn), name)
	return p, nil
}

// ready returns an error while the snapshotter is unresponsive.
func (p *Proxied) ready() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failure
}

// Watch checks the snapshotter at intervals, and after failed calls, until ctx ends.
func (p *Proxied) Watch(ctx context.Context) {
	if p.conn == nil {
		return
	}
	tick := time.NewTicker(proxiedInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-p.doubted:
		}
		p.Check(ctx, proxiedDoubt, proxiedWork)
	}
}

// Check tests whether the snapshotter answers. doubt is how many failures in a row make the
// snapshotter unresponsive. bound limits the time to catch up.
func (p *Proxied) Check(ctx context.Context, doubt int, bound time.Duration) {
	if p.conn == nil {
		return
	}
	bounded, cancel := context.WithTimeout(InNamespace(ctx), proxiedCheck)
	defer cancel()
	_, err := p.unbounded.Stat(bounded, missingSnapshot)
	failure := p.explain(err)
	if failure == nil {
		failure = p.follow(InNamespace(ctx), bound)
	}
	if ctx.Err() == nil && p.note(failure, doubt) {
		select {
		case p.changed <- struct{}{}:
		default: // a value is pending, and its reader checks all snapshotters
		}
	}
}

// catchingUp is the context key of CatchUp's calls, which are made while other calls fail.
type catchingUp struct{}

// follow calls CatchUp if there is a reason to.
func (p *Proxied) follow(ctx context.Context, bound time.Duration) error {
	p.mu.Lock()
	behind, caught := p.behind, p.caught
	p.mu.Unlock()
	if behind == caught {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithValue(ctx, catchingUp{}, true), bound)
	defer cancel()
	if err := p.CatchUp(ctx); err != nil {
		if failure := p.explain(err); failure != nil {
			return failure
		}
		return fmt.Errorf("snapshotter %s: %s: %w", p.name, printable.Line(err.Error()), errdefs.ErrUnavailable)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.caught = behind
	return nil
}

// FellBehind returns false if the snapshotter is ready. Otherwise it adds a reason to catch up.
func (p *Proxied) FellBehind() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failure == nil {
		return false
	}
	p.behind++
	return true
}

// HasAnswered reports whether CatchUp has succeeded at least once.
func (p *Proxied) HasAnswered() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.caught > 0
}

// explain returns why the snapshotter did not answer, or nil if err is its answer.
func (p *Proxied) explain(err error) error {
	var what string
	switch {
	case errdefs.IsUnavailable(err):
		what = "cannot be reached"
	case errors.Is(err, context.DeadlineExceeded), errdefs.IsDeadlineExceeded(err):
		what = "does not answer"
	case errdefs.IsNotImplemented(err):
		what = "belongs to another program"
	default:
		return nil
	}
	return fmt.Errorf("snapshotter %s: %s %s; start the snapshotter, or correct snapshotters.%s.address: %s: %w",
		p.name, p.address, what, p.name, printable.Line(err.Error()), errdefs.ErrUnavailable)
}

// note records the outcome of a check, and reports whether the state has changed.
func (p *Proxied) note(failure error, doubt int) (news bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if failure == nil {
		if p.misses = 0; p.behind != p.caught {
			return false // a reason to catch up was added during the check; the next check handles it
		}
		again := p.known
		news, p.failure, p.known = p.failure != nil, nil, true
		if p.calls.Err() != nil {
			p.calls, p.end = context.WithCancel(context.Background())
		}
		if news && again {
			log.L.WithField("snapshotter", p.name).Info("Snapshotter answers again")
		}
		return news
	}
	if p.misses++; p.misses < doubt && p.failure == nil {
		return false
	}
	news, p.failure, p.known = p.failure == nil || !p.known, failure, true
	p.end()
	if news {
		p.behind++
		log.L.WithError(failure).WithField("snapshotter", p.name).Warn("Snapshotter does not answer; its handlers accept no pods until it does")
	}
	return news
}

// call calls f within a time limit, unless the snapshotter is unresponsive.
func (p *Proxied) call(ctx context.Context, bound time.Duration, f func(ctx context.Context) error) error {
	p.mu.Lock()
	failure, calls := p.failure, p.calls
	p.mu.Unlock()
	if ctx.Value(catchingUp{}) != nil {
		failure, calls = nil, ctx
	}
	if failure != nil {
		return failure
	}
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	defer context.AfterFunc(calls, cancel)()
	err := f(ctx)
	if calls.Err() != nil && err != nil {
		if failure := p.ready(); failure != nil {
			return failure
		}
	}
	if p.explain(err) != nil {
		select {
		case p.doubted <- struct{}{}:
		default:
		}
	}
	return err
}

// boundedCalls is the connection to the program, for calls that Proxied bounds.
type boundedCalls struct {
	grpc.ClientConnInterface // nil: only Walk streams, through Proxied.unbounded
	of                       *Proxied
}

// Invoke implements grpc.ClientConnInterface.
func (c boundedCalls) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	bound := proxiedCall
	switch path.Base(method) {
	case "Prepare", "View", "Mounts", "Cleanup":
		bound = proxiedWork
	case "Commit":
		bound = proxiedCommit
	}
	return errgrpc.ToGRPC(c.of.call(ctx, bound, func(ctx context.Context) error {
		return errgrpc.ToNative(c.of.conn.Invoke(ctx, method, args, reply, opts...))
	}))
}

// Walk implements snapshots.Snapshotter. Its time limit is for the whole stream.
func (p *Proxied) Walk(ctx context.Context, f snapshots.WalkFunc, filters ...string) error {
	return p.call(ctx, proxiedWork, func(ctx context.Context) error { return p.unbounded.Walk(ctx, f, filters...) })
}

// Cleanup implements snapshots.Cleaner.
func (p *Proxied) Cleanup(ctx context.Context) error {
	return p.Snapshotter.(snapshots.Cleaner).Cleanup(ctx)
}

// Close implements snapshots.Snapshotter. The program keeps running.
func (p *Proxied) Close() (err error) {
	p.mu.Lock()
	p.end()
	p.mu.Unlock()
	if p.conn != nil {
		p.closed.Do(func() { err = p.conn.Close() })
	}
	return err
}
