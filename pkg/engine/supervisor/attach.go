package supervisor

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/crilog"
)

// lastWrite is how long an attached reader may take for a block once the
// container has ended.
const lastWrite = 10 * time.Second

// attachments are those who watch the output of a container. Its goroutines
// that carry output never wait for them: who is too far behind is detached.
type attachments struct {
	mu    sync.Mutex
	ended bool
	all   map[*attachment]struct{}
}

// attachment is one reader of one or both streams.
type attachment struct {
	output    *output
	processes *processes
	backlogs  *backlogs
	streams   map[string]*attachedStream
	stdin     *os.File
	carrying  sync.WaitGroup
	once      sync.Once
	gone      bool // guarded by attachments.mu
	inputEnd  inputEnd
}

// inputEnd says what follows when all of an attachment's input was handed on.
type inputEnd struct {
	detach     bool   // also while there is output to come
	closeStdin func() // or nil
}

type attachedStream struct {
	*backlog
	file   *os.File
	serial uint32 // the watch for the reader's leaving
}

// add passes on a chunk. Only what the FIFO has no room for counts against its reader: a
// reader that reads must not be cut off because this process is short of CPU.
func (s *attachedStream) add(chunk []byte) {
	if s.isEmpty() {
		chunk = chunk[s.writeNow(chunk):]
	}
	if len(chunk) > 0 {
		s.backlog.add(chunk)
	}
}

// writeNow writes as much as goes without waiting, and returns how much that was. What is
// wrong, if it wrote nothing, is seen by who writes the rest.
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

// end lets the reader read the rest.
func (s *attachedStream) end() {
	s.backlog.end()
	_ = s.file.SetWriteDeadline(time.Now().Add(lastWrite))
}

// write passes on what was taken.
func (s *attachedStream) write(block []byte) error {
	defer s.wrote(block)
	if s.hasEnded() {
		_ = s.file.SetWriteDeadline(time.Now().Add(lastWrite))
	}
	_, err := s.file.Write(block)
	return err
}

// send gives every attached reader a copy of what was read.
func (a *attachments) send(name string, chunk []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for at := range a.all {
		if s := at.streams[name]; s != nil {
			s.add(chunk)
		}
	}
}

// end lets every reader read the rest, and detaches it then.
func (a *attachments) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ended = true
	for at := range a.all {
		at.close()
	}
	a.all = nil
}

// finish lets one reader read the rest, and detaches it then.
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

// attach gives the caller's FIFOs a copy of all output from now on, and stdin,
// where it is not nil, what the caller writes.
func (o *output) attach(s *Supervisor, paths stdioPaths, stdin *os.File, end inputEnd) error {
	at := &attachment{output: o, processes: s.processes, backlogs: s.backlogs, streams: map[string]*attachedStream{}, inputEnd: end}
	if err := at.open(paths, stdin != nil); err != nil {
		at.detach()
		return err
	}
	// Counted before anybody can end the output, which waits for them.
	at.carrying.Add(len(at.streams))
	if err := o.attached.add(at); err != nil {
		at.detach()
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

func (at *attachment) open(paths stdioPaths, withInput bool) error {
	for name, path := range map[string]string{crilog.Stdout: paths.stdout, crilog.Stderr: paths.stderr} {
		if path == "" {
			continue
		}
		f, err := openWriter(path)
		if errors.Is(err, unix.ENXIO) {
			return fmt.Errorf("%s has no reader; open it for reading before attaching: %w", path, errdefs.ErrFailedPrecondition)
		}
		if err != nil {
			return err
		}
		s := &attachedStream{file: f, backlog: at.backlogs.stream(at.cutOff)}
		at.streams[name] = s
		if err := at.watch(s); err != nil {
			return err
		}
	}
	if paths.stdin == "" || !withInput {
		return nil
	}
	var err error
	at.stdin, err = openReader(paths.stdin)
	return err
}

// watch detaches when the reader of a stream leaves, also when there is nothing
// to write to it.
func (at *attachment) watch(s *attachedStream) error {
	conn, err := s.file.SyscallConn()
	if err != nil {
		return err
	}
	var watchErr error
	err = conn.Control(func(fd uintptr) {
		s.serial, watchErr = at.processes.watch(int(fd), unix.EPOLLONESHOT, func() { go at.detach() })
	})
	return errors.Join(err, watchErr)
}

// carry writes one stream to its reader until the output ends or the reader
// leaves.
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
	copyInput(at.stdin, to)
	if at.inputEnd.closeStdin != nil {
		at.inputEnd.closeStdin()
	}
	if at.inputEnd.detach || len(at.streams) == 0 {
		at.output.attached.finish(at)
	}
}

// close ends the streams, and detaches once the reader has read the rest. Nobody
// may send to it any more.
func (at *attachment) close() {
	for _, s := range at.streams {
		s.end()
	}
	go func() {
		at.carrying.Wait()
		at.detach()
	}()
}

// cutOff detaches a reader that is too far behind. That the names of its FIFOs are
// gone tells it from an end.
func (at *attachment) cutOff() {
	for _, s := range at.streams {
		_ = os.Remove(s.file.Name()) // or it has been before
	}
	at.detach()
}

// detach ends the attachment and closes its output FIFOs. What was written to its
// stdin before is still passed on. It may be called often.
func (at *attachment) detach() {
	at.once.Do(func() {
		at.output.attached.remove(at)
		for _, s := range at.streams {
			at.processes.unwatch(s.serial)
			s.file.Close()
			s.forget()
		}
		if at.stdin != nil {
			_ = at.stdin.SetReadDeadline(time.Now().Add(lastWrite))
		}
	})
}
