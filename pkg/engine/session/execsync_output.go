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
	// maxExecOutput is the most that ExecSync returns of each stream (CRI proto).
	maxExecOutput = 16 << 20
	// execAnswer is the most that ExecSync returns of both together: a kubelet rejects messages
	// over 16 MiB.
	execAnswer = maxExecOutput - 64
	// smallOutput is the part of each stream that is not counted in outputMemory.
	smallOutput = 32 << 10
	// outputMemory is shared by the large outputs of all commands. Beyond it outputs are cut: a
	// probe must neither wait nor fail because of commands in other containers.
	outputMemory = 64 << 20
)

// fitAnswer limits both streams to the size of a response. Each gets half of that size, and what
// the other leaves free. Pure.
func fitAnswer(stdout, stderr int) (out, errOut int) {
	errOut = min(stderr, max(execAnswer/2, execAnswer-stdout))
	return min(stdout, execAnswer-errOut), errOut
}

// Answer returns the response with the command's output.
func (e *Execution) Answer(exit int32) *runtimeapi.ExecSyncResponse {
	stdout, stderr := e.stdout.kept(), e.stderr.kept()
	out, errOut := fitAnswer(len(stdout), len(stderr))
	return &runtimeapi.ExecSyncResponse{ExitCode: exit, Stdout: stdout[:out], Stderr: stderr[:errOut]}
}

// output is a stream of a command, read from its own FIFO.
type output struct {
	*pipe
	memory *semaphore.Weighted // for bytes over smallOutput; nil is unlimited
	done   chan struct{}

	mu   sync.Mutex // guards the fields below
	text []byte
	held int64 // acquired from memory
	// full is set once a chunk was cut or release was called. Later chunks are discarded.
	full bool
}

func newOutput(path string, memory *semaphore.Weighted) (*output, error) {
	p, err := openPipe(path, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	return &output{pipe: p, memory: memory, done: make(chan struct{})}, nil
}

// collect starts the reader, which discards output beyond the limits: the command never blocks.
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

// keep copies a chunk, as far as limit and memory allow.
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
		log.L.WithField("pipe", o.path()).Warn("Output of a command is truncated: outputs of other commands use all memory reserved for them; run fewer commands at a time")
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

// release returns the acquired memory. Later output is discarded.
func (o *output) release() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.full = true
	if o.held > 0 {
		o.memory.Release(o.held)
		o.held = 0
	}
}
