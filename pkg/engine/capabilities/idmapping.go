package capabilities

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/berth-cri/berth/pkg/engine/idmap"
	"github.com/berth-cri/berth/pkg/handler"
)

// canMap returns an error if this node cannot give pods of a handler a user namespace. It does not
// check the runtime.
func (a *Checker) canMap(ctx context.Context, d *handler.Definition) error {
	if err := a.images.CanMap(a.settings.Current(d).Snapshotter); err != nil {
		return err
	}
	if err := passable(a.pods.State); err != nil {
		return err
	}
	if err := a.idMapping.probe(ctx, a.pods.Background, a.images.Root()); err != nil {
		return fmt.Errorf("this node cannot map the IDs of images: %w", err)
	}
	return nil
}

// passable returns an error if other users cannot enter dir and its parents. The kernel treats a
// pod's root as such a user.
func passable(dir string) error {
	for d := dir; d != "/"; d = filepath.Dir(d) {
		st, err := os.Stat(d)
		if err != nil {
			return err
		}
		if st.Mode()&0o001 == 0 {
			return fmt.Errorf("%s can be entered by its owner only, but pods have files below it; run: chmod o+x %s", d, d)
		}
	}
	return nil
}

// idMapping caches whether this node can map the IDs of root filesystems.
type idMapping struct {
	mu     sync.Mutex
	done   chan struct{} // of the last probe; closed once answer is set
	asked  time.Time
	answer error
}

// failedProbe is how long a failure is cached: an administrator may raise the limit that caused it.
// A success is cached for good.
const failedProbe = time.Minute

// probe waits for the answer no longer than ctx. The probe itself continues under background.
func (m *idMapping) probe(ctx, background context.Context, dir string) error {
	done := m.ask(background, dir)
	select {
	case <-done:
	case <-ctx.Done():
		return fmt.Errorf("the test did not finish in time: %w", context.Cause(ctx))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.answer
}

func (m *idMapping) ask(background context.Context, dir string) <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.done != nil && (m.answer == nil || time.Since(m.asked) < failedProbe) {
		return m.done
	}
	done := make(chan struct{})
	m.done, m.asked, m.answer = done, time.Now(), nil
	go func() {
		defer close(done)
		answer := idmap.Probe(background, dir)
		m.mu.Lock()
		defer m.mu.Unlock()
		m.answer = answer
	}()
	return done
}

// settle waits for a running probe: its mounts would otherwise stay until the next start.
func (m *idMapping) settle(ctx context.Context) {
	m.mu.Lock()
	done := m.done
	m.mu.Unlock()
	if done == nil {
		return
	}
	select {
	case <-done:
	case <-ctx.Done():
	}
}
