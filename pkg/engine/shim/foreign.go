package shim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/containerd/api/events"
	bootapi "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	eventsapi "github.com/containerd/containerd/api/services/ttrpc/events/v1"
	"github.com/containerd/containerd/api/types"
	runtimev2 "github.com/containerd/containerd/v2/core/runtime/v2"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/containerd/ttrpc"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/berth-cri/berth/pkg/atomicfile"
)

// Namespace is the containerd namespace that foreign shims work in.
const Namespace = "berth"

// ErrGone means that a foreign shim has exited or never started, or that its start left no valid
// response. The caller may clean up the shim's tasks, unlike after other errdefs.ErrUnavailable.
var ErrGone = fmt.Errorf("the shim is gone: %w", errdefs.ErrUnavailable)

// Endpoint is where a foreign shim listens. It is stored with the pod.
type Endpoint struct {
	Address  string `json:"address"`
	Protocol string `json:"protocol"`
	Version  int    `json:"version"`
	// PID and StartTime (in clock ticks since boot) identify the shim's process; both are 0 if the
	// shim does not report its process id.
	PID       int    `json:"pid,omitempty"`
	StartTime uint64 `json:"startTime,omitempty"`
}

// Start selects a foreign shim's binary and the task to start it for. The last element of Bundle
// must be ID: shims find the task's directory by it.
type Start struct {
	Binary  string
	ID      string
	Bundle  string
	Options *anypb.Any
}

// ForeignShims are the connections to the shims of other projects, by their addresses.
type ForeignShims struct {
	config Config
	limits limits

	mu      sync.Mutex
	clients map[string]*Client // by address
	closed  bool
}

func (m *ForeignShims) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
}

// StartForeign runs the shim's start action and connects to the shim. The answer stays in the
// bundle, for Started. After an error it stops the shim.
func (m *ForeignShims) StartForeign(ctx context.Context, s Start) (_ Endpoint, _ *Client, retErr error) {
	params, err := m.bootstrap(s)
	if err != nil {
		return Endpoint{}, nil, err
	}
	closeLog, err := m.drainLog(s)
	if err != nil {
		return Endpoint{}, nil, err
	}
	answer, err := newAnswer(s.Bundle)
	if err != nil {
		closeLog()
		return Endpoint{}, nil, err
	}
	defer answer.Close()
	defer func() {
		if retErr != nil {
			retErr = errors.Join(retErr, m.discard(ctx, s, answer))
			closeLog()
		}
	}()
	if err := m.action(ctx, s, params, answer, "start"); err != nil {
		return Endpoint{}, nil, fmt.Errorf("%w%s", err, printed(answer))
	}
	ep, err := readAnswer(answer)
	if err != nil {
		return Endpoint{}, nil, fmt.Errorf("%s start: %w", s.Binary, err)
	}
	c, err := m.Foreign(ctx, ep)
	if err != nil {
		return Endpoint{}, nil, err
	}
	ep.process(ctx, c, s.ID)
	go m.closeAfter(ep, closeLog)
	return ep, c, nil
}

const discardTimeout = 20 * time.Second

// discard stops what a failed start may have started. It ignores the caller's cancellation, which
// may be why the start failed.
func (m *ForeignShims) discard(ctx context.Context, s Start, answer *os.File) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), discardTimeout)
	defer cancel()
	var err error
	if ep, perr := readAnswer(answer); perr == nil {
		if c, cerr := m.Foreign(ctx, ep); cerr == nil {
			ep.process(ctx, c, s.ID)
			err = m.DismissForeign(ctx, ep, c, s.ID)
		}
	}
	if _, berr := m.CleanUpForeign(ctx, s); berr != nil {
		m.config.Log.WithError(berr).WithField("sandbox", s.ID).Debug("Failed to clean up after a shim that did not start")
	}
	return err
}

// socketDir is passed to shims as the directory of their sockets.
func (m *ForeignShims) socketDir() string { return filepath.Join(m.config.State, "s") }

// bootstrap returns what the start action reads from its stdin.
func (m *ForeignShims) bootstrap(s Start) ([]byte, error) {
	params := &bootapi.BootstrapParams{
		InstanceID:             s.ID,
		Namespace:              Namespace,
		LogLevel:               bootapi.LogLevelFromString("info"),
		ContainerdVersion:      "2.4.0",
		ContainerdTtrpcAddress: m.config.Events,
		ContainerdGrpcAddress:  m.config.API,
		ContainerdBinary:       m.config.Supervisor,
	}
	socketDir := m.socketDir()
	if err := os.MkdirAll(socketDir, 0o711); err != nil {
		return nil, err
	}
	params.SocketDir = &socketDir
	if s.Options != nil {
		if err := params.AddExtension(s.Options); err != nil {
			return nil, fmt.Errorf("shim options: %w", err)
		}
	}
	return proto.Marshal(params)
}

// action runs the shim's binary with stdout to out. An error contains the end of stderr.
func (m *ForeignShims) action(ctx context.Context, s Start, stdin []byte, out io.Writer, action string) error {
	args := []string{"-namespace", Namespace, "-address", m.config.API, "-publish-binary", m.config.Supervisor, "-id", s.ID}
	if action == "delete" {
		args = append(args, "-bundle", s.Bundle)
	}
	cmd := exec.CommandContext(ctx, s.Binary, append(args, action)...)
	cmd.Dir = s.Bundle
	cmd.Env = append(environment(os.Environ(), kataConfig), "GOMAXPROCS=2", "MAX_SHIM_VERSION=2",
		"TTRPC_ADDRESS="+m.config.Events, "GRPC_ADDRESS="+m.config.API, "NAMESPACE="+Namespace)
	cmd.Stdin = bytes.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = out, &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", s.Binary, action, err, tail(stderr.String()))
	}
	return nil
}

// drainLog reads the FIFO of a shim's own log, as containerd does, until the returned function is
// called. Without a reader the shim's start hangs.
func (m *ForeignShims) drainLog(s Start) (func(), error) {
	path := filepath.Join(s.Bundle, "log")
	if err := syscall.Mkfifo(path, 0o600); err != nil && !os.IsExist(err) {
		return nil, fmt.Errorf("shim log: %w", err)
	}
	f, err := os.OpenFile(path, os.O_RDWR|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("shim log: %w", err)
	}
	entry := m.config.Log.WithField("sandbox", s.ID).WithField("shim", filepath.Base(s.Binary))
	go func() {
		buf := make([]byte, 4096)
		for n, err := f.Read(buf); err == nil; n, err = f.Read(buf) {
			entry.WithField("text", strings.TrimSpace(string(buf[:n]))).Debug("Shim output")
		}
	}()
	return func() { _ = f.Close() }, nil
}

// Foreign returns a client of the shim at ep, or ErrGone if the shim has exited.
func (m *ForeignShims) Foreign(_ context.Context, ep Endpoint) (*Client, error) {
	if ep.Protocol != "ttrpc" {
		return nil, fmt.Errorf("shim at %s speaks %q; berth speaks ttrpc to shims: %w", ep.Address, ep.Protocol, errdefs.ErrNotImplemented)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if c, ok := m.clients[ep.Address]; ok && !c.gone() {
		return c, nil
	}
	// Children of the shim may hold its socket open, so that a dial succeeds after the shim's exit.
	if ep.ended() {
		return nil, fmt.Errorf("process %d of the shim at %s has exited: %w", ep.PID, ep.Address, ErrGone)
	}
	conn, err := dialForeign(ep.Address)
	switch {
	case noListener(err):
		return nil, fmt.Errorf("shim at %s: %w: %w", ep.Address, err, ErrGone)
	case err != nil:
		return nil, fmt.Errorf("shim at %s does not respond: %w: %w", ep.Address, err, errdefs.ErrUnavailable)
	}
	c := connect(conn, "shim at "+ep.Address, m.limits, func() { m.forget(ep.Address) })
	c.pid.Store(int64(ep.PID))
	if c.Task, err = runtimev2.NewTaskClient(c.conn, ep.Version); err != nil {
		return nil, errors.Join(fmt.Errorf("shim at %s: %w", ep.Address, err), conn.Close())
	}
	m.clients[ep.Address] = c
	return c, nil
}

func (m *ForeignShims) forget(address string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c := m.clients[address]; c != nil && c.gone() {
		delete(m.clients, address)
	}
}

// parseEndpoint parses the three forms of a start action's answer: protobuf (containerd 2.3 and
// later), JSON (1.7), a bare address.
func parseEndpoint(out []byte) (Endpoint, error) {
	var r bootapi.BootstrapResult
	if err := proto.Unmarshal(out, &r); err == nil && r.Address != "" {
		return Endpoint{Address: r.Address, Protocol: r.Protocol, Version: int(r.Version)}, nil
	}
	text := bytes.TrimSpace(out)
	ep := Endpoint{}
	if err := json.Unmarshal(text, &ep); err != nil || ep.Version < 2 {
		ep = Endpoint{Address: string(text), Protocol: "ttrpc", Version: 2}
	}
	ep.PID, ep.StartTime = 0, 0
	if !strings.HasPrefix(ep.Address, "unix://") && !strings.HasPrefix(ep.Address, "/") && !strings.HasPrefix(ep.Address, "@") {
		return Endpoint{}, fmt.Errorf("unexpected response %q, want the address of a unix socket", tail(string(text)))
	}
	return ep, nil
}

// tail keeps the end of a failed program's output, where the reason is.
func tail(s string) string {
	s = strings.TrimSpace(s)
	if len(s) > 512 {
		return "…" + s[len(s)-512:]
	}
	return s
}

// ServeEvents listens for the events of foreign shims until ctx ends, and calls oom with the task
// id of each OOM event. Exits are read from Wait, which misses none while the daemon is down.
func (m *ForeignShims) ServeEvents(ctx context.Context, oom func(task string)) error {
	link := m.config.API + ".ttrpc"
	if err := errors.Join(atomicfile.Remove(m.config.Events), atomicfile.Remove(link)); err != nil {
		return err
	}
	l, err := net.Listen("unix", m.config.Events)
	if err != nil {
		return fmt.Errorf("listen for shim events: %w", err)
	}
	if err := os.Symlink(filepath.Base(m.config.Events), link); err != nil {
		return errors.Join(fmt.Errorf("listen for shim events: %w", err), l.Close())
	}
	srv, err := ttrpc.NewServer()
	if err != nil {
		return errors.Join(err, l.Close())
	}
	eventsapi.RegisterTTRPCEventsService(srv, &sink{oom: oom})
	go func() { _ = srv.Serve(ctx, l) }()
	go func() { <-ctx.Done(); _ = srv.Close() }()
	return nil
}

type sink struct{ oom func(string) }

func (s *sink) Forward(ctx context.Context, r *eventsapi.ForwardRequest) (_ *emptypb.Empty, err error) {
	// A shim may send any event, and its decoding must not end the daemon.
	defer func() {
		if p := recover(); p != nil {
			log.G(ctx).WithFields(log.Fields{"panic": fmt.Sprint(p), "stack": string(debug.Stack())}).Error("Shim event caused a panic; please report this with the stack")
			err = fmt.Errorf("read event: %w", errdefs.ErrInternal)
		}
	}()
	oom := &events.TaskOOM{}
	if event := r.GetEnvelope().GetEvent(); typeurl.Is(event, oom) && typeurl.UnmarshalTo(event, oom) == nil {
		s.oom(oom.ContainerID)
	}
	return &emptypb.Empty{}, nil
}

// Protocol decodes what shims print outside of the Task API.
type Protocol struct{}

// ReadInfo decodes a containerd 2 shim's answer to -info: its name and version, and the features of
// its runtime as JSON, if it reports them.
func (Protocol) ReadInfo(answer []byte) (name, version string, features []byte, err error) {
	info := &types.RuntimeInfo{}
	if err := proto.Unmarshal(answer, info); err != nil {
		return "", "", nil, fmt.Errorf("decode the shim's -info: %w", err)
	}
	if f := info.GetFeatures(); strings.HasSuffix(f.GetTypeUrl(), "/features/Features") {
		features = f.GetValue()
	}
	return info.GetName(), info.GetVersion().GetVersion(), features, nil
}
