package remote

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/containerd/log"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/remote/lastknown"
	"github.com/berth-cri/berth/pkg/wire"
)

var (
	sandboxLists   = listingOf(runtimeapi.RuntimeService_ListPodSandbox_FullMethodName, runtimeapi.RuntimeService_StreamPodSandboxes_FullMethodName, &runtimeapi.ListPodSandboxResponse{})
	containerLists = listingOf(runtimeapi.RuntimeService_ListContainers_FullMethodName, runtimeapi.RuntimeService_StreamContainers_FullMethodName, &runtimeapi.ListContainersResponse{})
)

var containerNames = wire.ImageHandlers(&runtimeapi.ListContainersResponse{})[0]

// lateListTimeout limits a list call that continues after its client got the last known list.
const lateListTimeout = 30 * time.Second

// lists serves lists of sandboxes and containers: the last known ones if the daemon fails to list.
type lists struct {
	*caller
	names *names
	known *lastknown.Pods
	// timeout is how long a client waits for the daemon.
	timeout time.Duration
	// updated is called when a list differs from the last known one.
	updated func()
	// late has one slot, for a list that continues after its client was answered. The result of
	// that list is recorded, so that the last known lists of a slow daemon are still updated.
	late chan struct{}
	// conflict holds why the daemon must not be used, nil if it may be used; see Backend.
	conflict *atomic.Pointer[string]
}

func (l *lists) ListPodSandbox(ctx context.Context, req *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	f, err := l.fresh(ctx, sandboxLists, req, wantsAll(req, req.GetFilter()), &l.known.Sandboxes)
	if err == nil {
		return carried[runtimeapi.ListPodSandboxResponse](l.naming().list(f), nil)
	}
	known, err := l.fallback(ctx, err)
	if err != nil {
		return nil, err
	}
	return &runtimeapi.ListPodSandboxResponse{Items: known.SelectSandboxes(req.GetFilter())}, nil
}

func (l *lists) ListContainers(ctx context.Context, req *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	f, err := l.fresh(ctx, containerLists, req, wantsAll(req, req.GetFilter()), &l.known.Containers)
	if err == nil {
		return carried[runtimeapi.ListContainersResponse](l.names.rename(f, containerNames), nil)
	}
	known, err := l.fallback(ctx, err)
	if err != nil {
		return nil, err
	}
	return &runtimeapi.ListContainersResponse{Containers: known.SelectContainers(req.GetFilter())}, nil
}

func (l *lists) naming() naming { return naming{l.names, l.known} }

// wantsAll reports whether a request selects the whole list. Pure.
func wantsAll(req, filter proto.Message) bool {
	return len(req.ProtoReflect().GetUnknown()) == 0 && proto.Size(filter) == 0
}

// fresh fetches a list from the daemon, and records it if whole is set.
func (l *lists) fresh(ctx context.Context, of listing, req proto.Message, whole bool, p *lastknown.Page) (wire.Frame, error) {
	if l.conflict.Load() != nil {
		return nil, nil
	}
	if _, some := l.known.Age(time.Now()); some && l.monitor.current().Phase == Lagging {
		return nil, l.monitor.slow()
	}
	wait, cancel := context.WithTimeoutCause(ctx, timeoutWithin(ctx, l.timeout), errSlow)
	defer cancel()
	if !whole {
		return l.whole(wait, of, req)
	}
	type answer struct {
		wire.Frame
		error
	}
	asked, stop := context.WithTimeout(context.WithoutCancel(ctx), lateListTimeout)
	answered := make(chan answer, 1)
	go func() {
		defer stop()
		mark := l.known.Mark()
		f, err := l.whole(asked, of, req)
		if err == nil {
			f, err = l.filtered(asked, of, f)
		}
		if err == nil && l.known.Take(p, f, mark, time.Now()) {
			l.updated()
		}
		answered <- answer{f, l.recordFailure(p, err)}
	}()
	select {
	case a := <-answered:
		return a.Frame, a.error
	case <-wait.Done():
	}
	l.monitor.suspect() // so that the next list does not wait as long
	select {
	case l.late <- struct{}{}:
		go func() {
			defer func() { <-l.late }()
			_ = (<-answered).error // the goroutine above records the result
		}()
	default:
		stop()
	}
	return nil, status.FromContextError(wait.Err()).Err()
}

// recordFailure returns err, and records it, unless the daemon is unavailable or the call was
// cancelled.
func (l *lists) recordFailure(p *lastknown.Page, err error) error {
	switch status.Code(err) {
	case codes.OK, codes.Unavailable, codes.Canceled: // health already shows this failure, or the client left
	default:
		l.known.Fail(p, reason(err), time.Now())
	}
	return err
}

// timeoutWithin returns how long a call may wait for the daemon: the lesser of limit and
// three quarters of the time until the deadline. The rest is for an answer without the daemon.
func timeoutWithin(ctx context.Context, limit time.Duration) time.Duration {
	if deadline, there := ctx.Deadline(); there {
		return min(limit, time.Until(deadline)*3/4)
	}
	return limit
}

// errSlow is the cause of a wait that ended by the timeout.
var errSlow = errors.New("the list timed out")

// sync fetches and records both lists.
func (l *lists) sync(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lateListTimeout)
	defer cancel()
	// Containers first: a container that is created between the two lists is then missing, instead
	// of being listed without its sandbox.
	mark, p := l.known.Mark(), &l.known.Containers
	f, err := l.whole(ctx, containerLists, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return l.recordFailure(p, err)
	}
	if err := l.relistSandboxes(ctx); err != nil {
		return err
	}
	if l.known.Take(p, l.known.WithSandbox(l.withID(ctx, f)), mark, time.Now()) {
		l.updated()
	}
	return nil
}

// filtered returns a list without invalid items.
func (l *lists) filtered(ctx context.Context, of listing, f wire.Frame) (wire.Frame, error) {
	f = l.withID(ctx, f)
	if of.unary != containerLists.unary {
		return f, nil
	}
	return l.withSandbox(ctx, f)
}

// withSandbox returns a list of containers without those of unlisted sandboxes, which no call could
// use. Before it drops any, it lists the sandboxes again: another client may just have created one.
func (l *lists) withSandbox(ctx context.Context, f wire.Frame) (wire.Frame, error) {
	if len(l.known.WithSandbox(f)) == len(f) {
		return f, nil
	}
	if err := l.relistSandboxes(ctx); err != nil {
		return nil, err
	}
	return l.known.WithSandbox(f), nil
}

func (l *lists) relistSandboxes(ctx context.Context) error {
	mark, p := l.known.Mark(), &l.known.Sandboxes
	f, err := l.whole(ctx, sandboxLists, &runtimeapi.ListPodSandboxRequest{})
	if err == nil && l.known.Take(p, l.withID(ctx, f), mark, time.Now()) {
		l.updated()
	}
	return l.recordFailure(p, err)
}

// withID returns a list without the items that have no ID.
func (l *lists) withID(ctx context.Context, f wire.Frame) wire.Frame {
	kept := wire.Without(f, func(item []byte) bool { return wire.Text(item, wire.IDField) == "" })
	if len(kept) != len(f) {
		log.G(ctx).WithField("backend", l.name).Debug("Backend listed items without an ID; omitting them")
	}
	return kept
}

// fallback returns the last known state instead of a list that failed with err, because the failure
// must not fail the lists of other backends.
func (l *lists) fallback(ctx context.Context, err error) (*lastknown.State, error) {
	if ctx.Err() != nil {
		return nil, err
	}
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled: // health already shows this failure
	default:
		log.G(ctx).WithError(err).WithField("backend", l.name).Warn("Backend list failed; serving last known entries")
	}
	if l.conflict.Load() != nil {
		return &lastknown.State{}, nil
	}
	s := &lastknown.State{Sandboxes: map[string]*runtimeapi.PodSandbox{}, Containers: map[string]*runtimeapi.Container{}}
	known := l.known.State()
	for id, p := range known.Sandboxes {
		s.Sandboxes[id] = proto.CloneOf(p)
		s.Sandboxes[id].RuntimeHandler = l.naming().sandbox(id, p.GetRuntimeHandler())
	}
	for id, c := range known.Containers {
		s.Containers[id] = proto.CloneOf(c)
		if c.GetImage() != nil {
			s.Containers[id].Image.RuntimeHandler = l.names.ours(c.GetImage().GetRuntimeHandler())
		}
	}
	return s, nil
}
