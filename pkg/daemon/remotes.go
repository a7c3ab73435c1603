package daemon

import (
	"context"
	"crypto/rand"
	"path/filepath"
	"sync"
	"time"

	"github.com/containerd/log"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/lifecycle"
	"github.com/berth-cri/berth/pkg/probe"
	"github.com/berth-cri/berth/pkg/remote"
	"github.com/berth-cri/berth/pkg/router"
)

// listPatience is how long lists wait for a CRI daemon before its last known
// entries are shown instead.
const listPatience = 2 * time.Second

// remotes keeps the router and the handlers' states true to the CRI daemons that
// handlers lead to.
type remotes struct {
	daemon   *Daemon
	pool     *remote.Pool
	instance string
	// recovered is closed when the engine may be asked.
	recovered chan struct{}

	wake chan struct{}
	mu   sync.Mutex
	// dirty are those that have changed, known their health when handlers were
	// probed last.
	dirty map[*remote.Backend]bool
	known map[*remote.Backend]remote.Health
}

// newRemotes knows the CRI daemons that had pods before.
func (d *Daemon) newRemotes(ctx context.Context, engine Engine) (*remotes, error) {
	r := &remotes{
		daemon: d, instance: rand.Text(), recovered: make(chan struct{}), wake: make(chan struct{}, 1),
		dirty: map[*remote.Backend]bool{}, known: map[*remote.Backend]remote.Health{},
	}
	pool, err := remote.NewPool(ctx, remote.PoolOptions{
		Dir: filepath.Join(d.options.Config.Engine.Root, "remote"), Instance: r.instance, ListTimeout: listPatience,
		CgroupDriver: func(ctx context.Context) (runtimeapi.CgroupDriver, error) { return r.driver(ctx, engine) },
		Changed:      r.changed,
	})
	if err != nil {
		return nil, err
	}
	r.pool = pool
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	var working sync.WaitGroup
	working.Go(func() { r.follow(ctx) })
	d.teardown.add("CRI daemons behind sockets", func(context.Context) error {
		stop()
		working.Wait()
		return pool.Close()
	})
	return r, nil
}

// driver is the engine's cgroup driver.
func (r *remotes) driver(ctx context.Context, engine Engine) (runtimeapi.CgroupDriver, error) {
	select {
	case <-r.recovered:
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	c, err := engine.RuntimeConfig(ctx, &runtimeapi.RuntimeConfigRequest{})
	return c.GetLinux().GetCgroupDriver(), err
}

// changed implements remote.PoolOptions.
func (r *remotes) changed(b *remote.Backend) {
	r.mu.Lock()
	r.dirty[b] = true
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// follow takes over what has changed, until ctx is done.
func (r *remotes) follow(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		}
		r.mu.Lock()
		dirty := r.dirty
		r.dirty = map[*remote.Backend]bool{}
		r.mu.Unlock()
		for b := range dirty {
			r.takeOver(ctx, b)
		}
	}
}

// takeOver makes owners what the daemon has, and has its handlers probed if the
// daemon's health has changed.
func (r *remotes) takeOver(ctx context.Context, b *remote.Backend) {
	if face := r.daemon.router.Load(); face != nil && adopted(face, b) {
		if err := face.Reconcile(b); err != nil {
			log.G(ctx).WithError(err).WithField("backend", b.ID()).Error("A CRI daemon has pods that another backend has")
			b.Contest(err)
		}
	}
	now := b.Health()
	r.mu.Lock()
	before, probed := r.known[b]
	r.known[b] = now
	r.mu.Unlock()
	m := r.daemon.lifecycle.Load()
	if m == nil || probed && before.Phase == now.Phase && before.Reason == now.Reason {
		return
	}
	for _, route := range r.daemon.registry.Load().Current().Routes() {
		if d := route.Definition; d.Type == handler.CRI && route.Backend.ID() == b.ID() {
			if _, err := m.Probe(ctx, d.Name, probe.Ask); err != nil && ctx.Err() == nil {
				log.G(ctx).WithError(err).WithField("handler", d.Name).Debug("A handler cannot be probed")
			}
		}
	}
}

func adopted(face *router.Router, b *remote.Backend) bool {
	for _, known := range face.Backends() {
		if known.ID() == b.ID() {
			return true
		}
	}
	return false
}

// adopt makes all that are known the router's, once each has said what it has,
// or has had the time to.
func (r *remotes) adopt(ctx context.Context, face *router.Router) {
	close(r.recovered)
	patience := time.After(listPatience)
	for _, b := range r.pool.All() {
		select {
		case <-b.Asked():
		case <-patience:
			patience = time.After(0)
		case <-ctx.Done():
		}
		face.Adopt(b)
		r.changed(b)
	}
}

// backend is who runs the pods of a Definition, known to the router.
func (r *remotes) backend(d *handler.Definition, engine router.Backend) (router.Backend, error) {
	if d.Type != handler.CRI {
		return engine, nil
	}
	b, err := r.pool.For(d)
	if err != nil {
		return nil, err
	}
	select {
	case <-r.recovered: // the engine is the router's; before that, adopt does it
	default:
		return b, nil
	}
	if face := r.daemon.router.Load(); face != nil && !adopted(face, b) {
		face.Adopt(b)
		r.changed(b)
	}
	return b, nil
}

// record keeps on disk what the handlers of a plan lead to.
func (r *remotes) record(p *lifecycle.Plan) error { return r.pool.Record(definitionsOf(p)) }

// use lets those go that no handler needs any more.
func (r *remotes) use(p *lifecycle.Plan) {
	for _, b := range r.pool.Use(definitionsOf(p)) {
		if face := r.daemon.router.Load(); face != nil {
			face.Abandon(b)
		}
		r.mu.Lock()
		delete(r.known, b)
		r.mu.Unlock()
		// A handler that leads there again must find nothing of this one.
		if err := b.Close(true); err != nil {
			log.L.WithError(err).WithField("backend", b.ID()).Warn("A CRI daemon that no handler leads to was not let go cleanly")
		}
	}
}

func definitionsOf(p *lifecycle.Plan) []*handler.Definition {
	all := make([]*handler.Definition, 0, len(p.Entries))
	for _, e := range p.Entries {
		all = append(all, e.Definition)
	}
	return all
}

// checker asks CRI daemons how they are, and leaves other handlers to another.
type checker struct {
	lifecycle.Prober
	remotes *remotes
}

// Check implements lifecycle.Prober.
func (c checker) Check(ctx context.Context, d *handler.Definition, depth probe.Depth) (*probe.Runtime, error) {
	if d.Type == handler.CRI {
		return c.remotes.pool.Check(ctx, d)
	}
	return c.Prober.Check(ctx, d, depth)
}
