package binaries

import (
	"context"

	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/engine/keep"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/handler"
)

// Runtimes resolves which binaries a pod runs on.
type Runtimes struct {
	binaries *copies
	log      *log.Entry
}

// NewRuntimes returns the Runtimes of copies.
func NewRuntimes(b *copies, entry *log.Entry) *Runtimes { return &Runtimes{b, entry} }

// Of returns the Definition of s with the binaries that it was created with in place of the
// installed ones.
func (r *Runtimes) Of(s *pod.SandboxSpec) *handler.Definition {
	if len(s.Pinned.Binaries) == 0 {
		return s.Definition
	}
	return onBinaries(s.Definition, s.Pinned.Binaries, r.binaries.store)
}

// Describe lists the binaries of s for display.
func (r *Runtimes) Describe(s *pod.SandboxSpec) []handler.OwnedBinary {
	return r.shown(s.Pinned.Binaries)
}

func (r *Runtimes) shown(binaries []keep.Binary) []handler.OwnedBinary {
	var all []handler.OwnedBinary
	for _, one := range binaries {
		all = append(all, handler.OwnedBinary{Path: one.Path, Runs: r.binaries.store.Abs(one), SHA256: one.SHA256, Version: one.Version})
	}
	return all
}

// Installed lists the binaries that a new pod of a handler would get now.
func (r *Runtimes) Installed(ctx context.Context, d *handler.Definition) ([]handler.OwnedBinary, error) {
	_, all, release, err := r.binaries.ForPod(ctx, d)
	if err != nil {
		return nil, err
	}
	defer release()
	return r.shown(all), nil
}

// Ensure is called before something new starts on the binaries of s. It verifies a copy that was
// touched, and restores a damaged one.
func (r *Runtimes) Ensure(s *pod.Sandbox) error {
	for _, one := range s.Spec().Pinned.Binaries {
		if one.Kept == "" {
			warnReplaced(r.log, s, one)
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

// EnsureForStop is Ensure for stopping a pod, which must be possible without the binaries as well:
// it only logs errors.
func (r *Runtimes) EnsureForStop(s *pod.Sandbox) {
	if err := r.Ensure(s); err != nil {
		r.log.WithError(err).WithField("sandbox", s.ID()).Error("Stopping pod although its kept runtime is unavailable")
	}
}

// warnReplaced warns once per sandbox that its binary was replaced and no copy exists.
func warnReplaced(entry *log.Entry, s *pod.Sandbox, one keep.Binary) {
	if keep.Changed(one) {
		s.Lost.Do(func() {
			entry.WithField("sandbox", s.ID()).WithField("runtime", one.Path).WithField("sha256", one.SHA256).
				Warn("Runtime of pod was replaced, and no kept binary exists; the pod continues on the installed one")
		})
	}
}

func (b *copies) verify(one keep.Binary) error {
	b.making.RLock()
	defer b.collectIfPending()
	defer b.making.RUnlock()
	return b.store.Verify(one)
}
