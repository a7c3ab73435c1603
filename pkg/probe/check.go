package probe

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/singleflight"

	"github.com/berth-cri/berth/pkg/config/hostfiles"
	"github.com/berth-cri/berth/pkg/handler"
)

// Checker checks whether handlers can run pods on this machine.
type Checker struct {
	prober *Prober
	looks  singleflight.Group // by the digest of a Definition

	mu   sync.Mutex
	sums map[string]sum // by path
}

type sum struct {
	of     Identity
	sha256 string
}

// lookTimeout bounds the inspection of files.
const lookTimeout = 2 * time.Second

// NewChecker returns a Checker that queries runtimes through p.
func NewChecker(p *Prober) *Checker {
	return &Checker{prober: p, sums: map[string]sum{}}
}

// Check verifies all files that the handler needs on this machine, and queries its runtime if that
// is new or if depth requires it. A handler without changes costs a few stats. The error is the
// reason why the handler cannot run pods. A candidate's Runtime has the SHA256, and is also
// returned with the error of a failed query unless the error is inconclusive (see Transient).
func (c *Checker) Check(ctx context.Context, d *handler.Definition, depth Depth) (*Runtime, error) {
	ask := c.prober.Probe
	if depth > Look {
		ask = c.prober.Ask
	}
	rt, err := ask(ctx, d)
	// A missing file is a better reason than a failed run of the binary.
	if missing := c.missing(ctx, d); missing != nil {
		return nil, missing
	}
	if d.Binary != handler.BinaryCandidate {
		return rt, err
	}
	if err != nil {
		return c.fileOnly(d, err), err
	}
	sum, err := c.sha256Of(rt.Identity)
	if err != nil {
		return nil, err
	}
	with := *rt
	with.SHA256 = sum
	return &with, nil
}

// fileOnly returns the path, identity and SHA256 of a binary that could not be queried. It returns
// nil after a transient error, because the file may be incomplete.
func (c *Checker) fileOnly(d *handler.Definition, why error) *Runtime {
	if Transient(why) {
		return nil
	}
	id, err := Identify(d.Path, d.Companions...)
	if err != nil {
		return nil
	}
	sum, err := c.sha256Of(id)
	if err != nil {
		return nil
	}
	return &Runtime{Path: d.Path, Identity: id, SHA256: sum}
}

// sha256Of returns the SHA256 of a binary, which is read once for each identity.
func (c *Checker) sha256Of(id Identity) (string, error) {
	c.mu.Lock()
	known := c.sums[id.Path]
	c.mu.Unlock()
	if known.of.Same(id) {
		return known.sha256, nil
	}
	hex, err := id.SHA256()
	if err != nil {
		return "", fmt.Errorf("runtime binary: %w: %w", err, errdefs.ErrUnavailable)
	}
	if now, err := id.Again(); err != nil || !now.Same(id) {
		return "", transient{fmt.Errorf("runtime binary %s changed while it was read; it is probed again: %w", id.Path, errdefs.ErrUnavailable)}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sums[id.Path] = sum{id, hex}
	return hex, nil
}

// missing returns an error if a file that the handler needs is missing. A goroutine inspects the
// files, at most one for each Definition: on a dead network mount the inspection may never end.
func (c *Checker) missing(ctx context.Context, d *handler.Definition) error {
	look := c.looks.DoChan(d.Digest(), func() (any, error) { return nil, hostfiles.Lacking(d) })
	patience := time.NewTimer(lookTimeout)
	defer patience.Stop()
	select {
	case found := <-look:
		return found.Err
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-patience.C:
		return transient{fmt.Errorf("a file of handler %q does not respond to stat: is it on an unreachable network file system? %w",
			d.Name, errdefs.ErrUnavailable)}
	}
}
