// Package shim starts, reconnects to and cleans up after the processes that run an engine's tasks,
// and provides clients of their Task API (containerd.task.v3).
//
// There are two kinds of processes. A supervisor is berth-shim: one process for all pods with the
// same handler settings and binaries (or for one pod), named by a key. The Manager starts it on
// first use and replaces it, by the same binary, when it dies. A foreign shim is any containerd
// shim-v2 binary, started as containerd starts it, one per pod; the Manager cannot replace it, but
// cleans up.
//
// The Manager keeps descriptors of each running task that its supervisor would lose by dying: a
// pidfd, a read end of each output FIFO, a terminal's master. A successor inherits the pidfd and
// the terminal, and opens the FIFOs anew; the kept read ends preserve the content of the FIFOs.
package shim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	runtimev2 "github.com/containerd/containerd/v2/core/runtime/v2"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/containerd/ttrpc"

	supervisorapi "github.com/berth-cri/berth/proto/berth/supervisor/v1"

	"github.com/berth-cri/berth/pkg/engine/keyedlock"
)

// limits are the time limits of supervisors and of calls.
type limits struct {
	// idle is how long a supervisor without pods is kept for the next pod, and the delay before a
	// supervisor that did not exit is asked again.
	idle time.Duration
	// leave is how long an idle supervisor may take to exit.
	leave time.Duration
	// write is how long a process may leave a call unread.
	write time.Duration
	// quiet is how long a call takes before its process is pinged, silence is how long the response
	// to the ping may take, and making replaces silence for calls that create something.
	quiet, silence, making time.Duration
}

var usualLimits = limits{
	idle: time.Minute, leave: 10 * time.Second, write: 10 * time.Second,
	quiet: time.Second, silence: 5 * time.Second, making: time.Minute,
}

// Config configures a Manager.
type Config struct {
	// State is the engine's state directory.
	State string
	// Supervisor is the path of the berth-shim binary that new supervisors run. The file must stay
	// for their successors.
	Supervisor string
	// Events is the socket path at which foreign shims publish events. ServeEvents serves it.
	Events string
	// API is the address of containerd's API, which foreign shims call. Older shims find Events by
	// the symbolic link with this name plus ".ttrpc".
	API string
	// Left, if set, is called after an idle supervisor has exited and its directory is removed.
	Left func()
	// Log receives errors that cannot be returned to a caller.
	Log *log.Entry
}

// Client calls one process. It is safe for concurrent use. After the process has exited, calls fail
// with an error for which Lost is true.
type Client struct {
	Task runtimev2.TaskServiceClient
	// Supervisor is nil for foreign shims.
	Supervisor supervisorapi.SupervisorService
	// Dir is the supervisor's directory; empty for foreign shims.
	Dir string

	conn   *ttrpc.Client
	done   chan struct{}
	who    string
	pid    atomic.Int64 // of a shim
	limits limits
	asked  atomic.Pointer[time.Time] // when the ping under way was sent
	silent atomic.Int64              // how long that ping has been unanswered, a time.Duration
}

// Lost reports whether err is a failure of the process or its connection, and not of the call.
func Lost(err error) bool {
	return !IsUnresponsive(err) && (errors.Is(err, ttrpc.ErrClosed) || errors.Is(err, net.ErrClosed) || errdefs.IsUnavailable(err))
}

// Manager owns the processes of one engine. It is safe for concurrent use.
type Manager struct {
	*Supervisors
	*ForeignShims
}

// Supervisors are the processes that run pods on OCI runtimes, by their keys.
type Supervisors struct {
	config Config
	limits limits
	keep   *keeper

	mu          sync.Mutex
	supervisors map[string]*supervisor
	closed      bool
}

// OnePod begins the key of a supervisor that has only one pod. No handler's name has a dot.
const OnePod = "pod."

// supervisor is the Manager's state of one key.
type supervisor struct {
	key  string
	dir  string
	pods int         // guarded by Supervisors.mu
	idle *time.Timer // guarded by Supervisors.mu

	busy    keyedlock.Mutex // taken while a process is being started, dialled or ended; Supervisors.mu is taken inside it
	up      *Client         // guarded by busy
	started time.Time       // guarded by busy: when the last process was started
	delay   time.Duration
}

// A process that dies within shortLife is restarted only after a delay that doubles each time, up
// to maxDelay: it will most likely die again.
const (
	shortLife = 2 * time.Second
	minDelay  = 100 * time.Millisecond
	maxDelay  = 10 * time.Second
)

// pause returns how long to wait before the next start. s.busy is taken.
func (s *supervisor) pause(now time.Time) time.Duration {
	lived := now.Sub(s.started)
	if s.started.IsZero() || lived > max(shortLife, s.delay) {
		s.delay = 0
		return 0
	}
	s.delay = cmp.Or(s.delay, minDelay)
	return max(0, s.delay-lived)
}

// New returns a Manager. The state directory must exist.
func New(c Config) (*Manager, error) {
	if c.Log == nil {
		c.Log = log.L
	}
	if err := os.MkdirAll(filepath.Join(c.State, "supervisors"), 0o711); err != nil {
		return nil, fmt.Errorf("create supervisor directory: %w", err)
	}
	demoteLateAnswers()
	return &Manager{
		&Supervisors{config: c, limits: usualLimits, keep: newKeeper(), supervisors: map[string]*supervisor{}},
		&ForeignShims{config: c, limits: usualLimits, clients: map[string]*Client{}},
	}, nil
}

// Close closes all connections; the processes keep running.
func (m *Manager) Close() {
	m.Supervisors.close()
	m.ForeignShims.close()
	for _, c := range m.connected(context.Background()) {
		_ = c.conn.Close()
	}
	m.keep.close()
}

func (m *Supervisors) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	for _, s := range m.supervisors {
		if s.idle != nil {
			s.idle.Stop()
		}
	}
}

// connected returns the clients of all processes, without supervisors that are still being started
// or stopped when ctx ends.
func (m *Manager) connected(ctx context.Context) []*Client {
	m.ForeignShims.mu.Lock()
	clients := slices.Collect(maps.Values(m.clients))
	m.ForeignShims.mu.Unlock()
	m.Supervisors.mu.Lock()
	supervisors := slices.Collect(maps.Values(m.supervisors))
	m.Supervisors.mu.Unlock()
	for _, s := range supervisors {
		if s.busy.Lock(ctx) != nil {
			continue
		}
		if s.up != nil {
			clients = append(clients, s.up)
		}
		s.busy.Unlock()
	}
	return clients
}

// SupervisorDir is the directory with the supervisor's journal.
func (m *Supervisors) SupervisorDir(key string) string {
	return supervisorDir(m.config.State, key)
}

func supervisorDir(state, key string) string { return filepath.Join(state, "supervisors", key) }

// Hold counts one pod on the supervisor with that key, which is then kept until the last Release.
// It does not start the supervisor.
func (m *Supervisors) Hold(key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.lookup(key)
	s.pods++
	if s.idle != nil {
		s.idle.Stop()
		s.idle = nil
	}
}

// Release ends a Hold. A supervisor without pods exits after a while, or at once if no other pod can
// use it.
func (m *Supervisors) Release(key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.lookup(key)
	s.pods--
	if s.pods > 0 || m.closed {
		return
	}
	after := m.limits.idle
	if strings.HasPrefix(key, OnePod) {
		after = 0
	}
	m.retireLater(s, after)
}

// lookup needs m.mu.
func (m *Supervisors) lookup(key string) *supervisor {
	s, ok := m.supervisors[key]
	if !ok {
		s = &supervisor{key: key, dir: m.SupervisorDir(key), busy: keyedlock.NewMutex()}
		m.supervisors[key] = s
	}
	return s
}

// take returns the supervisor with that key, and locks busy.
func (m *Supervisors) take(ctx context.Context, key string) (*supervisor, error) {
	m.mu.Lock()
	s, closed := m.lookup(key), m.closed
	m.mu.Unlock()
	if closed {
		return nil, fmt.Errorf("the engine is shutting down: %w", errdefs.ErrUnavailable)
	}
	if err := s.busy.Lock(ctx); err != nil {
		return nil, fmt.Errorf("supervisor %s is being started or stopped: %w", s.dir, err)
	}
	return s, nil
}

// Supervisor returns a client of the supervisor with that key. It starts the process if none runs.
func (m *Supervisors) Supervisor(ctx context.Context, key string) (*Client, error) {
	s, err := m.take(ctx, key)
	if err != nil {
		return nil, err
	}
	defer s.busy.Unlock()
	c, err := m.live(s)
	if noListener(err) {
		c, err = m.restartSupervisor(ctx, s)
	}
	if err != nil {
		return nil, fmt.Errorf("supervisor %s: %w", s.dir, err)
	}
	s.up = c
	return c, nil
}

// live returns a client of the process of s if one runs. s.busy is taken.
func (m *Supervisors) live(s *supervisor) (*Client, error) {
	if s.up != nil && !s.up.gone() {
		return s.up, nil
	}
	c, err := m.dialSupervisor(s)
	if err == nil {
		s.up = c
	}
	return c, err
}

func (c *Client) gone() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// connect wraps an open connection. lost is called once when it breaks.
func connect(conn net.Conn, who string, l limits, lost func()) *Client {
	c := &Client{done: make(chan struct{}), who: who, limits: l}
	c.conn = ttrpc.NewClient(promptConn{conn, l.write}, ttrpc.WithUnaryClientInterceptor(c.intercept), ttrpc.WithOnClose(func() {
		close(c.done)
		lost()
	}))
	return c
}
