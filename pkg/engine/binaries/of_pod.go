package binaries

import (
	"context"
	"errors"
	"time"

	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/engine/keep"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/probe"
)

// Runtimes knows which binaries a pod runs on.
type Runtimes struct {
	binaries *copies
	log      *log.Entry
}

// NewRuntimes run pods on copies.
func NewRuntimes(b *copies, entry *log.Entry) *Runtimes { return &Runtimes{b, entry} }

// Of is the Definition of s with the binaries that it was made with in
// place of those that are installed now.
func (r *Runtimes) Of(s *pod.SandboxSpec) *handler.Definition {
	if len(s.Pinned.Binaries) == 0 {
		return s.Definition
	}
	return onBinaries(s.Definition, s.Pinned.Binaries, r.binaries.store)
}

// BinaryInfo is what a verbose status says about a binary.
type BinaryInfo struct {
	Path    string `json:"path"`
	Runs    string `json:"runs"`
	SHA256  string `json:"sha256"`
	Version string `json:"version,omitempty"`
}

// Told is what may be shown of the binaries of s.
func (r *Runtimes) Told(s *pod.SandboxSpec) []BinaryInfo {
	return r.shown(s.Pinned.Binaries)
}

func (r *Runtimes) shown(binaries []keep.Binary) []BinaryInfo {
	var all []BinaryInfo
	for _, one := range binaries {
		all = append(all, BinaryInfo{Path: one.Path, Runs: r.binaries.store.Abs(one), SHA256: one.SHA256, Version: one.Version})
	}
	return all
}

// Installed is what a new pod of a handler would be made with at this moment.
func (r *Runtimes) Installed(ctx context.Context, d *handler.Definition) ([]BinaryInfo, error) {
	_, all, release, err := r.binaries.ForPod(ctx, d)
	if err != nil {
		return nil, err
	}
	defer release()
	return r.shown(all), nil
}

// Need is for who begins something new with the binaries of s: a copy that
// was touched is read, and made again if it is damaged.
func (r *Runtimes) Need(s *pod.Sandbox) error {
	for _, one := range s.Spec().Pinned.Binaries {
		if one.Kept == "" {
			tellChanged(r.log, s, one)
			continue
		}
		if r.binaries.store.Untouched(one) {
			continue
		}
		if err := r.binaries.verify(one); err != nil {
			return err
		}
	}
	return nil
}

// Mend is need for who ends something, which must be possible
// without them as well.
func (r *Runtimes) Mend(s *pod.Sandbox) {
	if err := r.Need(s); err != nil {
		r.log.WithError(err).WithField("sandbox", s.ID()).Error("Stopping pod although its kept runtime is unavailable")
	}
}

// tellChanged says once that s has lost its binary.
func tellChanged(entry *log.Entry, s *pod.Sandbox, one keep.Binary) {
	if keep.Changed(one) {
		s.Lost.Do(func() {
			entry.WithField("sandbox", s.ID()).WithField("runtime", one.Path).WithField("sha256", one.SHA256).
				Warn("Runtime of pod was replaced, and no kept binary exists; the pod continues on the installed one")
		})
	}
}

func (b *copies) verify(one keep.Binary) error {
	b.making.RLock()
	defer b.letCollect()
	defer b.making.RUnlock()
	return b.store.Verify(one)
}

// inspection looks at binaries before anybody needs them.
type inspection struct {
	pods        *pod.Registry
	log         *log.Entry
	binaries    *copies
	runtimes    *Runtimes
	collector   *collector
	prober      *probe.Prober
	definitions func() []*handler.Definition
	configured  func() []*handler.Definition
}

// run takes up the binaries of today's handlers, and then reads those
// that pods were made with, before they are needed.
func (i *inspection) run() {
	ready := map[string]bool{}
	for _, d := range i.awaitHandlers() {
		ready[d.Digest()] = true
		i.takeUp(d)
	}
	// What others run on, and candidates, are kept as well: a handler that is
	// not ready now may be so again.
	for _, d := range i.configured() {
		if !ready[d.Digest()] {
			i.takeUp(d)
		}
	}
	i.binaries.takenUp.Store(true)
	seen := map[string]bool{}
	for _, s := range i.pods.Index.AllSandboxes() {
		for _, one := range s.Spec().Pinned.Binaries {
			if one.Kept == "" {
				tellChanged(i.log, s, one)
				continue
			}
			if seen[one.Kept] || i.pods.Background.Err() != nil {
				continue
			}
			seen[one.Kept] = true
			if err := i.binaries.verify(one); err != nil {
				i.log.WithError(err).WithField("runtime", one.Path).Error("Failed to verify the kept runtime of pods")
			}
		}
		if len(s.Spec().Pinned.Binaries) > 0 {
			// So that the next container does not wait for the answer.
			_, _ = i.prober.Probe(i.pods.Background, i.runtimes.Of(s.Spec()))
		}
	}
	i.collector.Collect()
}

// handlersPatience is how long a daemon that starts is given to find out which
// handlers are ready.
const handlersPatience = 30 * time.Second

// awaitHandlers returns the handlers that are ready; none only if none becomes so.
func (i *inspection) awaitHandlers() []*handler.Definition {
	enough := time.NewTimer(handlersPatience)
	defer enough.Stop()
	for {
		if all := i.definitions(); len(all) > 0 {
			return all
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-enough.C:
			return nil
		case <-i.pods.Background.Done():
			return nil
		}
	}
}

// takeUp asks a runtime, and keeps it, before the first pod needs it.
func (i *inspection) takeUp(d *handler.Definition) {
	ctx, cancel := context.WithTimeout(i.pods.Background, takeUpTimeout)
	defer cancel()
	_, _, release, err := i.binaries.ForPod(ctx, d)
	if err == nil {
		release()
	} else if !errors.Is(err, context.Canceled) {
		i.log.WithError(err).WithField("handler", d.Name).WithField("runtime", d.Path).Info("Runtime of handler did not answer")
	}
}
