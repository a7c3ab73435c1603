package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"sync"

	"github.com/containerd/log"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/pod"
)

const (
	// maxExecOutput is how much of each stream ExecSync returns (CRI proto).
	maxExecOutput = 16 << 20
	// execAnswer is how much ExecSync returns of both together: a kubelet takes no
	// message over 16 MiB, and would get nothing of one that is.
	execAnswer = maxExecOutput - 64
	// execInMemory is how much of each stream is kept in memory.
	execInMemory = 32 << 10
	// largeAnswer is from where on answers are given one after another, in bytes.
	largeAnswer = 1 << 20
)

// fitAnswer shortens what a command wrote to what an answer has room for. Neither
// stream takes from the other's half what that needs. Pure.
func fitAnswer(stdout, stderr int) (out, errOut int) {
	errOut = min(stderr, max(execAnswer/2, execAnswer-stdout))
	return min(stdout, execAnswer-errOut), errOut
}

// answers puts what commands wrote into answers: large ones one at a time, since
// each is in memory twice until it is sent.
type answers struct{ large pod.OpLock }

// of is the answer for a command that has ended. Its room is taken until call, the
// context of the caller's call, is over: until it was handed to the connection.
func (a answers) of(call context.Context, e *Execution, exit int32) (*runtimeapi.ExecSyncResponse, error) {
	if e.stdout.size()+e.stderr.size() > largeAnswer {
		if err := a.large.Lock(call); err != nil {
			return nil, execError(call, err)
		}
		context.AfterFunc(call, func() {
			debug.FreeOSMemory() // or the next answers pile up on the rests of this one
			a.large.Unlock()
		})
	}
	return e.Answer(exit)
}

// Answer is in memory as a whole.
func (e *Execution) Answer(exit int32) (*runtimeapi.ExecSyncResponse, error) {
	out, errOut := fitAnswer(e.stdout.size(), e.stderr.size())
	stdout, err := e.stdout.first(out)
	if err != nil {
		return nil, err
	}
	stderr, err := e.stderr.first(errOut)
	if err != nil {
		return nil, err
	}
	return &runtimeapi.ExecSyncResponse{ExitCode: exit, Stdout: stdout, Stderr: stderr}, nil
}

// gauge counts what goes on at a time.
type gauge struct {
	limit int // 0 is no limit

	mu  sync.Mutex
	now int
}

func (g *gauge) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.limit > 0 && g.now >= g.limit {
		return false
	}
	g.now++
	return true
}

func (g *gauge) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.now--
}

// output is a stream of a command, read from a FIFO of its own. What does not fit
// into memory is in a file without a name.
type output struct {
	path  string
	spill string // the directory of that file
	file  *os.File
	done  chan struct{}
	once  sync.Once

	mu   sync.Mutex // guards all below
	head []byte
	rest *os.File
	more int   // bytes in rest
	err  error // why something is missing
}

func newOutput(path, spill string) (*output, error) {
	if err := unix.Mkfifo(path, 0o600); err != nil {
		return nil, fmt.Errorf("create pipe %s: %w", path, err)
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open pipe: %w", err), os.Remove(path))
	}
	return &output{path: path, spill: spill, file: f, done: make(chan struct{})}, nil
}

// collect begins to read. What is over the limit is read and dropped, so that
// the command never waits.
func (o *output) collect() { o.once.Do(func() { go o.read() }) }

func (o *output) read() {
	defer close(o.done)
	buf := make([]byte, execInMemory)
	for {
		n, err := o.file.Read(buf)
		o.keep(buf[:n])
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, os.ErrClosed) {
				log.L.WithError(err).Debug("Failed to read exec output")
			}
			return
		}
	}
}

// keep takes a copy of a chunk, as far as it can be of use.
func (o *output) keep(chunk []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	chunk = chunk[:min(len(chunk), maxExecOutput-len(o.head)-o.more)]
	fits := min(len(chunk), execInMemory-len(o.head))
	o.head = append(o.head, chunk[:fits]...)
	chunk = chunk[fits:]
	if len(chunk) == 0 || o.err != nil {
		return
	}
	if o.rest == nil {
		rest, err := unnamed(o.spill)
		if err != nil {
			o.lose(err)
			return
		}
		o.rest = rest
	}
	n, err := o.rest.Write(chunk)
	o.more += n
	if err != nil {
		o.lose(err)
	}
}

// lose cuts the output off where it cannot be kept, as on a full disk: how the
// command ended says more than the end of what it wrote. o.mu is held.
func (o *output) lose(err error) {
	o.err = err
	log.L.WithError(err).WithField("directory", o.spill).Warn("Failed to keep exec output; the rest is missing from the response")
}

// unnamed makes a file that is gone when it is closed.
func unnamed(dir string) (*os.File, error) {
	f, err := os.OpenFile(dir, os.O_RDWR|unix.O_TMPFILE, 0o600)
	if !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EISDIR) {
		return f, err
	}
	if f, err = os.CreateTemp(dir, "exec-output-*"); err != nil {
		return nil, err
	}
	return f, os.Remove(f.Name())
}

func (o *output) size() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.head) + o.more
}

// first returns the first size bytes, of which there are so many.
func (o *output) first(size int) ([]byte, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := make([]byte, size)
	n := copy(all, o.head)
	if n < size {
		if _, err := o.rest.ReadAt(all[n:], 0); err != nil {
			return nil, fmt.Errorf("read the command's output: %w", err)
		}
	}
	return all, nil
}

func (o *output) close() {
	_ = o.file.Close()
	_ = os.Remove(o.path)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.rest != nil {
		_ = o.rest.Close()
		o.err = os.ErrClosed // a descendant may still write
	}
}
