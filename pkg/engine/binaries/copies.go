package binaries

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"golang.org/x/sync/singleflight"

	"github.com/berth-cri/berth/pkg/engine/keep"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/probe"
)

// copies keeps the very programs that pods are made with. New pods take those
// that are installed now; what is known of them is known by what the prober
// answered, so a pod whose runtime did not change costs a few stats.
type copies struct {
	store  *keep.Store
	prober *probe.Prober
	log    *log.Entry
	// noExec says that copies cannot be run where they would be.
	noExec bool
	// collect is called when there may be copies that nobody needs.
	collect func()

	// takenUp is set when new pods of all handlers have been thought of.
	takenUp atomic.Bool
	// making is held for reading while copies are made, and for writing while some
	// are removed. It is taken before mu. Who cannot have it to remove some leaves
	// that to who makes some, by setting behind.
	making sync.RWMutex
	behind atomic.Bool

	flights singleflight.Group // by question

	mu   sync.Mutex
	now  map[string]*generation // by question: what new pods run on
	held map[string]int         // by directory: pods that have no record yet
	soon *time.Timer            // collects
}

// generation is what the pods of a handler run on from one change of its binaries
// to the next. It is never changed.
type generation struct {
	asked    *probe.Runtime // what the installed binaries answered
	binaries []keep.Binary  // that of the handler, then the one that a shim drives
	err      error          // why there is none
	until    time.Time      // when to try again, if that is set
}

// retryKeep is how long pods go without a copy before it is tried again to make
// one: the disk may be full.
const retryKeep = time.Minute

const takeUpTimeout = time.Minute

func newCopies(dir string, prober *probe.Prober, noExec bool, entry *log.Entry, collect func()) *copies {
	return &copies{
		store: keep.New(dir), prober: prober, log: entry, noExec: noExec, collect: collect,
		now: map[string]*generation{}, held: map[string]int{},
	}
}

// question tells handlers apart that run on different binaries.
func question(d *handler.Definition) string {
	name, _ := d.ShimOptions["BinaryName"].(string)
	return strings.Join([]string{string(d.Type), d.Path, name}, "\x00")
}

// Prepare makes what a new pod of that handler would run on, in the background.
func (b *copies) Prepare(d *handler.Definition, rt *probe.Runtime) {
	if b.store.Has(d.Path) {
		return // a copy was asked
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if g := b.now[question(d)]; g == nil || g.asked != rt {
		b.fly(d, rt)
	}
}

// ForPod returns what a new pod of that handler runs on. The copies stay at least
// until release is called: by then the pod's record must name them.
func (b *copies) ForPod(ctx context.Context, d *handler.Definition) (_ *probe.Runtime, _ []keep.Binary, release func(), _ error) {
	const tries = 3 // a binary that changes all the time is being written
	for try := 1; ; try++ {
		rt, err := b.prober.Probe(ctx, d)
		if err != nil {
			return nil, nil, nil, err
		}
		g, err := b.await(ctx, d, rt)
		if err != nil {
			return nil, nil, nil, err
		}
		if g.err == nil {
			return rt, g.binaries, func() { b.release(g) }, nil
		}
		if !errors.Is(g.err, keep.ErrChanged) || try == tries {
			return nil, nil, nil, fmt.Errorf("runtime of handler %q: %w", d.Name, g.err)
		}
	}
}

// Again is ForPod for a pod that must run on what another pod runs on, or ran. It is
// errdefs.ErrNotFound if that is gone.
func (b *copies) Again(ctx context.Context, d *handler.Definition, all []keep.Binary) (_ *probe.Runtime, _ []keep.Binary, release func(), err error) {
	g := &generation{binaries: all}
	b.making.RLock() // so that none is removed before it is held
	b.mu.Lock()
	for _, one := range all {
		b.held[one.Dir()]++
	}
	b.mu.Unlock()
	b.making.RUnlock()
	defer func() {
		if err != nil {
			b.release(g)
		}
	}()
	for _, one := range all {
		if one.Kept == "" || b.store.Verify(one) != nil {
			return nil, nil, nil, fmt.Errorf("no kept copy of %s %s: %w", one.Path, one.Version, errdefs.ErrNotFound)
		}
	}
	rt, err := b.prober.Probe(ctx, onBinaries(d, all, b.store))
	if err != nil {
		return nil, nil, nil, err
	}
	return rt, all, func() { b.release(g) }, nil
}

// await returns what those binaries have become, and holds it.
func (b *copies) await(ctx context.Context, d *handler.Definition, rt *probe.Runtime) (*generation, error) {
	for {
		g, flight := b.take(d, rt)
		if g != nil {
			return g, nil
		}
		select {
		case <-flight:
		case <-ctx.Done():
			return nil, fmt.Errorf("copy runtime binary %s: %w", d.Path, context.Cause(ctx))
		}
	}
}

// take holds what is known to be right, or returns the flight that finds out.
func (b *copies) take(d *handler.Definition, rt *probe.Runtime) (*generation, <-chan singleflight.Result) {
	b.mu.Lock()
	defer b.mu.Unlock()
	g := b.now[question(d)]
	if g == nil || g.asked != rt || (!g.until.IsZero() && time.Now().After(g.until)) || !b.right(g) {
		return nil, b.fly(d, rt)
	}
	if g.err != nil {
		delete(b.now, question(d)) // who comes next finds out again
		return g, nil
	}
	for _, one := range g.binaries {
		b.held[one.Dir()]++
	}
	return g, nil
}

func (b *copies) right(g *generation) bool {
	return !slices.ContainsFunc(g.binaries, func(one keep.Binary) bool { return one.Kept != "" && !b.store.Untouched(one) })
}

func (b *copies) release(g *generation) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, one := range g.binaries {
		if b.held[one.Dir()]--; b.held[one.Dir()] == 0 {
			delete(b.held, one.Dir())
		}
	}
}

// fly makes a generation, unless one is being made. It has no caller's context: what
// lies on a dead network mount may take for ever.
func (b *copies) fly(d *handler.Definition, rt *probe.Runtime) <-chan singleflight.Result {
	q := question(d)
	return b.flights.DoChan(q, func() (any, error) {
		b.making.RLock()
		g := b.generate(d, rt)
		b.mu.Lock()
		before := b.now[q]
		b.now[q] = g
		b.mu.Unlock()
		b.making.RUnlock()
		if before != nil && !maps.Equal(dirs(before.binaries), dirs(g.binaries)) {
			b.behind.Store(true)
		}
		go b.letCollect()
		return nil, nil
	})
}

func (b *copies) letCollect() {
	if b.behind.Swap(false) {
		b.collect()
	}
}

// collectDelay is longer than a handler that is no longer configured stays in the
// table after its last pod.
const collectDelay = 5 * time.Second

// CollectSoon is called when a pod is gone.
func (b *copies) CollectSoon() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.soon != nil {
		return
	}
	b.soon = time.AfterFunc(collectDelay, func() {
		b.mu.Lock()
		b.soon = nil
		b.mu.Unlock()
		b.collect()
	})
}

// without calls f while no copy is being made, if that can be now; if not, later.
func (b *copies) without(f func() error) error {
	b.behind.Store(true)
	if !b.making.TryLock() {
		return nil
	}
	b.behind.Store(false)
	defer b.making.Unlock()
	return f()
}

func (b *copies) generate(d *handler.Definition, rt *probe.Runtime) *generation {
	g := &generation{asked: rt}
	ids := []probe.Identity{rt.Identity}
	versions := []string{rt.Version}
	if rt.Driven != nil {
		ids, versions = append(ids, *rt.Driven), []string{rt.ShimVersion, rt.Version}
	}
	why := errNoExec
	if !b.noExec {
		g.binaries, why = each(ids, b.store.Recall) // they were compared before
		if why != nil {
			if g.binaries, why = each(ids, b.store.Copy); why == nil {
				why = b.compare(onBinaries(d, g.binaries, b.store), rt)
			}
		}
	}
	if why != nil && !errors.Is(why, keep.ErrChanged) {
		if !b.noExec { // that was said at the start
			b.log.WithError(why).WithField("handler", d.Name).WithField("runtime", d.Path).
				Warn("Failed to keep runtime binary; its pods run on the installed one, and an upgrade changes it under them")
			g.until = time.Now().Add(retryKeep)
		}
		g.binaries, why = each(ids, b.store.Hash)
	}
	if why != nil {
		g.binaries, g.err = nil, why
		return g
	}
	for i := range g.binaries {
		g.binaries[i].Version = versions[i]
		b.store.Know(g.binaries[i])
	}
	return g
}

var errNoExec = errors.New("binaries cannot be executed in the root directory")

func each(ids []probe.Identity, do func(probe.Identity) (keep.Binary, error)) ([]keep.Binary, error) {
	all := make([]keep.Binary, len(ids))
	for i, id := range ids {
		var err error
		if all[i], err = do(id); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// compare fails when copies do not answer as the installed binaries do: programs
// that look for others beside themselves, or are not allowed to run elsewhere.
func (b *copies) compare(copied *handler.Definition, installed *probe.Runtime) error {
	rt, err := b.prober.Probe(context.Background(), copied)
	// A child that was forked while the copy was written has it open, until it
	// executes what it is for.
	for try := 0; errors.Is(err, syscall.ETXTBSY) && try < 20; try++ {
		time.Sleep(10 * time.Millisecond)
		rt, err = b.prober.Probe(context.Background(), copied)
	}
	if err != nil {
		return fmt.Errorf("the kept binary does not run: %w", err)
	}
	if rt.Name != installed.Name || rt.Version != installed.Version || rt.ShimVersion != installed.ShimVersion ||
		(rt.Features == nil) != (installed.Features == nil) {
		return fmt.Errorf("the kept binary reports %q %s instead of %q %s: %w", rt.Name, rt.Version, installed.Name, installed.Version, errdefs.ErrFailedPrecondition)
	}
	return nil
}

func dirs(all []keep.Binary) map[string]bool {
	names := map[string]bool{}
	for _, b := range all {
		if b.Kept != "" {
			names[b.Dir()] = true
		}
	}
	return names
}

// needed are the copies of which no record may say so: those of pods in the
// making, and those that new pods of these handlers take. What new pods of others
// took is forgotten. The caller has b.making for writing if it then removes some.
func (b *copies) needed(handlers []*handler.Definition) map[string]bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	wanted := map[string]bool{}
	for _, d := range handlers {
		wanted[question(d)] = true
	}
	maps.DeleteFunc(b.now, func(q string, _ *generation) bool { return !wanted[q] })
	names := map[string]bool{}
	for _, g := range b.now {
		maps.Copy(names, dirs(g.binaries))
	}
	for name := range b.held {
		names[name] = true
	}
	return names
}

// onBinaries is d with the copies in place of the installed binaries.
func onBinaries(d *handler.Definition, all []keep.Binary, store *keep.Store) *handler.Definition {
	if len(dirs(all)) == 0 {
		return d // where no copy runs
	}
	on := *d
	on.Path = store.Abs(all[0])
	if len(all) > 1 {
		on.ShimOptions = map[string]any{}
		maps.Copy(on.ShimOptions, d.ShimOptions)
		on.ShimOptions["BinaryName"] = store.Abs(all[1])
	}
	return &on
}
