package shim

import (
	"context"
	"errors"
	"os"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"

	"github.com/berth-cri/berth/pkg/engine/supervisor/journal"
)

// retireLater needs m.mu.
func (m *Supervisors) retireLater(s *supervisor) {
	if s.idle != nil {
		s.idle.Stop()
	}
	s.idle = time.AfterFunc(m.limits.idle, func() { m.retire(s) })
}

// retire ends a supervisor that has had no pods for a while. One that does not exit is asked
// again later.
func (m *Supervisors) retire(s *supervisor) {
	ctx, cancel := context.WithTimeout(context.Background(), m.limits.leave)
	defer cancel()
	if err := m.end(ctx, s); err != nil {
		m.config.Log.WithError(err).WithField("supervisor", s.key).Warn("Idle supervisor did not exit")
		m.mu.Lock()
		defer m.mu.Unlock()
		if s.pods == 0 && !m.closed {
			m.retireLater(s)
		}
		return
	}
	if m.config.Left != nil {
		go m.config.Left()
	}
}

// end ends a supervisor without pods. Its key stays taken until its directory is gone: the next
// pod waits, and then starts a new process.
func (m *Supervisors) end(ctx context.Context, s *supervisor) error {
	if err := s.busy.Lock(ctx); err != nil {
		return err
	}
	defer s.busy.Unlock()
	if !m.idle(s) {
		return nil
	}
	if s.up == nil || s.up.gone() {
		if c, err := m.dialSupervisor(s); err == nil {
			s.up = c
		}
	}
	if err := shutdown(ctx, s); err != nil {
		return err
	}
	s.up, s.started = nil, time.Time{}
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.pods == 0 {
		delete(m.supervisors, s.key)
	}
	return nil
}

func (m *Supervisors) idle(s *supervisor) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.closed && s.pods == 0
}

// shutdown asks a supervisor without tasks to leave and removes its directory.
// s.busy is taken.
func shutdown(ctx context.Context, s *supervisor) error {
	patience := time.Duration(0)
	if s.up != nil && !s.up.gone() {
		patience = endPatience
		if _, err := s.up.Task.Shutdown(ctx, &taskapi.ShutdownRequest{}); err != nil && !Lost(err) {
			return err
		}
		select {
		case <-s.up.done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if err := awaitUnserved(ctx, s, patience); err != nil {
		return err
	}
	return os.RemoveAll(s.dir)
}

// awaitUnserved returns when no process serves the directory of s. A broken
// connection says less than that: one that nobody read is broken by this side.
func awaitUnserved(ctx context.Context, s *supervisor, patience time.Duration) error {
	for end := time.Now().Add(patience); ; {
		pid, served, err := journal.Served(s.dir)
		if err != nil || !served {
			return err
		}
		if !time.Now().Before(end) {
			return stillServed(s, pid)
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return errors.Join(stillServed(s, pid), ctx.Err())
		}
	}
}
