package session

import (
	"errors"
	"io"
	"os"
	"sync"

	"github.com/containerd/log"
	"golang.org/x/sync/semaphore"
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
	// outputMemory is what large outputs of all commands may have. Beyond it outputs are cut:
	// a probe must neither wait nor fail because of commands in other containers.
	outputMemory = 64 << 20
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

// output is a stream of a command, read from a FIFO of its own.
type output struct {
	*pipe
	memory *semaphore.Weighted // for what is over smallOutput; nil is no bound
	done   chan struct{}

	mu   sync.Mutex // guards what follows
	text []byte
	held int64 // of memory
	// full is set once something had no room, so that nothing is left out in the middle.
	full bool
}

func newOutput(path string, memory *semaphore.Weighted) (*output, error) {
	p, err := openPipe(path, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	return &output{pipe: p, memory: memory, done: make(chan struct{})}, nil
}

// collect begins to read. What there is no room for is read and dropped: the command never waits.
func (o *output) collect() { go o.read() }

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
	o.mu.Lock()
	defer o.mu.Unlock()
	chunk = chunk[:min(len(chunk), maxExecOutput-len(o.text))]
	large := int64(max(0, len(o.text)+len(chunk)-smallOutput)) - o.held
	switch {
	case o.full:
		return
	case large <= 0 || o.memory == nil:
	case !o.memory.TryAcquire(large):
		o.full = true
		log.L.WithField("pipe", o.path()).Warn("Output of a command is cut: outputs of other commands use all memory for them; run fewer of them at a time")
		chunk = chunk[:max(0, smallOutput-len(o.text))]
	default:
		o.held += large
	}
	o.text = append(o.text, chunk...)
}

func (o *output) kept() []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text
}

// release gives the memory back, and lets no more be taken.
func (o *output) release() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.full = true
	if o.held > 0 {
		o.memory.Release(o.held)
		o.held = 0
	}
}
