package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	runtimev2 "github.com/containerd/containerd/v2/core/runtime/v2"
	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/supervisor/journal"
	supervisorapi "github.com/berth-cri/berth/proto/berth/supervisor/v1"
)

const socketName = "shim.sock"

func (m *Supervisors) dialSupervisor(s *supervisor) (*Client, error) {
	conn, err := net.Dial("unix", filepath.Join(s.dir, socketName))
	if err != nil {
		return nil, err
	}
	c := connect(conn, "supervisor "+s.key, m.limits, func() {
		if m.needed(s) {
			go m.replace(s)
		}
	})
	task, err := runtimev2.NewTaskClient(c.conn, 3)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	c.Task, c.Supervisor, c.Dir = task, supervisorapi.NewSupervisorClient(c.conn), s.dir
	return c, nil
}

// Live is Supervisor, but fails instead of starting the process.
func (m *Supervisors) Live(ctx context.Context, key string) (*Client, error) {
	s, err := m.take(ctx, key)
	if err != nil {
		return nil, err
	}
	defer s.busy.Unlock()
	return m.live(s)
}

// noListener reports whether a dial failed because no process listens. Other failures may have
// their cause in this process, and a second supervisor must never start beside a live one.
func noListener(err error) bool {
	return errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED)
}

// replace starts the successor of a dead supervisor at once, because the pipes of its pods fill up
// while they are not read. It retries until the successor is up or no longer needed.
func (m *Supervisors) replace(s *supervisor) {
	m.config.Log.WithField("supervisor", s.key).Warn("Supervisor died; starting its successor")
	for m.needed(s) {
		_, err := m.Supervisor(context.Background(), s.key)
		if err == nil {
			return
		}
		m.config.Log.WithError(err).WithField("supervisor", s.key).Error("Failed to start successor of supervisor; will retry")
		_ = s.busy.Lock(context.Background())
		wait := max(minDelay, s.pause(time.Now()))
		s.busy.Unlock()
		time.Sleep(wait)
	}
}

func (m *Supervisors) needed(s *supervisor) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.closed && s.pods > 0
}

// restartSupervisor starts a process, or fails if the last one died too soon. s.busy is taken.
func (m *Supervisors) restartSupervisor(ctx context.Context, s *supervisor) (*Client, error) {
	if wait := s.pause(time.Now()); wait > 0 {
		return nil, fmt.Errorf("it died right after its start, see %s; next attempt in %s: %w",
			filepath.Join(s.dir, "log"), wait.Round(time.Millisecond), errdefs.ErrUnavailable)
	}
	if !s.started.IsZero() && time.Since(s.started) < shortLife {
		s.delay = min(2*s.delay, maxDelay)
	}
	s.started = time.Now()
	return m.startSupervisor(ctx, s)
}

// startSupervisor passes berth-shim a listening socket, so that the first call need not wait for
// the process. s.busy is taken.
func (m *Supervisors) startSupervisor(ctx context.Context, s *supervisor) (*Client, error) {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return nil, err
	}
	program, err := m.program(s)
	if err != nil {
		return nil, err
	}
	// Replacing a live supervisor's socket would make that supervisor unreachable.
	var live *Client
	err = awaitUnserved(ctx, s, endPatience, func() bool { live, _ = m.dialSupervisor(s); return live != nil })
	if live != nil || err != nil {
		return live, err
	}
	socket := filepath.Join(s.dir, socketName)
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	l.SetUnlinkOnClose(false)
	defer l.Close()
	lf, err := l.File()
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	defer lf.Close()
	if err := m.spawn(s, program, lf); err != nil {
		return nil, errors.Join(err, os.Remove(socket))
	}
	return m.dialSupervisor(s)
}

// endPatience is how long a supervisor that no longer listens may take to exit. It answers its last
// calls within a second.
const endPatience = 3 * time.Second

// awaitUnserved returns when no process serves the directory of s, or enough returns true. After a
// broken connection, the supervisor may still run: a write that times out closes the connection.
func awaitUnserved(ctx context.Context, s *supervisor, patience time.Duration, enough func() bool) error {
	for end := time.Now().Add(patience); ; {
		pid, served, err := journal.Served(s.dir)
		if err != nil || !served || enough() {
			return err
		}
		if !time.Now().Before(end) {
			return stillServed(s, pid)
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", stillServed(s, pid), ctx.Err())
		}
	}
}

func stillServed(s *supervisor, pid string) error {
	return fmt.Errorf("process %s serves %s but does not listen on its socket: kill that process, its successor takes over: %w", pid, s.dir, errdefs.ErrUnavailable)
}

// spawn starts the process in its own session, in which it outlives the daemon.
func (m *Supervisors) spawn(s *supervisor, program string, listener *os.File) error {
	files, inherit, release := m.keep.lend(s.key, 4)
	defer release()
	env, err := json.Marshal(inherit)
	if err != nil {
		return err
	}
	logFile, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer logFile.Close()
	cmd := exec.Command(program, "serve", "--dir", s.dir)
	cmd.Env = append(Environment(), journal.InheritEnv+"="+string(env))
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = logFile, logFile
	cmd.ExtraFiles = append([]*os.File{listener}, files...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", program, err)
	}
	if err := preferOOMKill(cmd.Process.Pid); err != nil {
		m.config.Log.WithError(err).WithField("supervisor", s.key).Warn("Failed to set the supervisor's OOM score; the kernel may kill the daemon first")
	}
	go func() { _ = cmd.Wait() }() // a dead supervisor would stay a zombie
	return nil
}

// retireLater needs m.mu.
func (m *Supervisors) retireLater(s *supervisor, after time.Duration) {
	if s.idle != nil {
		s.idle.Stop()
	}
	s.idle = time.AfterFunc(after, func() { m.retire(s) })
}

// retire stops a supervisor unless it has pods again, and retries later if it does not exit.
func (m *Supervisors) retire(s *supervisor) {
	ctx, cancel := context.WithTimeout(context.Background(), m.limits.leave)
	defer cancel()
	if err := m.end(ctx, s); err != nil {
		m.config.Log.WithError(err).WithField("supervisor", s.key).Warn("Idle supervisor did not exit")
		m.mu.Lock()
		defer m.mu.Unlock()
		if s.pods == 0 && !m.closed {
			m.retireLater(s, m.limits.idle)
		}
		return
	}
	if m.config.Left != nil {
		go m.config.Left()
	}
}

// end stops a supervisor without pods. Its key stays locked until its directory is removed: the
// next pod waits, and then starts a new process.
func (m *Supervisors) end(ctx context.Context, s *supervisor) error {
	if err := s.busy.Lock(ctx); err != nil {
		return err
	}
	defer s.busy.Unlock()
	if !m.idle(s) {
		return nil
	}
	_, _ = m.live(s) // to be able to ask it to exit
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

// shutdown asks a supervisor without tasks to exit and removes its directory. s.busy is taken.
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
	if err := awaitUnserved(ctx, s, patience, func() bool { return false }); err != nil {
		return err
	}
	return os.RemoveAll(s.dir)
}

const sweepParallel = 16

// Sweep stops supervisors that have a directory but no pod, left by a killed daemon. It skips the
// keys for which silent returns true.
func (m *Supervisors) Sweep(ctx context.Context, silent func(key string) bool) error {
	keys, err := m.Keys()
	if err != nil {
		return err
	}
	errs := make([]error, len(keys))
	g := errgroup.Group{}
	g.SetLimit(sweepParallel)
	for i, key := range keys {
		if silent(key) {
			continue
		}
		m.mu.Lock()
		s := m.lookup(key)
		m.mu.Unlock()
		g.Go(func() error { errs[i] = m.end(ctx, s); return nil })
	}
	_ = g.Wait()
	return errors.Join(errs...)
}

// Keys are the keys of all supervisors that have a directory.
func (m *Supervisors) Keys() ([]string, error) { return keysOf(m.config.State) }

func keysOf(state string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(state, "supervisors"))
	if err != nil {
		return nil, err
	}
	keys := make([]string, 0, len(entries))
	for _, e := range entries {
		keys = append(keys, e.Name())
	}
	return keys, nil
}

// Process returns the process that serves the supervisor with that key, or served it last. The
// caller must check that the process exists and is the supervisor.
func (m *Supervisors) Process(key string) (pid int, known bool) {
	return journal.Holder(m.SupervisorDir(key))
}

// Kept describes the descriptors of a task that Keep copies.
type Kept struct {
	ID  string
	PID int
	// Pipes are paths of FIFOs that the task writes to.
	Pipes []string
	// Terminal is set if the supervisor holds a terminal of the task.
	Terminal bool
}

// Keep copies a running task's descriptors. A process that has exited has no pidfd to copy.
func (m *Supervisors) Keep(ctx context.Context, key string, c *Client, t Kept) error {
	b := &keptFiles{}
	if t.PID > 0 {
		fd, err := unix.PidfdOpen(t.PID, 0)
		if err == nil {
			b.pidfd = os.NewFile(uintptr(fd), fmt.Sprintf("pidfd:%d", t.PID))
		}
	}
	for _, p := range t.Pipes {
		// Opening a FIFO for reading without blocking returns at once.
		fd, err := unix.Open(p, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			b.close()
			return fmt.Errorf("keep pipe %s: %w", p, err)
		}
		b.pipes = append(b.pipes, os.NewFile(uintptr(fd), p))
	}
	if t.Terminal {
		tty, err := c.takeTerminal(ctx, t.ID)
		if err != nil && !errdefs.IsNotFound(err) {
			b.close()
			return fmt.Errorf("keep terminal: %w", err)
		}
		b.tty = tty
	}
	m.keep.put(key, t.ID, b)
	return nil
}

// Drop closes the descriptors that Keep copied of a task, if any.
func (m *Supervisors) Drop(key, id string) { m.keep.drop(key, id) }

// takeTerminal copies the descriptor of a task's terminal out of the supervisor.
func (c *Client) takeTerminal(ctx context.Context, id string) (*os.File, error) {
	info, err := c.Supervisor.Info(ctx, &supervisorapi.InfoRequest{})
	if err != nil {
		return nil, err
	}
	term, err := c.Supervisor.Terminal(ctx, &supervisorapi.TerminalRequest{Id: id})
	if err != nil {
		return nil, err
	}
	pidfd, err := unix.PidfdOpen(int(info.Pid), 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(pidfd)
	fd, err := unix.PidfdGetfd(pidfd, int(term.Fd), 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "terminal:"+id), nil
}
