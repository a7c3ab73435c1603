package session

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"

	"github.com/berth-cri/berth/pkg/engine/binaries"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/engine/streaming"
	"github.com/berth-cri/berth/pkg/engine/task"
	"github.com/berth-cri/berth/pkg/engine/validate"
	supervisorapi "github.com/berth-cri/berth/proto/berth/supervisor/v1"
)

// streams serves Exec, Attach and PortForward: the calls return a URL, and sessions runs the
// session that a client opens there.
type streams struct {
	pods   *pod.Registry
	server *streaming.Server
}

// Exec returns the URL of a session with a new process in a RUNNING container.
func (b streams) Exec(_ context.Context, r *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	if err := validate.Exec(r); err != nil {
		return nil, err
	}
	c, err := b.pods.Index.Running(r.GetContainerId())
	if err != nil {
		return nil, err
	}
	r.ContainerId = c.ID()
	return b.server.GetExec(r)
}

// Attach returns the URL of a session with the first process of a RUNNING container.
func (b streams) Attach(_ context.Context, r *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	if err := validate.Attach(r); err != nil {
		return nil, err
	}
	c, err := b.pods.Index.Running(r.GetContainerId())
	if err != nil {
		return nil, err
	}
	if r.GetTty() != c.Config().GetTty() {
		return nil, fmt.Errorf("container %s was created with tty=%v; attach with the same setting: %w", c.ID(), c.Config().GetTty(), errdefs.ErrInvalidArgument)
	}
	r.ContainerId = c.ID()
	return b.server.GetAttach(r)
}

// PortForward returns the URL of a session with the ports of a READY sandbox.
func (b streams) PortForward(_ context.Context, r *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error) {
	if err := validate.PortForward(r); err != nil {
		return nil, err
	}
	s, err := b.pods.Index.Sandbox(r.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	if err := s.Open(); err != nil {
		return nil, err
	}
	r.PodSandboxId = s.ID()
	return b.server.GetPortForward(r)
}

type sessions struct {
	binaries *binaries.Binaries
	execs
	shims *shim.Manager
}

type terminalSizes = <-chan remotecommand.TerminalSize

// Exec runs a command with the client's streams until it exits. If the client disconnects, the
// process is killed.
func (b sessions) Exec(ctx context.Context, id string, cmd []string, in io.Reader, out, errOut io.WriteCloser, tty bool, sizes terminalSizes) (err error) {
	c, err := b.execs.pods.Index.Running(id)
	if err != nil {
		return err
	}
	client, err := b.execs.tasks.Worker(ctx, c.Sandbox)
	if err != nil {
		return err
	}
	var size *specs.Box
	if tty {
		size = firstSize(ctx, sizes)
	}
	process, err := b.execs.process(c, cmd, tty, size)
	if err != nil {
		return err
	}
	e := &Execution{Client: client, Container: c.ID(), ID: NewExecID(), KillsTree: c.Sandbox.KillsTree(), Dir: filepath.Join(b.execs.pods.ContainerDir(c.ID()), "io")}
	// Outputs have pipes even if the client reads none: containerd's runc shim requires them.
	pipes, err := newPipes(filepath.Join(e.Dir, e.ID), in != nil, true, !tty)
	if err != nil {
		return err
	}
	defer pipes.close()
	defer e.Clean() // runs before pipes.close: the names of pipes identify the command's descendants
	var copied <-chan struct{}
	code, err := e.run(ctx, &taskapi.ExecProcessRequest{
		Terminal: tty, Stdin: pipes.in.path(), Stdout: pipes.out.path(), Stderr: pipes.err.path(), Spec: process,
	}, func() {
		copied = pipes.copy(in, out, errOut, func() { b.closeStdin(client, c.ID(), e.ID) })
		go func() {
			if size != nil { // not all runtimes read it from the spec
				b.resizeTo(ctx, client, c.ID(), e.ID, remotecommand.TerminalSize{Width: uint16(size.Width), Height: uint16(size.Height)})
			}
			b.resize(ctx, client, c.ID(), e.ID, sizes)
		}()
	})
	if err != nil {
		return classified(ctx, c, client, err)
	}
	pipes.processEnded(drainTimeout)
	select {
	case <-copied:
	case <-ctx.Done():
	}
	if code != 0 {
		return utilexec.CodeExitError{Err: fmt.Errorf("command terminated with exit code %d", code), Code: int(code)}
	}
	return nil
}

// Attach connects the client's streams to a running container until either side closes. Earlier
// output is in the log.
func (b sessions) Attach(ctx context.Context, id string, in io.Reader, out, errOut io.WriteCloser, tty bool, sizes terminalSizes) error {
	c, err := b.execs.pods.Index.Running(id)
	if err != nil {
		return err
	}
	// A supervisor also owns the streams of a foreign shim.
	owner, err := b.shims.Supervisor(ctx, c.Sandbox.Spec().Supervisor)
	if err != nil {
		return err
	}
	client, err := c.Sandbox.Runner.Client(ctx)
	if err != nil {
		return err
	}
	if !c.Config().GetStdin() {
		in = nil
	}
	pipes, err := newPipes(filepath.Join(b.execs.pods.ContainerDir(c.ID()), "io", attachPrefix+NewExecID()), in != nil, out != nil, errOut != nil && !tty)
	if err != nil {
		return err
	}
	defer pipes.close()
	if _, err := owner.Supervisor.Attach(ctx, &supervisorapi.AttachRequest{
		Id: c.ID(), Stdin: pipes.in.path(), Stdout: pipes.out.path(), Stderr: pipes.err.path(),
		// With stdin_once false, stdin stays open for the next client. The container does not see
		// the end of this client's input, so the attach ends without waiting for the container.
		UntilStdinEnds: in != nil && !c.Config().GetStdinOnce(),
		CloseStdin:     in != nil && c.Config().GetStdinOnce(),
	}); err != nil {
		return task.FromShim(err)
	}
	inputSent := make(chan struct{})
	copied := pipes.copy(in, out, errOut, func() {
		close(inputSent)
		if c.Config().GetStdinOnce() && !c.Sandbox.ClosesStdin() {
			b.closeStdin(client, c.ID(), "") // otherwise the supervisor closes it
		}
	})
	if out == nil && errOut == nil {
		copied = inputSent
	}
	go b.resize(ctx, client, c.ID(), "", sizes)
	err = b.attached(ctx, c, pipes, copied)
	if in != nil && ctx.Err() != nil {
		// The client's last input may still be on its way.
		awaitFor(inputSent, lastInput)
	}
	return err
}

// lastInput is how long to wait for a client's last input after it disconnected.
const lastInput = time.Second

// attached waits for the end of an attach. It returns an error if output was dropped because the
// client reads more slowly than the container writes.
func (b sessions) attached(ctx context.Context, c *pod.Container, p *pipes, copied <-chan struct{}) error {
	select {
	case <-copied:
	case <-ctx.Done():
	case <-c.Exited:
		if p.out == nil && p.err == nil {
			return nil
		}
		p.processEnded(drainTimeout)
		select {
		case <-copied:
		case <-ctx.Done():
		}
	}
	if p.out.unlinked() || p.err.unlinked() {
		return fmt.Errorf("container %s writes faster than this client reads, so output was dropped; its log is complete", c.ID())
	}
	return nil
}

func awaitFor(happened <-chan struct{}, bound time.Duration) {
	select {
	case <-happened:
	case <-time.After(bound):
	}
}

func (b sessions) closeStdin(client *shim.Client, id, execID string) {
	ctx, cancel := context.WithTimeout(b.execs.pods.Background, execCleanTimeout)
	defer cancel()
	if _, err := client.Task.CloseIO(ctx, &taskapi.CloseIORequest{ID: id, ExecID: execID, Stdin: true}); err != nil && !errdefs.IsNotFound(task.FromShim(err)) {
		log.G(ctx).WithError(err).WithField("container", id).Debug("Failed to close stdin")
	}
}

// sizeWait is how long a command waits for the size of its client's terminal. Clients that have one
// send it as soon as the session is open.
const sizeWait = 100 * time.Millisecond

// firstSize is the terminal's initial size, or nil if the client sends none in time. A program that
// queries the size before it is set would draw for a terminal of size 0.
func firstSize(ctx context.Context, sizes terminalSizes) *specs.Box {
	enough := time.After(sizeWait)
	for {
		var size remotecommand.TerminalSize
		var ok bool
		select {
		case size, ok = <-sizes:
		case <-enough:
			select { // a size at the last moment, which a busy node may read late
			case size, ok = <-sizes:
			default:
				return nil
			}
		case <-ctx.Done():
			return nil
		}
		if !ok {
			return nil
		}
		if size.Width > 0 && size.Height > 0 {
			return &specs.Box{Width: uint(size.Width), Height: uint(size.Height)}
		}
	}
}

// resize forwards the sizes of the client's terminal until its session ends.
func (b sessions) resize(ctx context.Context, client *shim.Client, id, execID string, sizes terminalSizes) {
	for {
		select {
		case size, ok := <-sizes:
			if !ok {
				return
			}
			if size.Width > 0 && size.Height > 0 {
				b.resizeTo(ctx, client, id, execID, size)
			}
		case <-ctx.Done():
			return
		}
	}
}

func (b sessions) resizeTo(ctx context.Context, client *shim.Client, id, execID string, size remotecommand.TerminalSize) {
	r := &taskapi.ResizePtyRequest{ID: id, ExecID: execID, Width: uint32(size.Width), Height: uint32(size.Height)}
	if _, err := client.Task.ResizePty(ctx, r); err != nil {
		log.G(ctx).WithError(err).WithField("container", id).Debug("Failed to resize terminal")
	}
}
