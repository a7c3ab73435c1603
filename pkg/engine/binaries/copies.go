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

// copies keeps the exact programs that pods are created with. New pods get the installed programs.
// Binaries are cached by the prober's answer, so an unchanged runtime costs a pod a few stat calls.
type copies struct {
	store  *keep.Store
	prober *probe.Prober
	log    *log.Entry
	// noExec is set if programs cannot be executed in the directory of copies.
	noExec bool
	// collect is called when copies may have become unused.
	collect func()

	// warmedUp is set once Inspect has handled the binaries of all handlers.
	warmedUp atomic.Bool
	// making is held for reading while copies are created, and for writing while some are removed.
	// It is taken before mu. A removal that cannot get it sets collectPending, and the next
	// creation repeats the removal.
	making         sync.RWMutex
	collectPending atomic.Bool

	runs singleflight.Group // by binariesKey

	mu   sync.Mutex
	now  map[string]*generation // by binariesKey: the binaries of new pods
	held map[string]int         // by directory: number of pods without a record yet
	soon *time.Timer            // runs collect
}

// generation is the set of binaries that a handler's new pods run on until these change. It is
// immutable.
type generation struct {
	asked    *probe.Runtime // answer of the installed binaries to the probe
	binaries []keep.Binary  // the handler's, then the one that its shim drives
	err      error          // set if there are none
	until    time.Time      // when to retry; zero is never
}

// retryKeep is the time until a failed copy is retried: the disk may be full.
const retryKeep = time.Minute

const warmUpTimeout = time.Minute

func newCopies(dir string, prober *probe.Prober, noExec bool, entry *log.Entry, collect func()) *copies {
	return &copies{
		store: keep.New(dir), prober: prober, log: entry, noExec: noExec, collect: collect,
		now: map[string]*generation{}, held: map[string]int{},
	}
}

// binariesKey is the same for handlers that run on the same binaries.
func binariesKey(d *handler.Definition) string {
	name, _ := d.ShimOptions["BinaryName"].(string)
	return strings.Join([]string{string(d.Type), d.Path, name}, "\x00")
}

// Prepare keeps the binaries of a handler in the background, for its next pod.
func (b *copies) Prepare(d *handler.Definition, rt *probe.Runtime) {
	if b.store.Has(d.Path) {
		return // the probed binary is itself a copy
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if g := b.now[binariesKey(d)]; g == nil || g.asked != rt {
		b.refresh(d, rt)
	}
}

// ForPod returns the runtime and the binaries for a new pod of a handler. The copies are held until
// release is called: by then the pod's record must name them.
func (b *copies) ForPod(ctx context.Context, d *handler.Definition) (_ *probe.Runtime, _ []keep.Binary, release func(), _ error) {
	const tries = 3 // a binary that keeps changing is being written
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

// Reuse is ForPod with the binaries of an existing or former pod. Its error is errdefs.ErrNotFound
// if they are gone.
func (b *copies) Reuse(ctx context.Context, d *handler.Definition, all []keep.Binary) (_ *probe.Runtime, _ []keep.Binary, release func(), err error) {
	g := &generation{binaries: all}
	b.making.RLock() // no copy is removed before it is held
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

// await returns the current generation and holds it. It waits for a refresh if necessary.
func (b *copies) await(ctx context.Context, d *handler.Definition, rt *probe.Runtime) (*generation, error) {
	for {
		g, running := b.take(d, rt)
		if g != nil {
			return g, nil
		}
		select {
		case <-running:
		case <-ctx.Done():
			return nil, fmt.Errorf("copy runtime binary %s: %w", d.Path, context.Cause(ctx))
		}
	}
}

// take holds the current generation if it is up to date, or returns the run that refreshes it.
func (b *copies) take(d *handler.Definition, rt *probe.Runtime) (*generation, <-chan singleflight.Result) {
	b.mu.Lock()
	defer b.mu.Unlock()
	g := b.now[binariesKey(d)]
	if g == nil || g.asked != rt || (!g.until.IsZero() && time.Now().After(g.until)) || !b.untouched(g) {
		return nil, b.refresh(d, rt)
	}
	if g.err != nil {
		delete(b.now, binariesKey(d)) // the next caller retries
		return g, nil
	}
	for _, one := range g.binaries {
		b.held[one.Dir()]++
	}
	return g, nil
}

func (b *copies) untouched(g *generation) bool {
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

// refresh starts a run that makes a generation, unless one is running. It has no caller's context,
// because a read from a dead network mount may never return.
func (b *copies) refresh(d *handler.Definition, rt *probe.Runtime) <-chan singleflight.Result {
	q := binariesKey(d)
	return b.runs.DoChan(q, func() (any, error) {
		b.making.RLock()
		g := b.generate(d, rt)
		b.mu.Lock()
		before := b.now[q]
		b.now[q] = g
		b.mu.Unlock()
		b.making.RUnlock()
		if before != nil && !maps.Equal(dirs(before.binaries), dirs(g.binaries)) {
			b.collectPending.Store(true)
		}
		go b.collectIfPending()
		return nil, nil
	})
}

func (b *copies) collectIfPending() {
	if b.collectPending.Swap(false) {
		b.collect()
	}
}

// collectDelay is longer than an unconfigured handler stays in the table after its last pod.
const collectDelay = 5 * time.Second

// CollectSoon schedules a collection after a pod was removed.
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

// tryExclusive calls f if no copy is being created. Otherwise it marks a collection as pending.
func (b *copies) tryExclusive(f func() error) error {
	b.collectPending.Store(true)
	if !b.making.TryLock() {
		return nil
	}
	b.collectPending.Store(false)
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
		g.binaries, why = each(ids, b.store.Recall) // already compared
		if why != nil {
			if g.binaries, why = each(ids, b.store.Copy); why == nil {
				why = b.compare(onBinaries(d, g.binaries, b.store), rt)
			}
		}
	}
	if why != nil && !errors.Is(why, keep.ErrChanged) {
		if !b.noExec { // newTools has logged it
			b.log.WithError(why).WithField("handler", d.Name).WithField("runtime", d.Path).
				Warn("Failed to keep runtime binary; its running pods use the installed one, which an upgrade replaces")
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
		b.store.Record(g.binaries[i])
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

// compare fails if the copies answer differently from the installed binaries: programs may look for
// files beside themselves, or be forbidden to run elsewhere.
func (b *copies) compare(copied *handler.Definition, installed *probe.Runtime) error {
	rt, err := b.prober.Probe(context.Background(), copied)
	// A process that was forked while the copy was written holds it open until it calls exec.
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

// needed returns the copies that are in use, perhaps without a record that names them: those of
// pods being created, and those for new pods of these handlers. It forgets the generations of other
// handlers. A caller that then removes copies must hold b.making for writing.
func (b *copies) needed(handlers []*handler.Definition) map[string]bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	wanted := map[string]bool{}
	for _, d := range handlers {
		wanted[binariesKey(d)] = true
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

// onBinaries returns d with the copies in place of the installed binaries.
func onBinaries(d *handler.Definition, all []keep.Binary, store *keep.Store) *handler.Definition {
	if len(dirs(all)) == 0 {
		return d // there are no copies
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
