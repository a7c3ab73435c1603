// Package remote is a backend that is another CRI daemon behind its unix socket:
// containerd, CRI-O, or another berth.
//
// What the daemon answers is passed on unread wherever nothing has to be known
// of it, so that fields and codes that are newer than our CRI survive. What it
// has is known from its lists, which are kept on disk as well: they are what is
// listed while it does not answer.
//
// One Backend is one connection, whichever handlers use it. A loop asks the
// daemon how it is; while it is down, calls fail at once and say so, calls under
// way are ended, and nothing of this reaches calls to other backends.
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

// Options are what a Backend needs.
type Options struct {
	// Endpoint is the absolute path of the daemon's socket.
	Endpoint string
	// Dir is where the last known lists are kept.
	Dir string
	// Instance names this run of berth, so that it knows its own calls if they
	// come back to it.
	Instance string
	// Handlers are those whose pods live in the daemon.
	Handlers []lastknown.Handler
	// ListTimeout is how long lists wait for the daemon.
	ListTimeout time.Duration
	// StreamHosts are hosts, besides the node's own addresses, that the URLs of
	// exec, attach and port-forward may name.
	StreamHosts []string
	// Changed hears when the health has changed, or what the daemon has. It must
	// not wait for anything that waits for the Backend.
	Changed func()
}

// Backend is one CRI daemon behind its socket. All methods may be called at any
// time from any goroutine.
type Backend struct {
	runtimeService
	imageService

	id       string
	endpoint string
	conn     *grpc.ClientConn
	names    *names
	known    *lastknown.Pods
	state    *lastknown.File
	// writes has one place, for a state file that is to be written.
	writes  chan struct{}
	changed func()

	mu sync.Mutex
	// handlers are those of the record.
	handlers []lastknown.Handler

	// making counts calls that may give the daemon what it has not yet.
	making atomic.Int64

	// contest is why the daemon is no backend though it answers, nil if it is one.
	contest atomic.Pointer[string]

	started sync.Once
	stop    context.CancelFunc
	running sync.WaitGroup
}

// runtimeService is the runtime's half of the CRI, composed of one part per
// concern.
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

// newBackend makes a Backend that knows what its daemon had when this berth's last one
// ended. It connects to nothing before it is started.
func newBackend(o Options) (*Backend, error) {
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
		// The daemon says anew what it has; without these lists berth is only short
		// of its pods while it is away.
		log.L.WithError(damage).WithField("backend", b.id).Error("Failed to read last known entries of backend; its pods and images are listed once it answers")
	}
	b.compose(o, d)
	return b, nil
}

// compose puts the parts together.
func (b *Backend) compose(o Options, d *dialer) {
	c := &caller{name: "the CRI daemon at " + o.Endpoint, conn: b.conn, via: o.Instance}
	c.abilities.Store(&abilities{})
	n := &node{caller: c, names: b.names, redial: b.conn.ResetConnectBackoff}
	l := &lists{caller: c, names: b.names, known: b.known, patience: o.ListTimeout, learned: func() { b.save(); b.changed() }, late: make(chan struct{}, 1), contest: &b.contest}
	a := &acquaintance{caller: c, dialer: d, node: n, lists: l, known: b.known, contest: &b.contest, changed: b.changed}
	c.monitor = newMonitor(c.name, a.check, a.back, func(Health) { b.changed() })
	b.runtimeService = runtimeService{
		sandboxes: sandboxes{c, naming{b.names, b.known}, b, &b.making}, containers: containers{c, b.names, b},
		checkpoints: checkpoints{c, naming{b.names, b.known}, b, &b.making}, execs: execs{c, streamHosts{o.StreamHosts, net.InterfaceAddrs}},
		lists: l, stats: stats{c, o.ListTimeout}, events: &events{caller: c, names: b.names, lists: l}, node: n,
	}
	b.imageService = imageService{images: images{c, b.names, b.state.Images, b.state.Write, o.ListTimeout, &b.contest, &b.making}}
}

// Start begins to look after the daemon, until Close.
func (b *Backend) Start(ctx context.Context) {
	b.started.Do(func() {
		ctx, b.stop = context.WithCancel(context.WithoutCancel(ctx))
		b.running.Go(func() { b.node.monitor.run(ctx) })
		b.running.Go(func() { b.writeDown(ctx) })
		b.running.Go(func() { b.refresh(ctx) })
	})
}

// Close ends the connection. forget is for a daemon that is no backend of this
// berth any more.
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

// Prompt implements router.Laggard.
func (b *Backend) Prompt() bool {
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

// SetHandlers replaces the handlers whose pods live in the daemon, on disk first.
func (b *Backend) SetHandlers(handlers []lastknown.Handler) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if slices.Equal(handlers, b.handlers) {
		return nil
	}
	// What has a name keeps it.
	kept := (naming{b.names, b.known}).leaving(handlers)
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

// Asked is closed once the daemon was asked how it is.
func (b *Backend) Asked() <-chan struct{} { return b.node.monitor.asked }

// Health is how the daemon is.
func (b *Backend) Health() Health { return b.node.monitor.current() }

// Age is how old the last known lists are, this berth's last run included; false
// if there are none.
func (b *Backend) Age() (time.Duration, bool) { return b.known.Age(time.Now()) }

// Contest has the daemon be no backend as long as it is there: it has what
// another backend has.
func (b *Backend) Contest(why error) {
	text := why.Error()
	b.contest.Store(&text)
	b.node.monitor.suspect()
}

// Inventory implements router.Backend.
func (b *Backend) Inventory() []handler.Owned {
	if b.contest.Load() != nil {
		return nil
	}
	return naming{b.names, b.known}.inventory()
}

// Note implements journal.
func (b *Backend) Note(ctx context.Context, c lastknown.Change) {
	b.known.Note(c)
	if c.Handler == "" {
		b.save()
		return
	}
	// No list has the handler of this pod: it is on disk before the call is answered.
	if err := b.state.Write(); err != nil {
		log.G(ctx).WithError(err).WithField("backend", b.id).Warn("Failed to save the handler of a pod of backend; it is lost if berth is killed now")
	}
}

// save has what is known written down soon.
func (b *Backend) save() {
	select {
	case b.writes <- struct{}{}:
	default:
	}
}

// between is the time between two writings, since lists may change all the time.
const between = time.Second

func (b *Backend) writeDown(ctx context.Context) {
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
		case <-time.After(between):
		}
	}
}

// stale is how old lists become before they are asked for though no client does.
const stale = 30 * time.Second

func (b *Backend) refresh(ctx context.Context) {
	_ = wait.PollUntilContextCancel(ctx, stale/2, false, func(ctx context.Context) (bool, error) {
		if age, _ := b.known.Age(time.Now()); age > stale && b.Health().Phase != Down {
			if err := b.lists.sync(ctx); err != nil && ctx.Err() == nil {
				log.G(ctx).WithError(err).WithField("backend", b.id).Debug("Failed to list pods of backend")
			}
		}
		return false, nil
	})
}
