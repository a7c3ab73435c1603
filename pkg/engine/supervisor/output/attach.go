package output

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/crilog"
	"github.com/berth-cri/berth/pkg/engine/keyedlock"
	"github.com/berth-cri/berth/pkg/engine/supervisor/stdio"
)

// lastWrite is how long an attached reader may take for a block after the output has ended.
const lastWrite = 10 * time.Second

// attachments are the clients attached to a container's output. The goroutines that copy output
// never wait for them: a client that is too far behind is detached.
type attachments struct {
	mu    sync.Mutex
	ended bool
	all   map[*attachment]struct{}
	// inputLock is held while one client writes to the process's stdin; the first write creates it.
	inputLock keyedlock.Mutex
}

// Watcher calls fire when one of events occurs on a descriptor, until Unwatch (processes.Set).
type Watcher interface {
	Watch(fd int, events uint32, fire func()) (serial uint32, err error)
	Unwatch(serial uint32)
}

// attachment is one client: it reads none, one or both of the streams, and may write input.
type attachment struct {
	output   *Output
	watcher  Watcher
	streams  map[string]*attachedStream // complete before the attachment is added
	stdin    *os.File
	carrying sync.WaitGroup
	once     sync.Once
	gone     bool // guarded by attachments.mu
	inputEnd InputEnd
	// left ends once the reader has left and its input had time to be written.
	left context.Context
	quit context.CancelFunc

	// arming is held until the serials of all watches are known.
	arming sync.Mutex
}

// InputEnd selects what happens once all input of an attachment was written.
type InputEnd struct {
	Detach     bool   // detach even if more output follows
	CloseStdin func() // or nil
}

type attachedStream struct {
	*backlog
	file   *os.File
	serial uint32 // the watch for the reader's disconnect
}

// add sends a chunk, or returns false if the reader is too far behind. Only data that does not fit
// into the FIFO counts: a reader that reads must not be detached because this process is short of
// CPU.
func (s *attachedStream) add(chunk []byte) bool {
	if s.isEmpty() {
		chunk = chunk[s.writeNow(chunk):]
	}
	return len(chunk) == 0 || s.backlog.add(chunk)
}

// writeNow writes what fits without blocking, and returns its size. After an error it returns 0,
// and the later blocking write reports the error.
func (s *attachedStream) writeNow(chunk []byte) int {
	conn, err := s.file.SyscallConn()
	if err != nil {
		return 0
	}
	n := 0
	_ = conn.Write(func(fd uintptr) bool {
		for {
			n, err = unix.Write(int(fd), chunk)
			if !errors.Is(err, unix.EINTR) {
				return true
			}
		}
	})
	return max(n, 0)
}

// end ends the stream once the reader has read the rest.
func (s *attachedStream) end() {
	s.backlog.end()
	_ = s.file.SetWriteDeadline(time.Now().Add(lastWrite))
}

func (s *attachedStream) write(block []byte) error {
	if s.hasEnded() {
		_ = s.file.SetWriteDeadline(time.Now().Add(lastWrite))
	}
	_, err := s.file.Write(block)
	return err
}

// send gives every attached reader a copy of the chunk.
func (a *attachments) send(name string, chunk []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for at := range a.all {
		if s := at.streams[name]; s != nil && !s.add(chunk) {
			go at.cutOff()
		}
	}
}

// end lets every reader read the rest, and then detaches it.
func (a *attachments) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ended = true
	for at := range a.all {
		at.close()
	}
	a.all = nil
}

// finish lets one reader read the rest, and then detaches it.
func (a *attachments) finish(at *attachment) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if at.gone || a.ended {
		return
	}
	at.gone = true
	delete(a.all, at)
	at.close()
}

func (a *attachments) add(at *attachment) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended || at.gone {
		return fmt.Errorf("the container has closed its output: %w", errdefs.ErrFailedPrecondition)
	}
	if a.all == nil {
		a.all = map[*attachment]struct{}{}
	}
	a.all[at] = struct{}{}
	return nil
}

func (a *attachments) remove(at *attachment) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.all, at)
	at.gone = true
}

// Attach copies all output from now on to the caller's FIFOs, and the caller's input to stdin if
// stdin is not nil.
func (o *Output) Attach(w Watcher, paths stdio.Paths, stdin *os.File, end InputEnd) error {
	at := &attachment{output: o, watcher: w, streams: map[string]*attachedStream{}, inputEnd: end}
	at.left, at.quit = context.WithCancel(context.Background())
	err := at.open(paths, stdin != nil)
	if err == nil {
		// Count the goroutines of carry before the output can end: close waits for them.
		at.carrying.Add(len(at.streams))
		err = at.join()
	}
	if err != nil {
		at.detach()
		at.quit()
		if at.stdin != nil {
			at.stdin.Close()
		}
		return err
	}
	for _, stream := range at.streams {
		go at.carry(stream)
	}
	if at.stdin != nil {
		go at.carryInput(stdin)
	}
	return nil
}

func (at *attachment) open(paths stdio.Paths, withInput bool) error {
	for name, path := range map[string]string{crilog.Stdout: paths.Stdout, crilog.Stderr: paths.Stderr} {
		if path == "" {
			continue
		}
		f, err := stdio.OpenWriter(path)
		if errors.Is(err, unix.ENXIO) {
			return fmt.Errorf("%s has no reader; open it for reading before attaching: %w", path, errdefs.ErrFailedPrecondition)
		}
		if err != nil {
			return err
		}
		at.streams[name] = &attachedStream{file: f, backlog: newBacklog()}
	}
	if paths.Stdin == "" || !withInput {
		return nil
	}
	var err error
	at.stdin, err = stdio.OpenReader(paths.Stdin)
	return err
}

// join adds the attachment to the output, until its reader disconnects.
func (at *attachment) join() error {
	at.arming.Lock()
	defer at.arming.Unlock()
	if err := at.output.attached.add(at); err != nil {
		return err
	}
	for _, s := range at.streams {
		if err := at.watch(s); err != nil {
			return err
		}
	}
	return nil
}

// watch detaches when the reader of a stream disconnects, even without output.
func (at *attachment) watch(s *attachedStream) error {
	conn, err := s.file.SyscallConn()
	if err != nil {
		return err
	}
	var watchErr error
	err = conn.Control(func(fd uintptr) {
		s.serial, watchErr = at.watcher.Watch(int(fd), unix.EPOLLONESHOT, func() { go at.detach() })
	})
	return errors.Join(err, watchErr)
}

// carry writes one stream to its reader until the output ends or the reader disconnects.
func (at *attachment) carry(s *attachedStream) {
	defer at.carrying.Done()
	for {
		pending := s.take()
		if len(pending) == 0 {
			return
		}
		if s.write(pending) != nil {
			go at.detach()
			return
		}
	}
}

func (at *attachment) carryInput(to *os.File) {
	defer at.quit()
	at.output.Feed(at.left, at.stdin, to)
	if at.inputEnd.CloseStdin != nil {
		at.inputEnd.CloseStdin()
	}
	if at.inputEnd.Detach || len(at.streams) == 0 {
		at.output.attached.finish(at)
	}
}

// close ends the streams, and detaches once the reader has read the rest. Nothing may be sent to
// them afterwards.
func (at *attachment) close() {
	for _, s := range at.streams {
		s.end()
	}
	go func() {
		at.carrying.Wait()
		at.detach()
	}()
}

// cutOff detaches a reader that is too far behind. It removes the FIFOs, so that the reader can
// distinguish this from the end of the output.
func (at *attachment) cutOff() {
	for _, s := range at.streams {
		_ = os.Remove(s.file.Name()) // or it was removed before
	}
	at.detach()
}

// detach ends the attachment and closes its output FIFOs. Its input is copied for at most lastWrite
// longer. detach can be called repeatedly.
func (at *attachment) detach() {
	at.once.Do(func() {
		at.arming.Lock()
		defer at.arming.Unlock()
		at.output.attached.remove(at)
		for _, s := range at.streams {
			at.watcher.Unwatch(s.serial)
			s.file.Close()
			s.forget()
		}
		if at.stdin != nil {
			_ = at.stdin.SetReadDeadline(time.Now().Add(lastWrite))
			time.AfterFunc(lastWrite, at.quit)
		}
	})
}

// write writes input to stdin, one client at a time. It stops when ctx ends: the input of
// disconnected clients must not wait forever for a process that does not read.
func (a *attachments) write(ctx context.Context, to *os.File, chunk []byte) error {
	a.mu.Lock()
	if a.inputLock == nil {
		a.inputLock = keyedlock.NewMutex()
	}
	a.mu.Unlock()
	if err := a.inputLock.Lock(ctx); err != nil {
		return err
	}
	defer a.inputLock.Unlock()
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		_ = to.SetWriteDeadline(time.Now())
	})
	_, err := to.Write(chunk)
	if !stop() {
		<-ended
		_ = to.SetWriteDeadline(time.Time{}) // the next write must not fail by this deadline
	}
	return err
}
