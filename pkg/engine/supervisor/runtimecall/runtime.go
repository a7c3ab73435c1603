// Package runtimecall calls an OCI runtime once, and extracts its error from its output.
package runtimecall

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/mountpoint"
	"github.com/berth-cri/berth/pkg/engine/procfs"
	"github.com/berth-cri/berth/pkg/engine/supervisor/journal"
	"github.com/berth-cri/berth/pkg/engine/supervisor/processes"
)

const (
	// defaultCallTimeout bounds a runtime call if the options do not.
	defaultCallTimeout = 2 * time.Minute
	// maxCaptured bounds how much of a runtime's output is read.
	maxCaptured = 256 * 1024
	// maxMessage bounds the length of a runtime's message in an error.
	maxMessage = 700
)

// Call is one invocation of a runtime.
type Call struct {
	Options *journal.Options
	Args    []string // the subcommand and its arguments
	LogFile string   // where the runtime writes its errors; empty for stderr
	// Stdio is passed on to the container. Without it the runtime gets no input and its output is
	// captured.
	Stdio *[3]int
	// Flags precede the configured flags.
	Flags []string
	// DeathSignal is sent to the runtime when this process dies.
	DeathSignal syscall.Signal
	// Score is the oom_score_adj of the runtime, which its children inherit; nil keeps the score of
	// this process.
	Score *int
	// Environment is added to the environment that every call gets.
	Environment []string
	// ByCRIU is set if the runtime waits for CRIU, which may die unnoticed.
	ByCRIU bool
	// Begun receives the runtime's process; the call is killed if Begun returns an error.
	Begun func(runtime processes.Process) error
}

// argv returns the whole command line. The configured flags follow berth's, and so override them.
func (c *Call) argv() []string {
	o := c.Options
	argv := []string{o.Runtime, "--root", o.Root}
	if o.SystemdCgroup {
		argv = append(argv, "--systemd-cgroup")
	}
	if c.LogFile != "" {
		argv = append(argv, "--log", c.LogFile, "--log-format", "json")
	}
	argv = append(append(argv, c.Flags...), o.GlobalFlags...)
	return append(argv, c.Args...)
}

// Error is a runtime's exit with a status other than 0.
type Error struct {
	verb    string
	status  uint32
	Message string
	// versionCommand is a command line that shows whether the runtime runs at all.
	versionCommand string
}

// Error returns the runtime's message, or without one its exit status and advice.
func (e *Error) Error() string {
	if e.Message != "" {
		return e.Message
	}
	return fmt.Sprintf("%s; see whether %q works, and what the kernel logged (dmesg)", e.End(), e.versionCommand)
}

// End describes the exit of the call, without the runtime's message.
func (e *Error) End() string {
	if e.status > 128 {
		return fmt.Sprintf("the runtime's %s was killed by signal %d", e.verb, e.status-128)
	}
	return fmt.Sprintf("the runtime's %s exited with status %d", e.verb, e.status)
}

// Invoke runs a call to its end and returns the runtime's output. When ctx ends or after Limit, it
// kills the call's process group and returns the error of Aborted.
func (c *Call) Invoke(ctx context.Context, p *processes.Set) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, Limit(c.Options))
	defer cancel()

	return c.InvokeForever(ctx, p)
}

// InvokeForever is Invoke without Limit.
func (c *Call) InvokeForever(ctx context.Context, p *processes.Set) ([]byte, error) {
	r, err := c.begin(p)
	if err != nil {
		return nil, err
	}
	defer r.close()
	if c.Begun != nil {
		if err := c.Begun(r.process()); err != nil {
			r.end()
			return nil, err
		}
	}
	var lost <-chan struct{} // never
	if c.ByCRIU {
		lost = r.lostCRIU()
	}
	select {
	case <-r.ended:
		return r.result()
	case <-lost:
		r.end()
		return nil, errLostCRIU
	case <-ctx.Done():
		r.end()
		return nil, c.Aborted(ctx, r.wrote())
	}
}

// Limit returns the time limit of a runtime call.
func Limit(o *journal.Options) time.Duration {
	if o.CallTimeout <= 0 {
		return defaultCallTimeout
	}
	return o.CallTimeout
}

// ErrNoRuntime reports that a runtime is missing, or this process has no permission to execute it.
var ErrNoRuntime = errors.New("the runtime binary cannot be run; reinstall it")

// RemoveState removes an exited container's state in place of a runtime that is missing, or that
// failed to delete the container. Otherwise the pod could never be removed.
func RemoveState(root, id string) error {
	dir := filepath.Join(root, id)
	if err := mountpoint.UnmountBelow(dir); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

// invocation is a runtime call in progress.
type invocation struct {
	processes  *processes.Set
	call       *Call
	pid, pidfd int
	stdout     *os.File // captured; nil if it goes to the container
	stderr     *os.File
	ended      chan struct{}
}

// begin starts the call. The caller kills it with end, or waits for ended and calls result.
func (c *Call) begin(p *processes.Set) (_ *invocation, retErr error) {
	r := &invocation{processes: p, call: c, ended: make(chan struct{})}
	defer func() {
		if retErr != nil {
			r.closeFiles()
		}
	}()
	files, err := r.openFiles()
	if err != nil {
		return nil, err
	}
	if c.Stdio == nil {
		defer unix.Close(int(files[0]))
	}
	r.pid, r.pidfd, err = p.Fork(processes.Command{
		Argv: c.argv(), Environment: environment(c.Environment...), Files: files,
		DeathSignal: c.DeathSignal, Score: c.Score,
	})
	if err != nil {
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
			err = fmt.Errorf("%w: %w: %w", ErrNoRuntime, err, errdefs.ErrFailedPrecondition)
		}
		return nil, err
	}
	if err := p.Ended(r.pidfd, func() { close(r.ended) }); err != nil {
		r.kill()
		p.ReapWhenDead(r.pid, r.pidfd)
		return nil, err
	}
	return r, nil
}

func (r *invocation) openFiles() ([]uintptr, error) {
	if s := r.call.Stdio; s != nil {
		return []uintptr{uintptr(s[0]), uintptr(s[1]), uintptr(s[2])}, nil
	}
	var err error
	if r.stdout, err = Capture("stdout"); err != nil {
		return nil, err
	}
	if r.stderr, err = Capture("stderr"); err != nil {
		return nil, err
	}
	null, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return []uintptr{uintptr(null), r.stdout.Fd(), r.stderr.Fd()}, nil
}

// Capture returns a file for output. Unlike a pipe, it needs no reader while it is written.
func Capture(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// Captured returns the start of what was written to a file of Capture; nil for nil.
func Captured(f *os.File) []byte {
	if f == nil {
		return nil
	}
	b, _ := io.ReadAll(io.NewSectionReader(f, 0, maxCaptured))
	return b
}

func (r *invocation) kill() { _ = unix.Kill(-r.pid, unix.SIGKILL) }

func (r *invocation) process() processes.Process {
	p := processes.Process{PID: r.pid}
	if stat, err := procfs.StatOf(r.pid); err == nil { // it is not reaped before result or end
		p.StartTime = stat.Started
	}
	return p
}

// end kills the call and reaps it.
func (r *invocation) end() {
	r.kill()
	select {
	case <-r.ended:
		_, _ = r.processes.Reap(r.pid, r.pidfd)
	case <-time.After(processes.KilledTimeout):
		// It hangs in the kernel; reap it whenever it exits.
		go r.reapLater(r.pidfd)
		r.pidfd = -1
	}
}

// Aborted returns the error of a call that was killed after ctx ended; output is what the call
// wrote before.
func (c *Call) Aborted(ctx context.Context, output []byte) error {
	verb := c.Args[0]
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("the runtime's %s was killed: %w", verb, context.Canceled)
	}
	wrote := "it wrote no error"
	if last := Message(output); last != "" {
		wrote = "it last wrote: " + last
	}
	longer := ""
	if verb == "run" || verb == "create" || verb == "restore" {
		longer = "; if the runtime only needs more time, raise the handler's container_create_timeout, and start_timeout if that is set"
	}
	return fmt.Errorf("the runtime's %s timed out and was killed (%s); see whether %q hangs too, and what the runtime waits for, such as a disk or a cgroup (dmesg)%s; %s: %w",
		verb, strings.Join(c.argv(), " "), c.versionCommand(), longer, wrote, context.DeadlineExceeded)
}

// versionCommand returns the command line for the runtime's version, with the same flags.
func (c *Call) versionCommand() string {
	asks := Call{Options: c.Options, Args: []string{"--version"}}
	return strings.Join(asks.argv(), " ")
}

// wrote returns what the runtime wrote to its log and to a captured stderr.
func (r *invocation) wrote() []byte {
	output := Captured(r.stderr)
	if r.call.LogFile != "" {
		output = append(output, ReadTail(r.call.LogFile)...)
	}
	return output
}

func (r *invocation) reapLater(pidfd int) {
	<-r.ended
	_, _ = r.processes.Reap(r.pid, pidfd)
	unix.Close(pidfd)
}

func (r *invocation) result() ([]byte, error) {
	status, err := r.processes.Reap(r.pid, r.pidfd)
	if err != nil {
		return nil, fmt.Errorf("reap the runtime: %w", err)
	}
	out := Captured(r.stdout)
	if status == 0 {
		return out, nil
	}
	return out, &Error{verb: r.call.Args[0], status: status, Message: Message(r.wrote()), versionCommand: r.call.versionCommand()}
}

func (r *invocation) close() {
	r.closeFiles()
	if r.pidfd >= 0 {
		unix.Close(r.pidfd)
	}
}

func (r *invocation) closeFiles() {
	for _, f := range []*os.File{r.stdout, r.stderr} {
		if f != nil {
			f.Close()
		}
	}
}

// environment returns the environment of a runtime: that of this process without the variables for
// the supervisor itself, plus the added ones. runc would pass NOTIFY_SOCKET on to the container.
func environment(added ...string) []string {
	var env []string
	for _, kv := range os.Environ() {
		switch name, _, _ := strings.Cut(kv, "="); name {
		case "NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "WATCHDOG_USEC", "WATCHDOG_PID", journal.InheritEnv:
		default:
			if !slices.ContainsFunc(added, func(kv string) bool { return strings.HasPrefix(kv, name+"=") }) {
				env = append(env, kv)
			}
		}
	}
	return append(env, added...)
}

// helpTimeout bounds a call of the runtime's help.
const helpTimeout = 10 * time.Second

// Knows reports whether the runtime's help, on stdout or stderr, contains a flag.
func Knows(ctx context.Context, p *processes.Set, o *journal.Options, flag string, help ...string) bool {
	ctx, cancel := context.WithTimeout(ctx, helpTimeout)
	defer cancel()
	text, err := Capture("help")
	if err != nil {
		return false
	}
	defer text.Close()
	fd := int(text.Fd())
	_, err = (&Call{Options: o, Args: help, Stdio: &[3]int{fd, fd, fd}}).InvokeForever(ctx, p)
	return err == nil && strings.Contains(string(Captured(text)), flag)
}
