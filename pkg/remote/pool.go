package remote

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/probe"
	"github.com/berth-cri/berth/pkg/remote/lastknown"
)

// PoolOptions configure a Pool.
type PoolOptions struct {
	// Dir, Instance, ListTimeout and StreamHosts apply to every Backend.
	Dir, Instance string
	ListTimeout   time.Duration
	StreamHosts   []string
	// CgroupDriver returns this berth's own driver; all pods of a node must use the same.
	CgroupDriver func(context.Context) (runtimeapi.CgroupDriver, error)
	// Changed is called with the Backend that has changed. It must return at once.
	Changed func(*Backend)
}

// Pool has one Backend for each daemon that handlers use. All methods may be called at any time
// from any goroutine.
type Pool struct {
	options PoolOptions
	// life is the base context of the Backends.
	life context.Context

	mu     sync.Mutex
	closed bool
	all    map[string]*member // by endpoint
	// closing has a channel for each endpoint with a Backend that is being closed. The channel is
	// closed afterwards.
	closing map[string]chan struct{}
}

type member struct {
	*Backend
	// inUse is set if a handler in force uses the Backend.
	inUse bool
	// checks counts the checks in progress. checkedAt is when the last check ended while no handler
	// in force used the Backend: the checked handler may be put in force next.
	checks    int
	checkedAt time.Time
}

// grace is how long a Backend stays after a check for a handler that was not put in force.
const grace = time.Minute

// NewPool returns a Pool with the daemons that an earlier run of berth recorded, because they may
// still have berth's pods. ctx provides the logger.
func NewPool(ctx context.Context, o PoolOptions) (*Pool, error) {
	if o.CgroupDriver == nil || o.Changed == nil {
		return nil, errors.New("remote: CgroupDriver or Changed is missing")
	}
	p := &Pool{options: o, life: context.WithoutCancel(ctx), all: map[string]*member{}, closing: map[string]chan struct{}{}}
	records, err := lastknown.ReadRecords(o.Dir)
	if err != nil {
		log.G(ctx).WithError(err).Error("Failed to read the list of backends with pods; pods of handlers that are no longer configured may be missing")
	}
	for _, r := range records {
		if _, err := p.get(r.Endpoint, r.Handlers); err != nil {
			return nil, errors.Join(err, p.Close())
		}
	}
	return p, nil
}

// get returns the member of an endpoint, and creates it if necessary. It waits for a former Backend
// to close, because both use the same files.
func (p *Pool) get(endpoint string, handlers []lastknown.Handler) (*member, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for left := p.closing[endpoint]; left != nil; left = p.closing[endpoint] {
		p.mu.Unlock()
		<-left
		p.mu.Lock()
	}
	if m := p.all[endpoint]; m != nil {
		return m, nil
	}
	if p.closed {
		return nil, fmt.Errorf("berth is stopping: %w", errdefs.ErrUnavailable)
	}
	var b *Backend
	var made sync.WaitGroup
	made.Add(1)
	b, err := newBackend(backendOptions{
		Endpoint: endpoint, Dir: p.options.Dir, Instance: p.options.Instance, ListTimeout: p.options.ListTimeout,
		StreamHosts: p.options.StreamHosts, Handlers: handlers,
		Changed: func() { made.Wait(); p.options.Changed(b) },
	})
	made.Done()
	if err != nil {
		return nil, err
	}
	b.Start(p.life)
	m := &member{Backend: b}
	p.all[endpoint] = m
	return m, nil
}

// For returns the Backend of a handler's daemon. TakeUnused must not be called before the handler
// is in force or is given up.
func (p *Pool) For(d *handler.Definition) (*Backend, error) {
	m, err := p.get(d.Endpoint, nil)
	if err != nil {
		return nil, err
	}
	return m.Backend, nil
}

// Has reports whether b is in the Pool.
func (p *Pool) Has(b *Backend) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.all[b.endpoint]
	return m != nil && m.Backend == b
}

// All returns every Backend, sorted by endpoint.
func (p *Pool) All() []*Backend {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]*Backend, 0, len(p.all))
	for _, endpoint := range slices.Sorted(maps.Keys(p.all)) {
		all = append(all, p.all[endpoint].Backend)
	}
	return all
}

// Record stores which handlers use which daemon, so that the next run of berth finds their pods.
// Call it before the handlers accept pods. If it fails for one daemon, it restores the others.
func (p *Pool) Record(definitions []*handler.Definition) error {
	handlers := byEndpoint(definitions)
	p.mu.Lock()
	defer p.mu.Unlock()
	var undo []func() error
	for endpoint, b := range p.all {
		if len(handlers[endpoint]) == 0 {
			continue
		}
		before := b.recorded()
		if err := b.setHandlers(handlers[endpoint]); err != nil {
			for _, f := range undo {
				err = errors.Join(err, f())
			}
			return fmt.Errorf("record the handlers of the CRI daemon at %s: %w", endpoint, err)
		}
		undo = append(undo, func() error { return b.setHandlers(before) })
	}
	return nil
}

// SetInForce sets the handlers that are in force.
func (p *Pool) SetInForce(definitions []*handler.Definition) {
	handlers := byEndpoint(definitions)
	p.mu.Lock()
	defer p.mu.Unlock()
	for endpoint, m := range p.all {
		if m.inUse = len(handlers[endpoint]) > 0; m.inUse {
			m.checkedAt = time.Time{}
		}
	}
}

// TakeUnused removes from the Pool the Backends that no handler uses and that have no pods. The
// caller must pass each to Discard.
func (p *Pool) TakeUnused() []*Backend {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []*Backend
	for endpoint, m := range p.all {
		if m.unused(time.Now()) {
			delete(p.all, endpoint)
			p.closing[endpoint] = make(chan struct{})
			all = append(all, m.Backend)
		}
	}
	return all
}

// Discard closes a Backend that TakeUnused returned, and removes its files.
func (p *Pool) Discard(b *Backend) error {
	err := b.Close(true)
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.closing[b.endpoint])
	delete(p.closing, b.endpoint)
	return err
}

// unused reports whether m has no pods, and no handler uses it or may soon use it.
func (m *member) unused(now time.Time) bool {
	if m.inUse || m.checks > 0 || now.Sub(m.checkedAt) < grace || m.creating.Load() > 0 {
		return false
	}
	select {
	case <-m.Asked(): // its inventory is known
	default:
		return false
	}
	return len(m.Inventory()) == 0
}

// Stranded returns a text for each daemon that has unreachable pods and that no handler uses any
// more, with the reason.
func (p *Pool) Stranded() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var texts []string
	for _, endpoint := range slices.Sorted(maps.Keys(p.all)) {
		m := p.all[endpoint]
		if h := m.Health(); !m.inUse && h.Phase != Ready {
			if pods := len(m.Inventory()); pods > 0 {
				texts = append(texts, fmt.Sprintf("pods that cannot be reached: %d; no handler uses %s any more, and it is %s: %s", pods, m.node.name, h.Phase, h.Reason))
			}
		}
	}
	return texts
}

func byEndpoint(definitions []*handler.Definition) map[string][]lastknown.Handler {
	all := map[string][]lastknown.Handler{}
	for _, d := range definitions {
		if d.Type == handler.CRI {
			all[d.Endpoint] = append(all[d.Endpoint], lastknown.Handler{Name: d.Name, Remote: d.RemoteHandler})
		}
	}
	return all
}

// Close closes every Backend. Their last known entries stay for the next Pool.
func (p *Pool) Close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.closed = true
	all := slices.Collect(maps.Values(p.all))
	p.mu.Unlock()
	var failed []error
	for _, b := range all {
		failed = append(failed, b.Close(false))
	}
	return errors.Join(failed...)
}

// firstAnswer is how long Check waits for the first check of a daemon.
const firstAnswer = 3 * time.Second

// Check identifies a handler's daemon, or returns why it cannot run the handler's pods.
func (p *Pool) Check(ctx context.Context, d *handler.Definition) (*probe.Runtime, error) {
	b, done, err := p.check(d)
	if err != nil {
		return nil, err
	}
	defer done()
	select {
	case <-b.Asked():
	case <-time.After(firstAnswer):
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if h := b.Health(); h.Phase == Down || h.Phase == Connected {
		return nil, fmt.Errorf("%s: %s", b.node.name, h.Reason)
	}
	driver, err := p.options.CgroupDriver(ctx)
	if err != nil {
		return nil, fmt.Errorf("determine berth's cgroup driver: %w", err)
	}
	return b.node.suits(d, driver)
}

// check is like For; the handler may never be put in force. done ends the check.
func (p *Pool) check(d *handler.Definition) (b *Backend, done func(), err error) {
	for {
		m, err := p.get(d.Endpoint, nil)
		if err != nil {
			return nil, nil, err
		}
		p.mu.Lock()
		if p.all[d.Endpoint] != m {
			p.mu.Unlock()
			continue // removed meanwhile
		}
		m.checks++
		p.mu.Unlock()
		return m.Backend, func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			if m.checks--; !m.inUse {
				m.checkedAt = time.Now()
			}
		}, nil
	}
}

func (n *node) suits(d *handler.Definition, driver runtimeapi.CgroupDriver) (*probe.Runtime, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.driverUnknown && n.driver != driver {
		return nil, fmt.Errorf("%s uses the cgroup driver %s, but berth uses %s, and a kubelet supports only one; set both to the same",
			n.name, driverName(n.driver), driverName(driver))
	}
	if known := n.status.GetRuntimeHandlers(); len(known) > 0 && !knows(known, d.RemoteHandler) {
		return nil, fmt.Errorf("%s has no handler %q; it has %s: correct remote_handler at %s", n.name, d.RemoteHandler, namesOf(known), d.Origin)
	}
	return &probe.Runtime{Path: d.Endpoint, Name: n.version.GetRuntimeName(), Version: n.version.GetRuntimeVersion()}, nil
}

func knows(handlers []*runtimeapi.RuntimeHandler, name string) bool {
	return slices.ContainsFunc(handlers, func(h *runtimeapi.RuntimeHandler) bool { return h.GetName() == name })
}

func namesOf(handlers []*runtimeapi.RuntimeHandler) string {
	var names []string
	for _, h := range handlers {
		names = append(names, fmt.Sprintf("%q", h.GetName()))
	}
	return strings.Join(names, ", ")
}

func driverName(d runtimeapi.CgroupDriver) string { return strings.ToLower(d.String()) }
