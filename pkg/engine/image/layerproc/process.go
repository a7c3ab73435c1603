// Package layerproc unpacks layers in child processes, so that a hostile layer ends its child and
// not the daemon.
//
// A child is this program, executed again. It has a memory limit, no network, and only those of
// root's capabilities that are needed to write files.
package layerproc

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/image/bounds"
	"github.com/berth-cri/berth/pkg/engine/thread"
)

// name is the process name of a child.
const name = "berth-unpack"

// Layer describes where and how a layer is unpacked.
type Layer struct {
	// Root is the directory that the layer is unpacked into.
	Root string
	// Overlay writes whiteouts in the form of overlayfs. Otherwise Root has the content of the
	// layers below, and whiteouts delete from it.
	Overlay bool
	// Below are the directories of the layers below, topmost first: a directory that
	// the layer only implies gets its owner and mode from there.
	Below []string
	// BelowPending is set while Below is unknown.
	BelowPending bool
	// Count receives the number of entries since its last call. Its error ends the unpacking. If
	// the layer must be unpacked again, Count receives the previous total as a negative number.
	Count func(entries int64) error `json:"-"`
}

// Result describes an unpacked layer.
type Result struct {
	// Digest and Size are those of the uncompressed layer.
	Digest  digest.Digest
	Size    int64
	Entries int64
}

// ErrBelow ends the unpacking of a layer with BelowPending that needs the layers below. The layer's
// directory is empty then.
var ErrBelow = errors.New("the layers below are needed")

// Process is a child. It unpacks one layer after the other.
type Process struct {
	memory  int64
	conn    *os.File          // a socket
	bound   *io.LimitedReader // of the next answer
	answers *json.Decoder
	cmd     *exec.Cmd
	stderr  firstBytes
	exited  chan struct{}
	// ended is set if the child has exited or will exit.
	ended bool
}

// Start starts a child with a memory limit in bytes.
func Start(memory int64) (*Process, error) {
	return startProgram(memory, "/proc/self/exe", name, strconv.FormatInt(memory, 10))
}

func startProgram(memory int64, path string, args ...string) (*Process, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, startError(err)
	}
	// Package net is not used: with it, a child would initialise more packages before it serves.
	conn, theirs := os.NewFile(uintptr(fds[0]), name), os.NewFile(uintptr(fds[1]), name)
	defer theirs.Close()
	p := &Process{memory: memory, conn: conn, bound: &io.LimitedReader{R: conn}, exited: make(chan struct{})}
	p.answers = json.NewDecoder(p.bound)
	p.cmd = &exec.Cmd{
		Path: path, Args: args, Dir: "/",
		// Go's garbage collector works harder before the limit is reached.
		Env:        []string{"GOMEMLIMIT=" + strconv.FormatInt(memory/4*3, 10), "GOGC=200"},
		ExtraFiles: []*os.File{theirs}, Stderr: &p.stderr,
		SysProcAttr: &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWIPC, Pdeathsig: syscall.SIGKILL},
	}
	started := make(chan error, 1)
	go p.run(started)
	if err := <-started; err != nil {
		return nil, errors.Join(startError(err), conn.Close())
	}
	return p, nil
}

// startError returns why no child could be started. Its class is ErrUnavailable if the node lacks
// namespaces, processes or threads.
func startError(err error) error {
	const start = "start a process that unpacks layers"
	switch {
	case errors.Is(err, unix.ENOSPC):
		return fmt.Errorf(start+": the node has as many network or IPC namespaces as it may have; raise sysctl user.max_net_namespaces and user.max_ipc_namespaces: %w", errdefs.ErrUnavailable)
	case errors.Is(err, unix.EAGAIN):
		return fmt.Errorf(start+": "+noThreads+": %w", errdefs.ErrUnavailable)
	}
	return fmt.Errorf(start+": %w", err)
}

const noThreads = "no process or thread is left; raise the limit of the daemon's unit (TasksMax) or of the node (kernel.threads-max, kernel.pid_max)"

// run occupies a thread for the life of the child: the kernel kills the child when the thread that
// started it ends.
func (p *Process) run(started chan<- error) {
	_ = thread.Run(func() error {
		err := dropCapabilities()
		if err == nil {
			err = p.cmd.Start()
		}
		started <- err
		if err == nil {
			_ = p.cmd.Wait() // lost reads the exit state
			close(p.exited)
		}
		return nil
	})
}

// needed are the capabilities to write the files of a layer. Whiteouts of overlayfs are devices and
// trusted attributes; the latter need CAP_SYS_ADMIN.
const needed = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_FOWNER | 1<<unix.CAP_FSETID |
	1<<unix.CAP_MKNOD | 1<<unix.CAP_SETFCAP | 1<<unix.CAP_SYS_ADMIN

// dropCapabilities limits what this thread executes to the needed capabilities.
func dropCapabilities() error {
	for c := uintptr(0); ; c++ {
		if uint64(needed)>>c&1 != 0 {
			continue
		}
		err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		if errors.Is(err, unix.EINVAL) {
			break // the kernel has no more
		}
		if err != nil {
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
	return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
}

// Unpack unpacks a layer of any compression. The child is killed when ctx ends. Errors are
// ErrBelow, errdefs.ErrInvalidArgument if the layer is the reason, ErrUnavailable if the node is
// the reason, ErrInternal if the child crashed otherwise, and errors of Count, ctx and the kernel.
func (p *Process) Unpack(ctx context.Context, l Layer, blob *os.File) (Result, error) {
	plain, end := gunzip(ctx, blob)
	unpacked, err := p.unpack(ctx, l, plain)
	// After a failed decompression the layer looks truncated.
	if broken := end(); broken != nil && ctx.Err() == nil {
		err = broken
	}
	return unpacked, err
}

func (p *Process) unpack(ctx context.Context, l Layer, blob *os.File) (Result, error) {
	stop := context.AfterFunc(ctx, func() { _ = p.cmd.Process.Kill() })
	defer func() { p.ended = !stop() || p.ended }()
	p.bound.N = maxAnswer
	if err := p.send(l, blob); err != nil {
		return Result{}, p.lost(ctx)
	}
	for counted := int64(0); ; p.bound.N = maxAnswer {
		var a answer
		if p.answers.Decode(&a) != nil {
			return Result{}, p.lost(ctx)
		}
		if err := l.Count(a.Entries - counted); err != nil {
			p.Close()
			return Result{}, err
		}
		counted = a.Entries
		if !a.More {
			p.ended = a.Last
			return a.Result, a.err()
		}
	}
}

// send sends a request. The message with its length carries the layer's file descriptor.
func (p *Process) send(l Layer, blob *os.File) error {
	request, err := json.Marshal(l)
	if err != nil {
		return err
	}
	length := binary.BigEndian.AppendUint32(nil, uint32(len(request))) //nolint:gosec // it fits
	err = unix.Sendmsg(int(p.conn.Fd()), length, unix.UnixRights(int(blob.Fd())), nil, unix.MSG_NOSIGNAL)
	if err == nil {
		_, err = p.conn.Write(request)
	}
	return err
}

// crashed is the exit status of Go's panics and of its runtime's failures.
const crashed = 2

// lost returns why the child does not answer.
func (p *Process) lost(ctx context.Context) error {
	p.Close()
	if err := ctx.Err(); err != nil {
		return err
	}
	state := p.cmd.ProcessState
	status, _ := state.Sys().(syscall.WaitStatus)
	if status.Signaled() && status.Signal() == syscall.SIGKILL && p.bound.N > 0 {
		return fmt.Errorf("process that unpacks the layer was killed: the node, or the daemon's cgroup, has no memory left: %w", errdefs.ErrUnavailable)
	}
	reason := p.reason()
	// Go's runtime, which may crash in its collector too, has many texts for a lack of memory.
	used := state.SysUsage().(*syscall.Rusage).Maxrss << 10
	switch {
	case strings.Contains(reason, "failed to create new OS thread"):
		return fmt.Errorf("process that unpacks the layer failed: %s: %w", noThreads, errdefs.ErrUnavailable)
	case strings.Contains(reason, "out of memory"), reason != "" && used > p.memory/3:
		return bounds.Beyond("layer takes more memory than registry.max_unpack_memory (%d bytes) to unpack; raise that if you trust the image", p.memory)
	}
	log.G(ctx).WithField("state", state.String()).WithField("stderr", string(p.stderr)).Error("Process that unpacks layers failed; please report this with its output")
	first, _, _ := strings.Cut(string(p.stderr), "\n")
	return fmt.Errorf("process that unpacks the layer failed (%s; the log has its output): %.200s: %w", state, first, errdefs.ErrInternal)
}

// reason returns the text of Go's runtime about a crash. It is empty if the child exited otherwise
// or panicked: the text of a panic may contain names in the layer.
func (p *Process) reason() string {
	text := string(p.stderr)
	if p.cmd.ProcessState.ExitCode() != crashed || strings.HasPrefix(text, "panic: ") {
		return ""
	}
	reason, _, _ := strings.Cut(text, "\n\n")
	return reason
}

// Usable reports whether the child accepts another layer. The node may have killed an idle child.
func (p *Process) Usable() bool {
	select {
	case <-p.exited:
		return false
	default:
		return !p.ended
	}
}

// Close ends the child, and waits for it.
func (p *Process) Close() {
	p.ended = true
	_ = p.cmd.Process.Kill()
	<-p.exited
	_ = p.conn.Close()
}

// maxStderr bounds what is kept of the standard error of a process.
const maxStderr = 2 << 10

// firstBytes keeps the beginning of what is written to it.
type firstBytes []byte

func (f *firstBytes) Write(b []byte) (int, error) {
	*f = append(*f, b[:min(len(b), maxStderr-len(*f))]...)
	return len(b), nil
}
