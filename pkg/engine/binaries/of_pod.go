package binaries

import (
	"context"

	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/engine/keep"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/handler"
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

// Told is what may be shown of the binaries of s.
func (r *Runtimes) Told(s *pod.SandboxSpec) []handler.OwnedBinary {
	return r.shown(s.Pinned.Binaries)
}

func (r *Runtimes) shown(binaries []keep.Binary) []handler.OwnedBinary {
	var all []handler.OwnedBinary
	for _, one := range binaries {
		all = append(all, handler.OwnedBinary{Path: one.Path, Runs: r.binaries.store.Abs(one), SHA256: one.SHA256, Version: one.Version})
	}
	return all
}

// Installed is what a new pod of a handler would be made with at this moment.
func (r *Runtimes) Installed(ctx context.Context, d *handler.Definition) ([]handler.OwnedBinary, error) {
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
