// Package remote implements a backend that passes calls on to another CRI daemon at its unix
// socket: containerd, CRI-O, or another berth.
//
// The daemon's answers are passed on undecoded where berth does not need their content, so that
// fields and codes that are newer than berth's CRI survive. The last lists of the daemon's
// sandboxes and containers are kept, also on disk, and are served while the daemon does not answer.
//
// One Backend is one connection, shared by all its handlers. A loop checks the daemon's health.
// When the daemon goes down, calls in progress fail with the reason, and so do new calls, except
// lists, until it is back. Calls to other backends are not affected.
package remote

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
	"k8s.io/apimachinery/pkg/util/wait"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/remote/lastknown"
	"github.com/berth-cri/berth/pkg/wire"
)

// backendOptions configure a Backend.
type backendOptions struct {
	// Endpoint is the absolute path of the daemon's socket.
	Endpoint string
	// Dir is the directory of the last known lists.
	Dir string
	// Instance identifies this run of berth, so that it recognizes its calls if they come back.
	Instance string
	// Handlers are the handlers that use the daemon.
	Handlers []lastknown.Handler
	// ListTimeout is how long lists wait for the daemon.
	ListTimeout time.Duration
	// StreamHosts are hosts, besides the node's own addresses, that the URLs of exec, attach and
	// port-forward may name.
	StreamHosts []string
	// Changed is called when the health or the daemon's objects have changed. It must not wait for
	// anything that waits for the Backend.
	Changed func()
}

// Backend is one CRI daemon behind its socket. All methods may be called from any goroutine.
type Backend struct {
	runtimeService
	imageService

	id       string
	endpoint string
	conn     *grpc.ClientConn
	names    *names
	known    *lastknown.Pods
	state    *lastknown.File
	// writes has one slot, for a pending write of the state file.
	writes  chan struct{}
	changed func()

	mu sync.Mutex
	// handlers are the handlers in the state file.
	handlers []lastknown.Handler

	// creating counts the calls in progress that may create sandboxes or pull images.
	creating atomic.Int64

	// conflict is why the daemon must not be used although it answers, nil if it may be used.
	conflict atomic.Pointer[string]

	started sync.Once
	stop    context.CancelFunc
	running sync.WaitGroup
}

// runtimeService is the runtime's half of the CRI, composed of one part per concern.
type runtimeService struct {
	sandboxes
	containers
	checkpoints
	execs
	*lists
	stats
	*events
	*node
	unknownRuntimeCalls
}

type unknownRuntimeCalls struct {
	runtimeapi.UnimplementedRuntimeServiceServer
}

// imageService is the images' half of the CRI.
type imageService struct {
	images
	unknownImageCalls
}

type unknownImageCalls struct {
	runtimeapi.UnimplementedImageServiceServer
}

var (
	_ runtimeapi.RuntimeServiceServer = (*Backend)(nil)
	_ runtimeapi.ImageServiceServer   = (*Backend)(nil)
)

// newBackend returns a Backend with the last known lists that the previous run of berth stored. It
// connects only after Start.
func newBackend(o backendOptions) (*Backend, error) {
	switch {
	case !filepath.IsAbs(o.Endpoint):
		return nil, fmt.Errorf("remote: the endpoint %q is not an absolute path", o.Endpoint)
	case o.Dir == "" || o.Instance == "" || o.Changed == nil || o.ListTimeout <= 0:
		return nil, errors.New("remote: Dir, Instance, Changed or ListTimeout is missing")
	}
	d := &dialer{path: o.Endpoint}
	conn, err := d.open()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	state, damage, err := lastknown.Open(filepath.Join(o.Dir, digest.FromString(o.Endpoint).Encoded()[:16]+lastknown.Suffix))
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	b := &Backend{
		id: "cri:" + o.Endpoint, conn: conn, names: newNames(o.Handlers), known: state.Known, changed: o.Changed,
		state: state, endpoint: o.Endpoint, writes: make(chan struct{}, 1), stop: func() {}, handlers: slices.Clone(o.Handlers),
	}
	if damage != nil {
		// The daemon lists everything again: its pods are missing only until it answers.
		log.L.WithError(damage).WithField("backend", b.id).Error("Failed to read last known entries of backend; its pods and images are listed once it answers")
	}
	b.compose(o, d)
	return b, nil
}

// compose creates the parts and connects them.
func (b *Backend) compose(o backendOptions, d *dialer) {
	c := &caller{name: "the CRI daemon at " + o.Endpoint, conn: b.conn, via: o.Instance}
	c.support.Store(&methodSupport{})
	n := &node{caller: c, names: b.names, redial: b.conn.ResetConnectBackoff}
	l := &lists{caller: c, names: b.names, known: b.known, timeout: o.ListTimeout, updated: func() { b.save(); b.changed() }, late: make(chan struct{}, 1), conflict: &b.conflict}
	s := &session{caller: c, dialer: d, node: n, lists: l, known: b.known, conflict: &b.conflict, changed: b.changed}
	c.monitor = newMonitor(c.name, s.check, s.back, func(Health) { b.changed() })
	b.runtimeService = runtimeService{
		sandboxes: sandboxes{c, naming{b.names, b.known}, b, &b.creating}, containers: containers{c, b.names, b},
		checkpoints: checkpoints{c, naming{b.names, b.known}, b, &b.creating}, execs: execs{c, streamHosts{o.StreamHosts, net.InterfaceAddrs}},
		lists: l, stats: stats{c, o.ListTimeout}, events: &events{caller: c, names: b.names, lists: l}, node: n,
	}
	b.imageService = imageService{images: images{c, b.names, b.state.Images, b.state.Write, o.ListTimeout, &b.conflict, &b.creating}}
}

// Start monitors the daemon until Close.
func (b *Backend) Start(ctx context.Context) {
	b.started.Do(func() {
		ctx, b.stop = context.WithCancel(context.WithoutCancel(ctx))
		b.running.Go(func() { b.node.monitor.run(ctx) })
		b.running.Go(func() { b.writeLoop(ctx) })
		b.running.Go(func() { b.refresh(ctx) })
	})
}

// Close closes the connection. forget also removes the state file, for a daemon that is no longer a
// backend of this berth.
func (b *Backend) Close(forget bool) error {
	b.stop()
	b.running.Wait()
	err := b.conn.Close()
	if !forget {
		err = errors.Join(err, b.state.Write())
	}
	return errors.Join(err, b.state.Close(forget))
}

// ID implements router.Backend.
func (b *Backend) ID() string { return b.id }

// Responsive implements router.Responder.
func (b *Backend) Responsive() bool {
	p := b.Health().Phase
	return p == Ready || p == Connected
}

// Live implements router.Backend.
func (b *Backend) Live(sandbox string) bool { return b.known.Live(sandbox) }

// Forward implements router.Forwarder.
func (b *Backend) Forward(ctx context.Context, method string, first proto.Message, more func() (proto.Message, error), send func(proto.Message) error) error {
	return b.node.exchange(ctx, method, first, more, func(f wire.Frame) error {
		m := &emptypb.Empty{} // all fields are unknown to it
		f.Carry(m)
		return send(m)
	})
}

// setHandlers replaces the handlers that use the daemon, on disk first.
func (b *Backend) setHandlers(handlers []lastknown.Handler) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if slices.Equal(handlers, b.handlers) {
		return nil
	}
	// Existing sandboxes keep their handler.
	kept := (naming{b.names, b.known}).renamed(handlers)
	b.known.AssignMissing(kept)
	if err := b.state.SetRecord(lastknown.Record{Endpoint: b.endpoint, Handlers: handlers}); err != nil {
		return err
	}
	b.handlers = slices.Clone(handlers)
	b.names.set(handlers)
	return nil
}

func (b *Backend) recorded() []lastknown.Handler {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.handlers
}

// Asked returns a channel that is closed after the first check of the daemon.
func (b *Backend) Asked() <-chan struct{} { return b.node.monitor.asked }

// Health returns the daemon's health.
func (b *Backend) Health() Health { return b.node.monitor.current() }

// Age returns the age of the last known lists, which may come from the last run of berth; false if
// there are none.
func (b *Backend) Age() (time.Duration, bool) { return b.known.Age(time.Now()) }

// SetConflict disables the daemon as a backend, because another backend has the same objects. The
// next connection enables it again, because a different daemon may listen by then.
func (b *Backend) SetConflict(why error) {
	text := why.Error()
	b.conflict.Store(&text)
	b.node.monitor.suspect()
}

// Inventory implements router.Backend.
func (b *Backend) Inventory() []handler.Owned {
	if b.conflict.Load() != nil {
		return nil
	}
	return naming{b.names, b.known}.inventory()
}

// record implements journal.
func (b *Backend) record(ctx context.Context, c lastknown.Change) {
	b.known.Note(c)
	if c.Handler == "" {
		b.save()
		return
	}
	// No list contains the handler of this pod, so the handler is written before the call returns.
	if err := b.state.Write(); err != nil {
		log.G(ctx).WithError(err).WithField("backend", b.id).Warn("Failed to save the handler of a pod of backend; it is lost if berth is killed now")
	}
}

// save schedules a write of the state file.
func (b *Backend) save() {
	select {
	case b.writes <- struct{}{}:
	default:
	}
}

// writeInterval is the least time between two writes of lists, which may change all the time.
const writeInterval = time.Second

func (b *Backend) writeLoop(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-b.writes:
		}
		if err := b.state.Write(); err != nil {
			log.G(ctx).WithError(err).WithField("backend", b.id).Warn("Failed to save last known entries of backend; they are not listed if both daemons restart")
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(writeInterval):
		}
	}
}

// refreshAfter is the age after which lists are fetched without a client's request.
const refreshAfter = 30 * time.Second

func (b *Backend) refresh(ctx context.Context) {
	_ = wait.PollUntilContextCancel(ctx, refreshAfter/2, false, func(ctx context.Context) (bool, error) {
		if age, _ := b.known.Age(time.Now()); age > refreshAfter && b.Health().Phase != Down {
			if err := b.lists.sync(ctx); err != nil && ctx.Err() == nil {
				log.G(ctx).WithError(err).WithField("backend", b.id).Debug("Failed to list pods of backend")
			}
		}
		return false, nil
	})
}
