package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	// maxExecOutput is how much of each stream ExecSync returns (CRI proto).
	maxExecOutput = 16 << 20
	// execAnswer is how much ExecSync returns of both together: a kubelet takes no
	// message over 16 MiB, and would get nothing of one that is.
	execAnswer = maxExecOutput - 64
	// smallOutput is how much of each stream needs no share of outputMemory.
	smallOutput = 32 << 10
	// outputMemory is what large outputs of all commands may have, largeOutput what one
	// command reserves. It reserves all of it at once, so that commands that wait hold nothing.
	outputMemory = 64 << 20
	largeOutput  = 2 * maxExecOutput
)

// fitAnswer shortens what a command wrote to what an answer has room for. Neither
// stream takes from the other's half what that needs. Pure.
func fitAnswer(stdout, stderr int) (out, errOut int) {
	errOut = min(stderr, max(execAnswer/2, execAnswer-stdout))
	return min(stdout, execAnswer-errOut), errOut
}

// Answer has what the command wrote.
func (e *Execution) Answer(exit int32) *runtimeapi.ExecSyncResponse {
	stdout, stderr := e.stdout.kept(), e.stderr.kept()
	out, errOut := fitAnswer(len(stdout), len(stderr))
	return &runtimeapi.ExecSyncResponse{ExitCode: exit, Stdout: stdout[:out], Stderr: stderr[:errOut]}
}

func newReservation(ctx context.Context, memory *semaphore.Weighted) *reservation {
	ctx, stop := context.WithCancel(ctx)
	return &reservation{memory: memory, ctx: ctx, stop: stop}
}

// reservation is a command's share of the memory for large outputs.
type reservation struct {
	memory  *semaphore.Weighted // nil is no bound
	ctx     context.Context     // while the command may run
	stop    context.CancelFunc
	once    sync.Once
	waiting atomic.Bool
	err     error // set by once: why there is no share
	held    bool  // set by once
}

// take waits for the share until the command's time is over.
func (r *reservation) take() error {
	r.once.Do(func() {
		if r.memory == nil {
			return
		}
		r.waiting.Store(true)
		defer r.waiting.Store(false)
		if err := r.memory.Acquire(r.ctx, largeOutput); err != nil {
			r.err = fmt.Errorf("large outputs of other commands use all memory for them (%d MiB); try again later: %w", outputMemory>>20, errdefs.ErrResourceExhausted)
			return
		}
		r.held = true
	})
	return r.err
}

// end gives the share back, and lets no more be taken. It returns what take failed with.
func (r *reservation) end() error {
	r.stop()
	r.once.Do(func() { r.err = os.ErrClosed })
	if r.held {
		r.held = false
		r.memory.Release(largeOutput)
	}
	return r.err
}

// output is a stream of a command, read from a FIFO of its own.
type output struct {
	path  string
	large *reservation
	file  *os.File
	done  chan struct{}
	once  sync.Once

	mu   sync.Mutex // guards text
	text []byte
}

func newOutput(path string, large *reservation) (*output, error) {
	if err := unix.Mkfifo(path, 0o600); err != nil {
		return nil, fmt.Errorf("create pipe %s: %w", path, err)
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open pipe: %w", err), os.Remove(path))
	}
	return &output{path: path, large: large, file: f, done: make(chan struct{})}, nil
}

// collect begins to read. What is over the limit is read and dropped, so that the command
// waits for nothing but memory.
func (o *output) collect() { o.once.Do(func() { go o.read() }) }

func (o *output) read() {
	defer close(o.done)
	buf := make([]byte, smallOutput)
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

// keep takes a copy of a chunk, as far as it fits and there is memory.
func (o *output) keep(chunk []byte) {
	if len(o.kept())+len(chunk) > smallOutput && o.large.take() != nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text = append(o.text, chunk[:min(len(chunk), maxExecOutput-len(o.text))]...)
}

func (o *output) kept() []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text
}

func (o *output) close() {
	_ = o.file.Close()
	_ = os.Remove(o.path)
}
