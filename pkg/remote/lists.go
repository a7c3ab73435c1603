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

// lateFor is how long a list may go on after its client got the last known one.
const lateFor = 30 * time.Second

// lists answers what shows all sandboxes and containers: as the daemon does, and
// in its place while it does not.
type lists struct {
	*caller
	names *names
	known *lastknown.Pods
	// patience is how long a client waits for the daemon.
	patience time.Duration
	// learned is called when a list differs from what was known.
	learned func()
	// late has one place, for a list that is still awaited after its client was
	// answered, so that a slow daemon's lists do not stay the first ones.
	late chan struct{}
	// contest is not nil if what the daemon has is another backend's.
	contest *atomic.Pointer[string]
}

func (l *lists) ListPodSandbox(ctx context.Context, req *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	f, err := l.fresh(ctx, sandboxLists, req, wantsAll(req, req.GetFilter()), &l.known.Sandboxes)
	if err == nil {
		return carried[runtimeapi.ListPodSandboxResponse](l.naming().list(f), nil)
	}
	known, err := l.instead(ctx, err)
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
	known, err := l.instead(ctx, err)
	if err != nil {
		return nil, err
	}
	return &runtimeapi.ListContainersResponse{Containers: known.SelectContainers(req.GetFilter())}, nil
}

func (l *lists) naming() naming { return naming{l.names, l.known} }

// wantsAll says whether a request has nothing that could make its list a part.
// Pure.
func wantsAll(req, filter proto.Message) bool {
	return len(req.ProtoReflect().GetUnknown()) == 0 && proto.Size(filter) == 0
}

// fresh asks the daemon for a list, and learns from a whole one.
func (l *lists) fresh(ctx context.Context, of listing, req proto.Message, whole bool, p *lastknown.Page) (wire.Frame, error) {
	if l.contest.Load() != nil {
		return nil, nil
	}
	if _, some := l.known.Age(time.Now()); some && l.monitor.current().Phase == Lagging {
		return nil, l.monitor.slow()
	}
	wait, cancel := context.WithTimeoutCause(ctx, patienceOf(ctx, l.patience), errSlow)
	defer cancel()
	if !whole {
		return l.whole(wait, of, req)
	}
	type answer struct {
		wire.Frame
		error
	}
	asked, stop := context.WithTimeout(context.WithoutCancel(ctx), lateFor)
	answered := make(chan answer, 1)
	go func() {
		defer stop()
		mark := l.known.Mark()
		f, err := l.whole(asked, of, req)
		if err == nil {
			f, err = l.sensible(asked, of, f)
		}
		if err == nil && l.known.Take(p, f, mark, time.Now()) {
			l.learned()
		}
		answered <- answer{f, l.blame(p, err)}
	}()
	select {
	case a := <-answered:
		return a.Frame, a.error
	case <-wait.Done():
	}
	l.monitor.suspect() // the next list is not to wait as long
	select {
	case l.late <- struct{}{}:
		go func() {
			defer func() { <-l.late }()
			_ = (<-answered).error // it was learned from, or not
		}()
	default:
		stop()
	}
	return nil, status.FromContextError(wait.Err()).Err()
}

// blame is err, remembered of a daemon that answers and fails to tell a list.
func (l *lists) blame(p *lastknown.Page, err error) error {
	switch status.Code(err) {
	case codes.OK, codes.Unavailable, codes.Canceled: // its health says so, or nobody waited
	default:
		l.known.Fail(p, reason(err))
	}
	return err
}

// patienceOf is how long a call may wait for the daemon: so long that there is
// time left for an answer without it.
func patienceOf(ctx context.Context, most time.Duration) time.Duration {
	if deadline, there := ctx.Deadline(); there {
		return min(most, time.Until(deadline)*3/4)
	}
	return most
}

// errSlow is the cause of a wait that a client did not end.
var errSlow = errors.New("the list timed out")

// sync learns what the daemon has.
func (l *lists) sync(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lateFor)
	defer cancel()
	// Containers first: one that is made meanwhile lacks in that list, and is not
	// listed without its sandbox.
	mark, p := l.known.Mark(), &l.known.Containers
	f, err := l.whole(ctx, containerLists, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return l.blame(p, err)
	}
	if err := l.sandboxesAnew(ctx); err != nil {
		return err
	}
	if l.known.Take(p, l.known.Attached(l.identified(ctx, f)), mark, time.Now()) {
		l.learned()
	}
	return nil
}

// sensible is a list without what makes no sense in it.
func (l *lists) sensible(ctx context.Context, of listing, f wire.Frame) (wire.Frame, error) {
	f = l.identified(ctx, f)
	if of.unary != containerLists.unary {
		return f, nil
	}
	return l.attached(ctx, f)
}

// attached is a list of containers without those whose sandbox the daemon does
// not list, and which no call could be made about. One that was made by others
// with its sandbox a moment ago is looked for in a new list of sandboxes.
func (l *lists) attached(ctx context.Context, f wire.Frame) (wire.Frame, error) {
	if len(l.known.Attached(f)) == len(f) {
		return f, nil
	}
	if err := l.sandboxesAnew(ctx); err != nil {
		return nil, err
	}
	return l.known.Attached(f), nil
}

func (l *lists) sandboxesAnew(ctx context.Context) error {
	mark, p := l.known.Mark(), &l.known.Sandboxes
	f, err := l.whole(ctx, sandboxLists, &runtimeapi.ListPodSandboxRequest{})
	if err == nil && l.known.Take(p, l.identified(ctx, f), mark, time.Now()) {
		l.learned()
	}
	return l.blame(p, err)
}

// identified is a list without items that have no id.
func (l *lists) identified(ctx context.Context, f wire.Frame) wire.Frame {
	kept := wire.Without(f, func(item []byte) bool { return wire.Text(item, wire.IDField) == "" })
	if len(kept) != len(f) {
		log.G(ctx).WithField("backend", l.name).Debug("Backend listed items without an ID; omitting them")
	}
	return kept
}

// instead is the last known state in place of a list that failed with err, which
// is not to cost the lists of other backends.
func (l *lists) instead(ctx context.Context, err error) (*lastknown.State, error) {
	if ctx.Err() != nil {
		return nil, err
	}
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled: // its health says so
	default:
		log.G(ctx).WithError(err).WithField("backend", l.name).Warn("Backend list failed; serving last known entries")
	}
	if l.contest.Load() != nil {
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
