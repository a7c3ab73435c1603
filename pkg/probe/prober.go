// Package probe queries a runtime binary for its name, its version, its OCI version and its
// features.
//
// A binary is queried once for each Identity, so that a probe before every pod costs a few stats. A
// feature that a runtime does not report counts as absent: the Supports methods are conservative.
// Failures are not cached.
package probe

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"golang.org/x/sync/singleflight"

	"github.com/berth-cri/berth/pkg/handler"
)

// probeTimeout bounds one whole probe. Runtimes answer in a few milliseconds; the bound is for hung
// runtimes and for slow network file systems.
const probeTimeout = 10 * time.Second

// Prober queries runtimes and caches the answers. It is safe for concurrent use; callers that query
// the same binary share one probe.
type Prober struct {
	timeout time.Duration
	shims   ShimReader // nil queries shims for their version only
	dirs    []string   // searched for the runtimes of shims

	flights singleflight.Group // by question

	mu     sync.Mutex
	answer func(*handler.Definition, *Runtime)
	known  map[string]*Runtime // by subject.key
}

// New returns a Prober with an empty cache. Without a ShimReader it queries shims for their version
// only. The runtimes that shims drive are searched in dirs, by default hostfiles.SearchDirs().
func New(shims ShimReader, dirs ...string) *Prober {
	return &Prober{dirs: dirs, timeout: probeTimeout, shims: shims, known: map[string]*Runtime{}}
}

// Probe returns the properties of a handler's binary. The Runtime is shared: do not change it. The
// error class is Unavailable for a binary that is missing, does not run, hangs, or does not answer
// like a runtime; the error names the binary and a remedy. The end of ctx ends the caller's wait,
// not the probe.
func (p *Prober) Probe(ctx context.Context, def *handler.Definition) (*Runtime, error) {
	return p.await(ctx, def, false)
}

// Ask is Probe without the cache, because the answer may depend on more than the binary. An
// unchanged answer returns the same Runtime. A failure clears the cached answer, unless it is
// inconclusive (see Transient).
func (p *Prober) Ask(ctx context.Context, def *handler.Definition) (*Runtime, error) {
	return p.await(ctx, def, true)
}

func (p *Prober) await(ctx context.Context, def *handler.Definition, anew bool) (*Runtime, error) {
	rt, shared, err := p.ask(ctx, def, anew)
	if err != nil || !shared {
		return rt, err
	}
	// The shared probe may have read a binary that was replaced before this call. The second probe
	// reads the new one, or uses the cache if the binary is unchanged.
	rt, _, err = p.ask(ctx, def, false)
	return rt, err
}

// ask shares one probe among the callers of a question. The stat is part of the probe: on a dead
// network mount stat never returns, and must block only one goroutine however many callers ask.
func (p *Prober) ask(ctx context.Context, def *handler.Definition, anew bool) (_ *Runtime, shared bool, _ error) {
	question := strings.Join(append([]string{string(def.Type), def.Path, binaryName(def), def.Platform, strconv.FormatBool(anew)}, def.Companions...), "\x00")
	answer := p.flights.DoChan(question, func() (any, error) {
		return p.run(context.WithoutCancel(ctx), def, anew) // other callers may wait for the answer
	})
	patience := time.NewTimer(p.timeout + 2*pipeGrace)
	defer patience.Stop()
	select {
	case a := <-answer:
		rt, _ := a.Val.(*Runtime)
		return rt, a.Shared, a.Err
	case <-ctx.Done():
		return nil, false, context.Cause(ctx)
	case <-patience.C:
		return nil, false, transient{fmt.Errorf("%s does not respond to stat: is it on an unreachable network file system? Remount it or correct the handler's runtime_path: %w",
			def.Path, errdefs.ErrUnavailable)}
	}
}

// OnAnswer registers f for every new answer, after it was cached. f must not block. A second call
// replaces f.
func (p *Prober) OnAnswer(f func(*handler.Definition, *Runtime)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answer = f
}

func (p *Prober) run(ctx context.Context, def *handler.Definition, anew bool) (*Runtime, error) {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	s, err := newSubject(def, p.dirs)
	if err != nil {
		return nil, err
	}
	rt, fresh, err := p.learn(ctx, s, anew)
	p.mu.Lock()
	tell := p.answer
	p.mu.Unlock()
	if fresh && tell != nil {
		tell(def, rt)
	}
	return rt, err
}

// learn runs the binary and caches the answer under its identity, if that is the same before and
// after the run. A binary that was replaced during the run is queried again next time.
func (p *Prober) learn(ctx context.Context, s subject, anew bool) (_ *Runtime, fresh bool, _ error) {
	old := p.cached(s)
	if old != nil && !anew {
		return old, false, nil
	}
	before, err := s.identify(nil)
	if err != nil {
		return nil, false, err
	}
	rt, err := s.ask(ctx, p.shims)
	if err == nil {
		err = rt.identify(ctx, s.path, before)
	}
	if err != nil {
		if !Transient(err) {
			p.mu.Lock()
			delete(p.known, s.key())
			p.mu.Unlock()
		}
		return nil, false, err
	}
	if old != nil && reflect.DeepEqual(old, rt) {
		return old, false, nil
	}
	after, err := s.identify(rt.Needs)
	if err != nil {
		return nil, false, err
	}
	if fresh = equal(rt.identities(), after); fresh {
		p.mu.Lock()
		p.known[s.key()] = rt
		p.mu.Unlock()
	}
	log.G(ctx).WithFields(log.Fields{
		"path": rt.Path, "name": rt.Name, "version": rt.Version, "oci": rt.OCIVersion(), "features": rt.Features != nil,
	}).Debug("Runtime probed")
	return rt, fresh, nil
}

// cached returns the cached answer if the program and its companions are unchanged.
func (p *Prober) cached(s subject) *Runtime {
	p.mu.Lock()
	rt := p.known[s.key()]
	p.mu.Unlock()
	if rt == nil {
		return nil
	}
	if ids, err := s.identify(rt.Needs); err != nil || !equal(rt.identities(), ids) {
		return nil
	}
	return rt
}

func equal(a, b []Identity) bool { return slices.EqualFunc(a, b, Identity.Same) }

// subject is the target of a query: a runtime, or a shim and the runtime it drives.
type subject struct {
	kind handler.Type
	path string
	// runtime is the OCI runtime that a containerd runc shim drives, otherwise empty.
	runtime string
	// companions are those that the handler names.
	companions []string
	// wasmImages means that the handler's images contain WebAssembly. It classifies a shim of an
	// unknown kind.
	wasmImages bool
}

func newSubject(def *handler.Definition, dirs []string) (subject, error) {
	s := subject{kind: def.Type, path: def.Path, companions: def.Companions, wasmImages: def.Platform == handler.PlatformWasm}
	if def.Type != handler.Shim || !handler.IsRuncShim(def.Path) {
		return s, nil
	}
	var err error
	s.runtime, err = drivenRuntime(s.path, binaryName(def), dirs)
	return s, err
}

// binaryName returns the runtime that the handler configures for its shim, or "".
func binaryName(def *handler.Definition) string {
	name, _ := def.ShimOptions["BinaryName"].(string)
	return name
}

func (s subject) key() string {
	return strings.Join(append([]string{string(s.kind), s.path, s.runtime, strconv.FormatBool(s.wasmImages)}, s.companions...), "\x00")
}

// identify returns the identity of the binary, followed by that of the runtime that a shim drives.
// needs are the companions that the probe found.
func (s subject) identify(needs []string) ([]Identity, error) {
	id, err := Identify(s.path, s.companions...)
	if err != nil {
		return nil, err
	}
	ids := []Identity{id}
	if s.runtime != "" {
		if id, err = Identify(s.runtime); err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	ids[len(ids)-1], err = id.with(needs)
	return ids, err
}

func (s subject) ask(ctx context.Context, shims ShimReader) (*Runtime, error) {
	if s.kind == handler.Shim {
		return askShim(ctx, s, shims)
	}
	return askRuntime(ctx, s.path)
}
