package daemon

import (
	"context"
	"crypto/rand"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/containerd/log"
	"k8s.io/apimachinery/pkg/util/wait"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/image"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/lifecycle"
	"github.com/berth-cri/berth/pkg/probe"
	"github.com/berth-cri/berth/pkg/remote"
	"github.com/berth-cri/berth/pkg/router"
)

// listPatience is how long lists wait for a CRI daemon before they use its last known entries.
const listPatience = 2 * time.Second

// unusedInterval is the time between checks for unused CRI daemons. A plan removes them, too, but
// the last pod of a daemon may be removed without a new plan.
const unusedInterval = time.Second

var (
	_ router.Responder = (*remote.Backend)(nil)
	_ router.Forwarder = (*remote.Backend)(nil)
)

// remotes keeps the router and the handlers' states up to date with the CRI daemons of handlers.
type remotes struct {
	registry *handler.Registry[router.Backend]
	pods     *router.Pods
	pool     *remote.Pool
	instance string
	// recovered is closed once Recover has returned.
	recovered <-chan struct{}
	life      context.Context // ends with the teardown
	working   sync.WaitGroup

	// members is held while a plan is applied, and while a backend is added to or removed from the
	// router, so that a removed backend is not added again.
	members sync.Mutex

	mu sync.Mutex
	// ended is set at the teardown: no more goroutines are started.
	ended bool
	// wakes has the channels that wake the goroutines of the backends (followBackend).
	wakes map[*remote.Backend]chan struct{}

	// handlers is set before following is closed.
	handlers  *lifecycle.Manager
	following chan struct{}
}

// newRemotes starts with the CRI daemons that have pods of an earlier run.
func (d *Daemon) newRemotes(ctx context.Context, n *node) (*remotes, error) {
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	r := &remotes{
		registry: n.registry, pods: n.pods, instance: rand.Text(), recovered: n.recovered, life: life,
		wakes: map[*remote.Backend]chan struct{}{}, following: make(chan struct{}),
	}
	end := func() {
		stop()
		r.mu.Lock()
		r.ended = true
		r.mu.Unlock()
		r.working.Wait()
	}
	pool, err := remote.NewPool(ctx, remote.PoolOptions{
		Dir: filepath.Join(d.options.Config.Engine.Root, "remote"), Instance: r.instance, ListTimeout: listPatience,
		StreamHosts:  d.options.Config.Streaming.PermittedRemoteHosts,
		CgroupDriver: func(ctx context.Context) (runtimeapi.CgroupDriver, error) { return r.driver(ctx, n.engine) },
		Changed:      r.changed,
	})
	if err != nil {
		end()
		return nil, err
	}
	r.pool = pool
	r.working.Go(r.watchUnused)
	d.teardown.add("CRI daemons behind sockets", func(context.Context) error {
		end()
		return pool.Close()
	})
	return r, nil
}

func (r *remotes) driver(ctx context.Context, engine Engine) (runtimeapi.CgroupDriver, error) {
	select {
	case <-r.recovered:
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	c, err := engine.RuntimeConfig(ctx, &runtimeapi.RuntimeConfigRequest{})
	return c.GetLinux().GetCgroupDriver(), err
}

// changed implements remote.PoolOptions.Changed.
func (r *remotes) changed(b *remote.Backend) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return
	}
	wake := r.wakes[b]
	if wake == nil {
		wake = make(chan struct{}, 1)
		r.wakes[b] = wake
		r.working.Go(func() { r.followBackend(b, wake) })
	}
	select {
	case wake <- struct{}{}:
	default: // a wake is already buffered
	}
}

// reconcile updates the router's owners with the backend's objects.
func (r *remotes) reconcile(ctx context.Context, b *remote.Backend) {
	r.members.Lock()
	defer r.members.Unlock()
	if r.pool.Has(b) && r.adopted(b) {
		r.compare(ctx, b)
	}
}

func (r *remotes) compare(ctx context.Context, b *remote.Backend) {
	if err := r.pods.Reconcile(b); err != nil {
		log.G(ctx).WithError(err).WithField("backend", b.ID()).Error("Backend has pods that belong to another backend")
		b.SetConflict(err)
	}
}

// watchUnused removes unused backends, at every unusedInterval.
func (r *remotes) watchUnused() {
	select {
	case <-r.recovered:
	case <-r.life.Done():
		return
	}
	_ = wait.PollUntilContextCancel(r.life, unusedInterval, false, func(context.Context) (bool, error) {
		r.members.Lock()
		defer r.members.Unlock()
		r.removeUnused()
		return false, nil
	})
}

// removeUnused removes unused backends from the router; members is held. A handler that later leads
// to the same socket must find no state of the removed backend.
func (r *remotes) removeUnused() {
	for _, b := range r.pool.TakeUnused() {
		r.pods.Abandon(b)
		if err := r.pool.Discard(b); err != nil {
			log.L.WithError(err).WithField("backend", b.ID()).Warn("Failed to disconnect unused backend")
		}
		r.changed(b) // ends the goroutine that follows b
	}
}

func (r *remotes) adopted(b *remote.Backend) bool {
	return slices.ContainsFunc(r.pods.Backends(), func(known router.Backend) bool { return known.ID() == b.ID() })
}

// adopt adds all backends of the pool to the router, once each has listed its objects or exceeded
// listPatience. A backend that was never listed has no last known entries, and the kubelet would
// create its unlisted pods again: adopt waits for its first check, which soon succeeds or fails.
func (r *remotes) adopt(ctx context.Context) {
	patience := time.After(listPatience)
	for _, b := range r.pool.All() {
		wait := patience
		if _, listed := b.Age(); !listed {
			wait = nil
		}
		select {
		case <-b.Asked():
		case <-wait:
			patience = time.After(0)
		case <-ctx.Done():
		}
		r.add(b)
	}
}

// add adds a backend to the router, unless it has left the pool.
func (r *remotes) add(b *remote.Backend) {
	r.members.Lock()
	defer r.members.Unlock()
	if !r.pool.Has(b) {
		return
	}
	r.pods.Adopt(b)
	r.compare(r.life, b) // before a pod can be listed twice
	r.changed(b)
}

// backend returns the backend that runs the pods of a Definition, and adds it to the router once
// pods are recovered; members is held.
func (r *remotes) backend(d *handler.Definition, engine router.Backend) (router.Backend, error) {
	if d.Type != handler.CRI {
		return engine, nil
	}
	b, err := r.pool.For(d)
	if err != nil {
		return nil, err
	}
	select {
	case <-r.recovered: // before that, adopt adds b
	default:
		return b, nil
	}
	if !r.adopted(b) {
		r.pods.Adopt(b)
		r.changed(b)
		r.sendPodCIDR(b)
	}
	return b, nil
}

// sendPodCIDR sends a late backend the pod CIDR that the others have received, in the background:
// an unresponsive backend receives the CIDR once it answers.
func (r *remotes) sendPodCIDR(b *remote.Backend) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return
	}
	r.working.Go(func() {
		if err := r.pods.ApplySettings(r.life, b); err != nil && r.life.Err() == nil {
			log.G(r.life).WithError(err).WithField("backend", b.ID()).Warn("Failed to pass the pod CIDR to backend")
		}
	})
}

// use passes the current handlers to the pool, and removes unused backends; members is held.
func (r *remotes) use(p *lifecycle.Plan) {
	r.pool.SetInForce(definitionsOf(p))
	r.removeUnused()
}

func definitionsOf(p *lifecycle.Plan) []*handler.Definition {
	all := make([]*handler.Definition, 0, len(p.Entries))
	for _, e := range p.Entries {
		all = append(all, e.Definition)
	}
	return all
}

// checker checks the health of CRI daemons. For other handlers it runs the Prober, and then checks
// the snapshotter.
type checker struct {
	Prober
	pool   *remote.Pool
	images *image.Store // may be nil
}

func (c checker) Check(ctx context.Context, d *handler.Definition, depth probe.Depth) (*probe.Runtime, error) {
	if d.Type == handler.CRI {
		return c.pool.Check(ctx, d)
	}
	rt, err := c.Prober.Check(ctx, d, depth)
	if err == nil && c.images != nil {
		err = c.images.Ready(d.Snapshotter)
	}
	return rt, err
}
