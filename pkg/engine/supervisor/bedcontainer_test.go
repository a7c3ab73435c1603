package supervisor_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	taskAPI "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/supervisor/journal"
	supervisorv1 "github.com/berth-cri/berth/proto/berth/supervisor/v1"
)

// container is a task with the files that a daemon keeps open for it.
type container struct {
	*bed
	id, bundle, logPath string
	stdin               string
	pid                 int
	pidfd, tty          *os.File
	keepIn              *os.File
	keepOut, keepErr    *os.File
}

type containerConfig struct {
	args     []string
	terminal bool
	stdin    bool
	noLog    bool
	spec     func(*specs.Spec)
	options  func(*supervisorv1.TaskOptions)
	request  func(*taskAPI.CreateTaskRequest)
}

func shell(script string) containerConfig {
	return containerConfig{args: []string{"/bin/sh", "-c", script}}
}

func (b *bed) spec(id string, c containerConfig) *specs.Spec {
	root := test.Value(rootfs())(b)
	caps := []string{"CAP_KILL", "CAP_SETUID", "CAP_SETGID", "CAP_CHOWN"}
	s := &specs.Spec{
		Version: "1.0.0",
		Root:    &specs.Root{Path: root, Readonly: true},
		Process: &specs.Process{
			Terminal: c.terminal, Args: c.args, Cwd: "/", Env: []string{"PATH=/bin"},
			Capabilities: &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps},
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "mode=755"}},
			{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"newinstance", "ptmxmode=0666", "mode=0620"}},
			{Destination: "/tmp", Type: "tmpfs", Source: "tmpfs"},
		},
		Linux: &specs.Linux{
			CgroupsPath: b.cgroup + "/" + id,
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}, {Type: specs.IPCNamespace},
				{Type: specs.UTSNamespace}, {Type: specs.NetworkNamespace},
			},
		},
	}
	if c.spec != nil {
		c.spec(s)
	}
	return s
}

// create makes the bundle and the FIFOs, and creates the task.
func (b *bed) create(id string, cfg containerConfig) *container {
	b.Helper()
	c, err := b.tryCreate(id, cfg)
	test.Mustf(b, err, "create %s", id)
	return c
}

func (b *bed) tryCreate(id string, cfg containerConfig) (*container, error) {
	c := &container{bed: b, id: id, bundle: filepath.Join(b.base, "bundles", id)}
	io := filepath.Join(c.bundle, "io")
	if err := os.MkdirAll(io, 0o700); err != nil {
		return nil, err
	}
	request := &taskAPI.CreateTaskRequest{ID: id, Bundle: c.bundle, Terminal: cfg.terminal}
	for name, path := range map[string]*string{"stdin": &request.Stdin, "stdout": &request.Stdout, "stderr": &request.Stderr} {
		if name == "stdin" && !cfg.stdin || name == "stderr" && cfg.terminal {
			continue
		}
		*path = filepath.Join(io, name)
		if err := unix.Mkfifo(*path, 0o600); err != nil {
			return nil, err
		}
	}
	c.stdin = request.Stdin
	var err error
	if c.keepOut, err = keepReader(request.Stdout); err != nil {
		return nil, err
	}
	if c.keepErr, err = keepReader(request.Stderr); err != nil {
		return nil, err
	}
	spec, err := json.Marshal(b.spec(id, cfg))
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(c.bundle, "config.json"), spec, 0o600); err != nil {
		return nil, err
	}
	options := &supervisorv1.TaskOptions{
		Runtime: b.runtime.path, Root: b.root(), CallTimeoutMs: 30_000,
	}
	if b.runtime.ownKernel {
		options.Kernel = "gvisor"
		options.GlobalFlags = []string{"--network=none", "--ignore-cgroups=false"}
	}
	if !cfg.noLog {
		c.logPath = filepath.Join(c.bundle, "0.log")
		options.LogPath = c.logPath
	}
	if cfg.options != nil {
		cfg.options(options)
	}
	if request.Options, err = anypb.New(options); err != nil {
		return nil, err
	}
	if cfg.request != nil {
		cfg.request(request)
	}
	b.mu.Lock()
	b.containers[id] = c
	b.mu.Unlock()
	_, err = b.task.Create(b.ctx(), request)
	return c, errgrpc.ToNative(err)
}

// keepReader opens the reading end of a FIFO and does not read, as the daemon does.
func keepReader(path string) (*os.File, error) {
	if path == "" {
		return nil, nil
	}
	return os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
}

// keepTerminal duplicates the terminal's master from the supervisor, and keeps it for a successor.
func (c *container) keepTerminal() *os.File {
	c.Helper()
	r := test.Value(c.extra.Terminal(c.ctx(), &supervisorv1.TerminalRequest{Id: c.id}))(c)
	pidfd := test.Value(unix.PidfdOpen(c.cmd.Process.Pid, 0))(c)
	defer unix.Close(pidfd)
	fd := test.Value(unix.PidfdGetfd(pidfd, int(r.Fd), 0))(c)
	c.tty = os.NewFile(uintptr(fd), "terminal")
	return c.tty
}

// alive reports whether the first process runs.
func (c *container) alive() bool {
	poll := []unix.PollFd{{Fd: int32(c.pidfd.Fd()), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(poll, 0)
		if err == unix.EINTR { // interrupted by a signal of Go's runtime
			continue
		}
		return err == nil && n == 0
	}
}

func (c *container) tryStart() error {
	r, err := c.task.Start(c.ctx(), &taskAPI.StartRequest{ID: c.id})
	if err != nil {
		return errgrpc.ToNative(err)
	}
	c.pid = int(r.Pid)
	if fd, err := unix.PidfdOpen(c.pid, 0); err == nil {
		c.pidfd = os.NewFile(uintptr(fd), "pidfd")
	}
	if c.stdin != "" {
		if c.keepIn, err = os.OpenFile(c.stdin, os.O_WRONLY|unix.O_NONBLOCK, 0); err != nil {
			return err
		}
	}
	return nil
}

func (c *container) start() *container {
	c.Helper()
	test.Mustf(c, c.tryStart(), "start %s", c.id)
	return c
}

func (b *bed) run(id string, cfg containerConfig) *container {
	b.Helper()
	return b.create(id, cfg).start()
}

func (c *container) close() {
	for _, f := range []*os.File{c.pidfd, c.tty, c.keepIn, c.keepOut, c.keepErr} {
		if f != nil {
			f.Close()
		}
	}
}

// wait waits for the exit and returns its journal record, which must equal the reply of Wait.
func (c *container) wait() journal.Exit {
	c.Helper()
	r, err := c.task.Wait(c.ctx(), &taskAPI.WaitRequest{ID: c.id})
	test.Mustf(c, err, "wait for %s", c.id)
	exit, err := journal.ReadExit(c.dir, c.id)
	test.Mustf(c, err, "read the exit of %s from the journal after Wait returned it", c.id)
	if exit.Status != r.ExitStatus || !exit.Time().Equal(r.ExitedAt.AsTime()) {
		c.Fatalf("Wait returns %d at %v, the journal has %d at %v", r.ExitStatus, r.ExitedAt.AsTime(), exit.Status, exit.Time())
	}
	return exit
}

func (c *container) kill(sig unix.Signal, all bool) error {
	_, err := c.task.Kill(c.ctx(), &taskAPI.KillRequest{ID: c.id, Signal: uint32(sig), All: all})
	return errgrpc.ToNative(err)
}

func (c *container) delete() (*taskAPI.DeleteResponse, error) {
	r, err := c.task.Delete(c.ctx(), &taskAPI.DeleteRequest{ID: c.id})
	if err == nil {
		c.mu.Lock()
		delete(c.containers, c.id)
		c.mu.Unlock()
		c.close()
	}
	return r, errgrpc.ToNative(err)
}

func (c *container) mustDelete() {
	c.Helper()
	test.Mustf(c, test.Err(c.delete()), "delete %s", c.id)
}

// logLine is a line of a CRI log.
type logLine struct {
	at              time.Time
	stream, content string
	partial         bool
}

func (c *container) lines() []logLine {
	c.Helper()
	return readLog(c, c.logPath)
}

func readLog(t testing.TB, path string) []logLine {
	t.Helper()
	b := test.Value(os.ReadFile(path))(t)
	var lines []logLine
	for line := range strings.Lines(string(b)) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 4)
		if len(fields) != 4 || !strings.HasSuffix(line, "\n") {
			t.Fatalf("%s has a line that is not in the CRI format: %q", path, line)
		}
		at := test.Value(time.Parse(time.RFC3339Nano, fields[0]))(t)
		lines = append(lines, logLine{at: at, stream: fields[1], partial: fields[2] == "P", content: fields[3]})
	}
	return lines
}

// said waits until the log has a line with this content, and returns the line.
func (c *container) said(content string) logLine {
	c.Helper()
	var found logLine
	test.Eventually(c, fmt.Sprintf("the log of %s has %q", c.id, content), func() bool {
		for _, l := range c.lines() {
			if l.content == content {
				found = l
				return true
			}
		}
		return false
	})
	return found
}

// pids lists the container's processes.
func (c *container) pids() []uint32 {
	c.Helper()
	r := test.Value(c.task.Pids(c.ctx(), &taskAPI.PidsRequest{ID: c.id}))(c)
	var pids []uint32
	for _, p := range r.Processes {
		pids = append(pids, p.Pid)
	}
	return pids
}

// send writes into the stdin FIFO.
func (c *container) send(text string) {
	c.Helper()
	c.done(c.keepIn.WriteString(text))
}

// exits waits for the exit of the container, and checks its status.
func (c *container) exits(status uint32) {
	c.Helper()
	if exit := c.wait(); exit.Status != status || exit.Unknown {
		c.Errorf("the exit of %s is %+v, want status %d", c.id, exit, status)
	}
}
