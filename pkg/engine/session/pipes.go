package session

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// pipe is a FIFO between a session and a process. Its methods except endInput accept nil.
type pipe struct{ file *os.File }

func (p *pipe) path() string {
	if p == nil {
		return ""
	}
	return p.file.Name()
}

// openPipe creates and opens a FIFO. Opened for reading and writing, it never blocks and never
// returns EOF; a reader that needs EOF opens it for reading only.
func openPipe(path string, flag int) (*pipe, error) {
	if err := unix.Mkfifo(path, 0o600); err != nil {
		return nil, fmt.Errorf("create pipe %s: %w", path, err)
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

// unlinked reports whether another process has removed the FIFO.
func (p *pipe) unlinked() bool {
	if p == nil {
		return false
	}
	_, err := os.Lstat(p.file.Name())
	return errors.Is(err, os.ErrNotExist)
}

// pipes are the streams of one session.
type pipes struct {
	in, out, err *pipe
	grace        atomic.Int64 // set once the process has exited
}

func newPipes(prefix string, in, out, errOut bool) (_ *pipes, err error) {
	p := &pipes{}
	for _, w := range []struct {
		wanted bool
		pipe   **pipe
		name   string
		flag   int
	}{{in, &p.in, "-in", os.O_RDWR}, {out, &p.out, "-out", os.O_RDONLY}, {errOut, &p.err, "-err", os.O_RDONLY}} {
		if !w.wanted {
			continue
		}
		if *w.pipe, err = openPipe(prefix+w.name, w.flag); err != nil {
			p.close()
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

// copy copies until both outputs have ended, and then closes the returned channel. It calls
// inputEnded when the client's input has ended.
func (p *pipes) copy(in io.Reader, out, errOut io.Writer, inputEnded func()) <-chan struct{} {
	var wg sync.WaitGroup
	for _, o := range []struct {
		from *pipe
		to   io.Writer
	}{{p.out, out}, {p.err, errOut}} {
		if o.from == nil {
			continue
		}
		if o.to == nil {
			o.to = io.Discard
		}
		wg.Go(func() { p.carry(o.to, o.from.file) })
	}
	if p.in != nil {
		go func() {
			_, _ = io.Copy(p.in.file, in)
			p.in.endInput()
			inputEnded()
		}()
	}
	copied := make(chan struct{})
	go func() { wg.Wait(); close(copied) }()
	return copied
}

// stdinOpenTimeout is how long to wait for the process's side to open its stdin.
const stdinOpenTimeout = 2 * time.Second

// endInput closes an input once the other side has opened it: containerd's shim opens it some time
// after it reported the process as running, and bytes in a FIFO that no process has open are lost.
func (p *pipe) endInput() {
	writer, err := os.OpenFile(p.file.Name(), os.O_WRONLY|unix.O_NONBLOCK, 0)
	_ = p.file.Close() // it is a reader, too
	if err != nil {
		return // the session has ended and removed the pipe
	}
	defer writer.Close()
	conn, err := writer.SyscallConn()
	if err != nil {
		return
	}
	for begin := time.Now(); time.Since(begin) < stdinOpenTimeout; time.Sleep(time.Millisecond) {
		alone := false
		_ = conn.Control(func(fd uintptr) {
			// A pipe without a reader polls as POLLERR for its writer.
			poll := []unix.PollFd{{Fd: int32(fd)}}
			n, err := unix.Poll(poll, 0)
			alone = err != nil || n > 0 && poll[0].Revents&unix.POLLERR != 0
		})
		if !alone {
			return
		}
	}
}

// carry copies an output to its end.
func (p *pipes) carry(to io.Writer, from *os.File) {
	buf := make([]byte, 32<<10)
	for {
		p.limit(from)
		n, err := from.Read(buf)
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// processEnded limits the time between two writes to an output that a descendant of the process
// holds open. Bytes that are in the pipes are copied however slowly the client reads.
func (p *pipes) processEnded(grace time.Duration) {
	p.grace.Store(int64(max(grace, 1)))
	for _, o := range []*pipe{p.out, p.err} {
		if o != nil {
			p.limit(o.file)
		}
	}
}

func (p *pipes) limit(from *os.File) {
	if grace := p.grace.Load(); grace > 0 {
		_ = from.SetReadDeadline(time.Now().Add(time.Duration(grace)))
	}
}
