// Package output copies the output of a container into its CRI log and to attached clients, and the
// clients' input to the container's stdin.
package output

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/containerd/log"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/crilog"
	"github.com/berth-cri/berth/pkg/engine/supervisor/journal"
	"github.com/berth-cri/berth/pkg/engine/supervisor/stdio"
)

const (
	chunkSize = 32 * 1024
	// spareChunks bounds the memory of idle buffers in the process.
	spareChunks = 4
)

// chunks are the buffers for output. A stream takes one only when there is data to read, so idle
// containers hold none.
type chunks chan []byte

var buffers = make(chunks, spareChunks)

func (c chunks) get() []byte {
	select {
	case b := <-c:
		return b
	default:
		return make([]byte, chunkSize)
	}
}

func (c chunks) Put(b []byte) {
	select {
	case c <- b:
	default:
	}
}

// Output copies a container's output into its log and to attached clients. Each stream has one
// goroutine, which waits in Go's poller.
type Output struct {
	Log      *crilog.Log
	attached attachments
	sources  []*os.File
	copying  sync.WaitGroup
	// logged is closed when every stream has ended and is in the log. ended is closed when the
	// attachments were ended and the log was closed, too.
	logged, ended chan struct{}
}

// Open opens the log that the options name, if any. Start begins to read the streams.
func Open(ctx context.Context, options *journal.Options) (*Output, error) {
	l, err := crilog.Open(options.LogPath, logOptions(ctx, options))
	if err != nil {
		return nil, err
	}
	return newOutput(l), nil
}

// Reopen is Open for a running container: its output must be read even if the log cannot be opened.
func Reopen(ctx context.Context, options *journal.Options) *Output {
	o, err := Open(ctx, options)
	if err == nil {
		return o
	}
	log.G(ctx).WithError(err).WithField("path", options.LogPath).Error("Failed to open container log; dropping output until it is reopened")
	return newOutput(crilog.Unopened(options.LogPath, logOptions(ctx, options)))
}

func newOutput(l *crilog.Log) *Output {
	return &Output{Log: l, logged: make(chan struct{}), ended: make(chan struct{})}
}

func logOptions(ctx context.Context, options *journal.Options) crilog.Options {
	return crilog.Options{
		Dir:     options.LogDirectory,
		MaxLine: options.MaxLogLine,
		OnError: func(err error) {
			log.G(ctx).WithError(err).WithField("path", options.LogPath).Warn("Container output is lost until its log can be written again")
		},
	}
}

// Source is a stream to read, and the log stream of its lines.
type Source struct {
	File   *os.File
	Name   string
	Stream *crilog.Stream
}

// Start begins to read the sources; each is closed at its end.
func (o *Output) Start(sources ...Source) {
	for _, s := range sources {
		o.sources = append(o.sources, s.File)
		o.copying.Add(1)
		go o.copy(s)
	}
	go o.finish()
}

func (o *Output) finish() {
	o.copying.Wait()
	close(o.logged)
	o.attached.end()
	_ = o.Log.Close()
	close(o.ended)
}

func (o *Output) copy(s Source) {
	defer o.copying.Done()
	defer s.File.Close()
	defer func() { _ = s.Stream.Close() }()
	read := chunkReader(s.File, false)
	for {
		chunk, n := read()
		if n <= 0 {
			return
		}
		_, _ = s.Stream.Write(chunk[:n])
		o.attached.send(s.Name, chunk[:n])
		buffers.Put(chunk)
	}
}

// chunkReader returns a function that waits for data and only then takes a buffer, which the caller
// puts back. The function returns 0 at the end of the file, or after an error: a terminal ends with
// EIO. With writerComes, a FIFO that had no writer yet is not considered ended.
func chunkReader(f *os.File, writerComes bool) func() ([]byte, int) {
	conn, err := f.SyscallConn()
	if err != nil {
		return func() ([]byte, int) { return nil, 0 }
	}
	var (
		chunk []byte
		n     int
	)
	// Read before waiting: the poller does not report data that was readable before.
	attempt := func(fd uintptr) bool {
		chunk = buffers.get()
		for {
			var err error
			n, err = unix.Read(int(fd), chunk)
			if err == unix.EINTR {
				continue
			}
			if err == nil && n > 0 {
				return true
			}
			buffers.Put(chunk)
			if err == nil && writerComes && !hadWriter(int(fd)) {
				return false
			}
			return err != unix.EAGAIN
		}
	}
	return func() ([]byte, int) {
		n = 0
		if err := conn.Read(attempt); err != nil {
			return nil, 0
		}
		return chunk, n
	}
}

// hadWriter reports whether a FIFO at its end has had a writer since it was opened.
func hadWriter(fd int) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		_, err := unix.Poll(p, 0)
		if errors.Is(err, unix.EINTR) { // interrupted by a signal of Go's scheduler
			continue
		}
		return err != nil || p[0].Revents&unix.POLLHUP != 0
	}
}

// Drain waits until the streams have ended, and ends them after limit: a process outside the
// container may hold them open.
func (o *Output) Drain(limit time.Duration) {
	select {
	case <-o.ended:
		return
	case <-time.After(limit):
	}
	for _, f := range o.sources {
		_ = f.SetReadDeadline(time.Now())
	}
	<-o.ended
}

// flushTimeout is how long Flush waits: clients read the last lines of an exited container, but a
// process that outlives the container may hold the streams open.
const flushTimeout = time.Second

// Flush waits until all output is in the log, for at most flushTimeout.
func (o *Output) Flush(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	select {
	case <-o.logged:
	case <-ctx.Done():
	}
}

// Discard closes an output that was never started.
func (o *Output) Discard(sources ...Source) {
	for _, s := range sources {
		s.File.Close()
	}
	_ = o.Log.Close()
}

// OpenSources opens the supervisor's ends of a container's output FIFOs.
func (o *Output) OpenSources(stdout, stderr string) (_ []Source, retErr error) {
	var sources []Source
	defer func() {
		if retErr != nil {
			for _, s := range sources {
				s.File.Close()
			}
		}
	}()
	for _, s := range []struct{ name, path string }{{crilog.Stdout, stdout}, {crilog.Stderr, stderr}} {
		if s.path == "" {
			continue
		}
		f, err := stdio.OpenReader(s.path)
		if err != nil {
			return nil, err
		}
		sources = append(sources, Source{File: f, Name: s.name, Stream: o.Log.Stream(s.name)})
	}
	return sources, nil
}

// TerminalSource returns the master of a terminal as a Source.
func (o *Output) TerminalSource(master *os.File) Source {
	return Source{File: master, Name: crilog.Stdout, Stream: o.Log.Terminal()}
}

// Feed copies a FIFO to a process's stdin until ctx ends or either end is closed. Attached clients
// may write to stdin in between. Feed closes from.
func (o *Output) Feed(ctx context.Context, from, to *os.File) {
	Copy(from, func(chunk []byte) error { return o.attached.write(ctx, to, chunk) })
}

// Copy calls pass with the data of a FIFO or terminal until from ends or pass fails. It closes
// from.
func Copy(from *os.File, pass func(chunk []byte) error) {
	defer from.Close()
	read := chunkReader(from, true)
	for {
		chunk, n := read()
		if n <= 0 {
			return
		}
		err := pass(chunk[:n])
		buffers.Put(chunk)
		if err != nil && !errors.Is(err, unix.EAGAIN) {
			return
		}
	}
}
