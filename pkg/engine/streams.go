package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"

	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/engine/streaming"
	"github.com/berth-cri/berth/pkg/engine/validate"
	supervisorapi "github.com/berth-cri/berth/proto/berth/supervisor/v1"
)

// streams serves Exec, Attach and PortForward: the calls return a URL, and the
// session that a client opens there is run by sessions.
type streams struct {
	*core
	server *streaming.Server
}

// Exec returns the URL of a session with a new process in a RUNNING container.
func (b streams) Exec(_ context.Context, r *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	if err := validate.Exec(r); err != nil {
		return nil, err
	}
	c, err := b.running(r.GetContainerId())
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
	c, err := b.running(r.GetContainerId())
	if err != nil {
		return nil, err
	}
	if r.GetTty() != c.config().GetTty() {
		return nil, fmt.Errorf("container %s was created with tty=%v, attach to it with the same: %w", c.ID(), c.config().GetTty(), errdefs.ErrInvalidArgument)
	}
	r.ContainerId = c.ID()
	return b.server.GetAttach(r)
}

// PortForward returns the URL of a session with the ports of a READY sandbox.
func (b streams) PortForward(_ context.Context, r *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error) {
	if err := validate.PortForward(r); err != nil {
		return nil, err
	}
	s, err := b.objects.sandbox(r.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	if err := s.open(); err != nil {
		return nil, err
	}
	r.PodSandboxId = s.ID()
	return b.server.GetPortForward(r)
}

func (k *core) running(id string) (*container, error) {
	c, err := k.objects.container(id)
	if err != nil {
		return nil, err
	}
	if c.Status().Phase != phaseRunning {
		return nil, fmt.Errorf("container %s does not run: %w", c.ID(), errdefs.ErrFailedPrecondition)
	}
	return c, nil
}

// sessions runs what clients of the URLs ask for.
type sessions struct{ *core }

type terminalSizes = <-chan remotecommand.TerminalSize

// Exec runs a command with the client's streams and returns when it has ended.
// A client that goes away takes its process along.
func (b sessions) Exec(ctx context.Context, id string, cmd []string, in io.Reader, out, errOut io.WriteCloser, tty bool, sizes terminalSizes) (err error) {
	c, err := b.running(id)
	if err != nil {
		return err
	}
	client, err := b.client(ctx, c.sandbox)
	if err != nil {
		return err
	}
	process, err := execs(b).process(c, cmd, tty)
	if err != nil {
		return err
	}
	e := &execution{client: client, container: c.ID(), id: newExecID(), dir: filepath.Join(b.containerDir(c.ID()), "io")}
	defer e.clean()
	pipes, err := newPipes(filepath.Join(e.dir, e.id), in, out, errOut, tty)
	if err != nil {
		return err
	}
	defer pipes.close()
	if _, err := client.Task.Exec(ctx, &taskapi.ExecProcessRequest{
		ID: c.ID(), ExecID: e.id, Terminal: tty, Stdin: pipes.in.path(), Stdout: pipes.out.path(), Stderr: pipes.err.path(), Spec: process,
	}); err != nil {
		return fromShim(err)
	}
	e.made, e.started = true, true
	if _, err := client.Task.Start(ctx, &taskapi.StartRequest{ID: c.ID(), ExecID: e.id}); err != nil {
		return fromShim(err)
	}
	copied := pipes.copy(in, out, errOut, func() { b.closeStdin(client, c.ID(), e.id) })
	go b.resize(ctx, client, c.ID(), e.id, sizes)
	exit, err := client.Task.Wait(ctx, &taskapi.WaitRequest{ID: c.ID(), ExecID: e.id})
	if err != nil {
		return fromShim(err)
	}
	e.started = false
	awaitCopied(ctx, copied, b.config.ExecSyncDrainTimeout)
	if code := int(exit.GetExitStatus()); code != 0 {
		return utilexec.CodeExitError{Err: fmt.Errorf("command ended with exit code %d", code), Code: code}
	}
	return nil
}

// Attach connects the client's streams to a running container until either side
// is done. What was written before is in the log.
func (b sessions) Attach(ctx context.Context, id string, in io.Reader, out, errOut io.WriteCloser, tty bool, sizes terminalSizes) error {
	c, err := b.running(id)
	if err != nil {
		return err
	}
	// Foreign shims' streams are in the hands of a supervisor as well.
	owner, err := b.shims.Supervisor(ctx, c.sandbox.Spec().Supervisor)
	if err != nil {
		return err
	}
	client, err := b.client(ctx, c.sandbox)
	if err != nil {
		return err
	}
	if !c.config().GetStdin() {
		in = nil
	}
	pipes, err := newPipes(filepath.Join(b.containerDir(c.ID()), "io", "attach-"+newExecID()), in, out, errOut, tty)
	if err != nil {
		return err
	}
	defer pipes.close()
	if _, err := owner.Supervisor.Attach(ctx, &supervisorapi.AttachRequest{
		Id: c.ID(), Stdin: pipes.in.path(), Stdout: pipes.out.path(), Stderr: pipes.err.path(),
		// Stdin stays open for the next client unless it is for the first only: the
		// container never learns that this one has said all, and is not waited for.
		UntilStdinEnds: in != nil && !c.config().GetStdinOnce(),
		CloseStdin:     in != nil && c.config().GetStdinOnce(),
	}); err != nil {
		return fromShim(err)
	}
	said := make(chan struct{})
	copied := pipes.copy(in, out, errOut, func() { close(said) })
	if out == nil && errOut == nil {
		copied = said
	}
	go b.resize(ctx, client, c.ID(), "", sizes)
	select {
	case <-copied:
	case <-c.exited:
		awaitCopied(ctx, copied, b.config.ExecSyncDrainTimeout)
	case <-ctx.Done():
	}
	return nil
}

func awaitCopied(ctx context.Context, copied <-chan struct{}, bound time.Duration) {
	t := time.NewTimer(bound)
	defer t.Stop()
	select {
	case <-copied:
	case <-t.C:
	case <-ctx.Done():
	}
}

func (b sessions) closeStdin(client *shim.Client, id, execID string) {
	ctx, cancel := context.WithTimeout(b.background, execCleanTimeout)
	defer cancel()
	if _, err := client.Task.CloseIO(ctx, &taskapi.CloseIORequest{ID: id, ExecID: execID, Stdin: true}); err != nil && !errdefs.IsNotFound(fromShim(err)) {
		log.G(ctx).WithError(err).WithField("container", id).Debug("close a process's stdin")
	}
}

// resize follows the client's terminal until its session ends.
func (b sessions) resize(ctx context.Context, client *shim.Client, id, execID string, sizes terminalSizes) {
	for {
		select {
		case size, ok := <-sizes:
			if !ok {
				return
			}
			if size.Width == 0 || size.Height == 0 {
				continue
			}
			r := &taskapi.ResizePtyRequest{ID: id, ExecID: execID, Width: uint32(size.Width), Height: uint32(size.Height)}
			if _, err := client.Task.ResizePty(ctx, r); err != nil {
				log.G(ctx).WithError(err).WithField("container", id).Debug("resize a terminal")
			}
		case <-ctx.Done():
			return
		}
	}
}

// pipe is a FIFO between a session and a process; nil where there is none.
type pipe struct{ file *os.File }

func (p *pipe) path() string {
	if p == nil {
		return ""
	}
	return p.file.Name()
}

// openPipe makes a FIFO. Opened for both ways it never blocks and never ends by
// itself; a reader that must see its end is opened for reading only.
func openPipe(path string, flag int) (*pipe, error) {
	if err := unix.Mkfifo(path, 0o600); err != nil {
		return nil, fmt.Errorf("make pipe %s: %w", path, err)
	}
	f, err := os.OpenFile(path, flag|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open pipe: %w", err), os.Remove(path))
	}
	return &pipe{f}, nil
}

func (p *pipe) close() {
	if p != nil {
		_ = p.file.Close()
		_ = os.Remove(p.file.Name())
	}
}

// pipes are the streams of one session.
type pipes struct{ in, out, err *pipe }

func newPipes(prefix string, in io.Reader, out, errOut io.Writer, tty bool) (_ *pipes, err error) {
	p := &pipes{}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	if in != nil {
		if p.in, err = openPipe(prefix+"-in", os.O_RDWR); err != nil {
			return nil, err
		}
	}
	if out != nil || tty {
		if p.out, err = openPipe(prefix+"-out", os.O_RDONLY); err != nil {
			return nil, err
		}
	}
	if errOut != nil && !tty {
		if p.err, err = openPipe(prefix+"-err", os.O_RDONLY); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func (p *pipes) close() {
	p.in.close()
	p.out.close()
	p.err.close()
}

// copy moves bytes until both outputs have ended, which closes the channel. The
// end of the input is passed on by inputEnded.
func (p *pipes) copy(in io.Reader, out, errOut io.Writer, inputEnded func()) <-chan struct{} {
	var wg sync.WaitGroup
	if p.out != nil && out != nil {
		wg.Go(func() { _, _ = io.Copy(out, p.out.file) })
	}
	if p.err != nil {
		wg.Go(func() { _, _ = io.Copy(errOut, p.err.file) })
	}
	if p.in != nil {
		go func() {
			_, _ = io.Copy(p.in.file, in)
			_ = p.in.file.Close()
			inputEnded()
		}()
	}
	copied := make(chan struct{})
	go func() { wg.Wait(); close(copied) }()
	return copied
}
