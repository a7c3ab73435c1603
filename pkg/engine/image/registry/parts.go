package registry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/semaphore"

	"github.com/berth-cri/berth/pkg/engine/failpoint"
)

const (
	// PartSize is how much of a layer one request asks for, where several are under way.
	PartSize = 2 << 20
	// inPartsFrom is the size of the smallest layer that is worth it.
	inPartsFrom = 8 << 20
	// partsAhead is how many parts of a layer are fetched before they are needed.
	partsAhead = 2
)

// part marks the context of a request for a part of a layer.
type part struct {
	// size is how many bytes are wanted from where the request begins.
	size int64
	// whole says that the answer goes to the end of the layer: whoever sends it knows
	// no parts.
	whole atomic.Bool
}

// partKey is under which the context of a request has its *part; none is the rest of a layer.
type partKey struct{}

// ask says in a request how much is wanted. The registry client has said from where.
func (p *part) ask(r *http.Request) error {
	var begin int64
	if from := r.Header.Get("Range"); from != "" {
		if _, err := fmt.Sscanf(from, "bytes=%d-", &begin); err != nil {
			return fmt.Errorf("range %q: %w", from, err)
		}
	}
	r.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", begin, begin+p.size-1))
	return nil
}

// answered notes whether the answer is what was asked for.
func (p *part) answered(resp *http.Response) {
	if resp.StatusCode == http.StatusOK && !strings.HasPrefix(resp.Header.Get("Content-Range"), "bytes ") {
		p.whole.Store(true)
	}
}

// buffers are those of parts that nobody has read yet.
var buffers = sync.Pool{New: func() any { return new([PartSize]byte) }}

// parts reads a large layer in parts, some of which are fetched at the same time: a
// registry that limits what one connection gets limits less by it. What is ahead of the
// reader is in memory, in bounded pieces. containerd's own parallel fetches ask for every
// blob by a range, and the pull fails where a registry answers 416 to that.
type parts struct {
	ctx  context.Context
	end  context.CancelFunc
	open func(ctx context.Context, offset int64) (io.ReadCloser, error)
	size int64
	// connections bounds those of a pull, memory what all pulls have ahead.
	connections, memory *semaphore.Weighted
	// begin waits for the turn, which giveWay ends: it lets one layer of a pull be fetched
	// after the other, so that each is unpacked while the next one comes.
	begin   func() error
	giveWay func()

	offset  int64 // of the next byte
	current io.ReadCloser
	stop    int64 // where current ends, or should have
	asked   *part // what current was asked for; nil if it is in memory, or all that is left
	// unknown says that the registry was seen to know no parts.
	unknown atomic.Bool
	came    int64 // how much came of current
	ahead   []*fetched
	working sync.WaitGroup
}

// fetched is a part that is fetched before it is needed.
type fetched struct {
	buf  *[PartSize]byte
	n    int64
	err  error
	done chan struct{}
}

func (f *Fetcher) inParts(ctx context.Context, size int64, open func(ctx context.Context, offset int64) (io.ReadCloser, error)) *parts {
	ctx, end := context.WithCancel(ctx)
	p := &parts{ctx: ctx, end: end, open: open, size: size, connections: f.connections, memory: f.memory, giveWay: func() {}}
	p.begin = sync.OnceValue(func() error {
		err := f.turn.Acquire(ctx, 1)
		if err == nil {
			p.giveWay = sync.OnceFunc(func() { f.turn.Release(1) })
		}
		return err
	})
	return p
}

func (p *parts) Read(b []byte) (int, error) {
	if p.offset >= p.size {
		return 0, io.EOF
	}
	if err := p.begin(); err != nil {
		return 0, err
	}
	if p.current == nil {
		if err := p.advance(); err != nil {
			return 0, err
		}
	}
	n, err := p.current.Read(b[:min(int64(len(b)), p.stop-p.offset)])
	p.offset += int64(n)
	p.came += int64(n)
	if p.asked != nil && n > 0 {
		p.learn()
	}
	ended := errors.Is(err, io.EOF)
	switch {
	case ended && p.came == 0:
		err = io.ErrUnexpectedEOF
	case ended, err == nil && p.offset == p.stop:
		// After an answer that ended too early the next goes on from there.
		err = p.leave()
	}
	return n, err
}

// learn takes from an answer whether the registry knows parts.
func (p *parts) learn() {
	if p.asked.whole.Load() {
		p.unknown.Store(true)
		if len(p.ahead) == 0 {
			p.stop = p.size
			p.giveWay()
		}
		return
	}
	p.lookAhead()
}

// advance begins what is next: the rest of a part, what was fetched, or a new request.
func (p *parts) advance() error {
	p.came = 0
	if p.offset < p.stop {
		return p.request()
	}
	if len(p.ahead) == 0 {
		p.stop = min(p.offset+PartSize, p.size)
		if p.unknown.Load() {
			p.stop = p.size
		}
		return p.request()
	}
	next := p.ahead[0]
	select {
	case <-next.done:
	case <-p.ctx.Done():
		return context.Cause(p.ctx)
	}
	if next.err != nil {
		return next.err
	}
	p.ahead, p.asked = p.ahead[1:], nil
	p.stop = p.offset + next.n
	p.current = fetchedReader{bytes.NewReader(next.buf[:next.n]), func() { next.release(p.memory) }}
	p.lookAhead()
	return nil
}

// request asks for what is up to the stop.
func (p *parts) request() (err error) {
	ctx := p.ctx
	p.asked = nil
	if p.stop == p.size && p.unknown.Load() {
		p.giveWay()
	} else {
		p.asked = &part{size: p.stop - p.offset}
		ctx = context.WithValue(ctx, partKey{}, p.asked)
	}
	p.current, err = p.open(ctx, p.offset)
	return err
}

// leave closes the part that was read.
func (p *parts) leave() error {
	err := p.current.Close()
	p.current = nil
	return err
}

// lookAhead begins to fetch the parts after the current one, as far as there is room.
func (p *parts) lookAhead() {
	for {
		offset := p.stop + int64(len(p.ahead))*PartSize
		if offset >= p.size {
			p.giveWay() // the rest is on its way
		}
		if p.unknown.Load() || len(p.ahead) >= partsAhead || offset >= p.size || !p.connections.TryAcquire(1) {
			return
		}
		if !p.memory.TryAcquire(1) {
			p.connections.Release(1)
			return
		}
		f := &fetched{buf: buffers.Get().(*[PartSize]byte), n: min(PartSize, p.size-offset), done: make(chan struct{})}
		p.ahead = append(p.ahead, f)
		p.working.Go(func() {
			defer close(f.done)
			defer p.connections.Release(1)
			f.err = p.fetch(f, offset)
		})
	}
}

// fetch fills f by one answer, or by several if they are shorter than what was asked for.
func (p *parts) fetch(f *fetched, offset int64) error {
	defer failpoint.Hit(failpoint.ImagePart)
	for filled := int64(0); filled < f.n; {
		asked := &part{size: f.n - filled}
		from, err := p.open(context.WithValue(p.ctx, partKey{}, asked), offset+filled)
		if err != nil {
			return err
		}
		n, err := io.ReadFull(from, f.buf[filled:f.n])
		filled += int64(n)
		if asked.whole.Load() {
			p.unknown.Store(true)
		}
		if n > 0 && errors.Is(err, io.ErrUnexpectedEOF) {
			err = nil // the next answer goes on from there
		} else if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		if err := errors.Join(err, from.Close()); err != nil {
			return err
		}
	}
	return nil
}

// Seek implements io.Seeker, from the start only: that is where an interrupted download
// goes on.
func (p *parts) Seek(offset int64, whence int) (int64, error) {
	if whence != io.SeekStart || offset < 0 || offset > p.size {
		return p.offset, fmt.Errorf("seek to %d by %d: %w", offset, whence, errdefs.ErrInvalidArgument)
	}
	if offset == p.offset {
		return offset, nil
	}
	if p.current != nil || len(p.ahead) > 0 {
		return p.offset, fmt.Errorf("seek in the middle of a download: %w", errdefs.ErrNotImplemented)
	}
	p.offset = offset
	return offset, nil
}

// Close implements io.Closer. It waits for what is under way.
func (p *parts) Close() error {
	p.end()
	p.giveWay()
	var err error
	if p.current != nil {
		err = p.leave()
	}
	p.working.Wait()
	for _, f := range p.ahead {
		f.release(p.memory)
	}
	p.ahead = nil
	return err
}

func (f *fetched) release(memory *semaphore.Weighted) {
	buffers.Put(f.buf)
	memory.Release(1)
}

// fetchedReader reads a part from memory, which Close gives back.
type fetchedReader struct {
	*bytes.Reader
	release func()
}

func (r fetchedReader) Close() error {
	r.release()
	return nil
}
