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

// PoolOptions are what a Pool needs.
type PoolOptions struct {
	// Dir, Instance, ListTimeout and StreamHosts are those of every Backend.
	Dir, Instance string
	ListTimeout   time.Duration
	StreamHosts   []string
	// CgroupDriver is this berth's own, that all pods of a node have to agree on.
	CgroupDriver func(context.Context) (runtimeapi.CgroupDriver, error)
	// Changed hears which Backend has changed. It must return at once.
	Changed func(*Backend)
}

// Pool has one Backend for each daemon that handlers lead to. All methods may be
// called at any time from any goroutine.
type Pool struct {
	options PoolOptions
	// life ends the Backends.
	life context.Context

	mu     sync.Mutex
	closed bool
	all    map[string]*member // by endpoint
	// leaving is closed when nothing is left of the Backend that an endpoint had.
	leaving map[string]chan struct{}
}

type member struct {
	*Backend
	// needed says that a handler in force leads here.
	needed bool
	// checks are under way; asked is when the last one ended that was made while
	// no handler in force led here: what it said may be about to be put in force.
	checks int
	asked  time.Time
}

// grace is how long a Backend stays after a check for a handler that has not come.
const grace = time.Minute

// NewPool makes a Pool with the daemons that have pods of an earlier run. ctx is
// for its log.
func NewPool(ctx context.Context, o PoolOptions) (*Pool, error) {
	if o.CgroupDriver == nil || o.Changed == nil {
		return nil, errors.New("remote: CgroupDriver or Changed is missing")
	}
	p := &Pool{options: o, life: context.WithoutCancel(ctx), all: map[string]*member{}, leaving: map[string]chan struct{}{}}
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

// get returns the member of an endpoint, and makes it if there is none. One that
// is leaving is waited for, because both would have the same files.
func (p *Pool) get(endpoint string, handlers []lastknown.Handler) (*member, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for left := p.leaving[endpoint]; left != nil; left = p.leaving[endpoint] {
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
	b, err := newBackend(Options{
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

// For returns the Backend of a handler's daemon. Nobody may call Leave before
// the handler is in force or was given up.
func (p *Pool) For(d *handler.Definition) (*Backend, error) {
	m, err := p.get(d.Endpoint, nil)
	if err != nil {
		return nil, err
	}
	return m.Backend, nil
}

// Has says whether b is in the Pool.
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

// Record keeps on disk which handlers lead to which daemon: before a pod can be
// made under one, so that the next berth knows of it. If it fails for one daemon,
// nothing has changed for any.
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
		if err := b.SetHandlers(handlers[endpoint]); err != nil {
			for _, f := range undo {
				err = errors.Join(err, f())
			}
			return fmt.Errorf("record the handlers of the CRI daemon at %s: %w", endpoint, err)
		}
		undo = append(undo, func() error { return b.SetHandlers(before) })
	}
	return nil
}

// Use tells which handlers are in force.
func (p *Pool) Use(definitions []*handler.Definition) {
	handlers := byEndpoint(definitions)
	p.mu.Lock()
	defer p.mu.Unlock()
	for endpoint, m := range p.all {
		if m.needed = len(handlers[endpoint]) > 0; m.needed {
			m.asked = time.Time{}
		}
	}
}

// Leave takes the Backends out of the Pool that no handler leads to and that have
// no pods. Each is then to be given to Left.
func (p *Pool) Leave() []*Backend {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []*Backend
	for endpoint, m := range p.all {
		if m.unused(time.Now()) {
			delete(p.all, endpoint)
			p.leaving[endpoint] = make(chan struct{})
			all = append(all, m.Backend)
		}
	}
	return all
}

// Left closes a Backend that Leave returned, and forgets all about it.
func (p *Pool) Left(b *Backend) error {
	err := b.Close(true)
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.leaving[b.endpoint])
	delete(p.leaving, b.endpoint)
	return err
}

// unused says whether nothing needs m, nor may come to need it soon.
func (m *member) unused(now time.Time) bool {
	if m.needed || m.checks > 0 || now.Sub(m.asked) < grace || m.making.Load() > 0 {
		return false
	}
	select {
	case <-m.Asked(): // it had the time to say what it has
	default:
		return false
	}
	return len(m.Inventory()) == 0
}

// Stranded says of each daemon that has pods and that no handler leads to any more
// why those cannot be reached, if they cannot.
func (p *Pool) Stranded() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var texts []string
	for _, endpoint := range slices.Sorted(maps.Keys(p.all)) {
		m := p.all[endpoint]
		if h := m.Health(); !m.needed && h.Phase != Ready {
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

// Close closes every Backend. What they have is known again to the next Pool.
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

// firstAnswer is how long a check waits for a daemon that was not asked yet.
const firstAnswer = 3 * time.Second

// Check says why a handler's daemon cannot run its pods, or which daemon it is.
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

// check is For, for a handler that may be in force later or never.
func (p *Pool) check(d *handler.Definition) (b *Backend, done func(), err error) {
	for {
		m, err := p.get(d.Endpoint, nil)
		if err != nil {
			return nil, nil, err
		}
		p.mu.Lock()
		if p.all[d.Endpoint] != m {
			p.mu.Unlock()
			continue // it has left
		}
		m.checks++
		p.mu.Unlock()
		return m.Backend, func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			if m.checks--; !m.needed {
				m.asked = time.Now()
			}
		}, nil
	}
}

func (n *node) suits(d *handler.Definition, driver runtimeapi.CgroupDriver) (*probe.Runtime, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.silentDriver && n.driver != driver {
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
