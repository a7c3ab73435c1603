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
	// PartSize is the number of bytes of a request, if several requests fetch a layer.
	PartSize = 2 << 20
	// inPartsFrom is the size of the smallest layer that is fetched in parts.
	inPartsFrom = 8 << 20
	// partsAhead is how many parts of a layer are fetched before they are needed.
	partsAhead = 2
)

// part marks the context of a request for a part of a layer.
type part struct {
	// size is the number of bytes to request.
	size int64
	// whole is set if the answer goes to the end of the layer: the server does not support parts.
	whole atomic.Bool
}

// partKey is the key of a *part in a request's context. Without it, all of the rest is requested.
type partKey struct{}

// ask limits the range of a request. The registry client has set its start.
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

// answered records whether the server ignored the range.
func (p *part) answered(resp *http.Response) {
	if resp.StatusCode == http.StatusOK && !strings.HasPrefix(resp.Header.Get("Content-Range"), "bytes ") {
		p.whole.Store(true)
	}
}

// buffers are for parts that are fetched ahead.
var buffers = sync.Pool{New: func() any { return new([PartSize]byte) }}

// parts reads a large layer in parts, some of which are fetched concurrently: a registry may limit
// the rate of each connection. Parts ahead of the reader are in memory, within bounds. containerd's
// own parallel fetches request every blob by a range, and a pull fails if a registry answers 416 to
// that.
type parts struct {
	ctx  context.Context
	end  context.CancelFunc
	open func(ctx context.Context, offset int64) (io.ReadCloser, error)
	size int64
	// connections and memory are those of Fetcher.
	connections, memory *semaphore.Weighted
	// begin waits for the slot, which releaseSlot frees: one layer of a pull is fetched after the
	// other, so that each is unpacked while the next one is fetched.
	begin       func() error
	releaseSlot func()

	offset  int64 // of the next byte
	current io.ReadCloser
	stop    int64 // the offset at which current should end
	asked   *part // request of current; nil if it is in memory, or for the rest of the layer
	// noParts is set once the registry has ignored a range.
	noParts atomic.Bool
	came    int64 // bytes received of current
	ahead   []*fetched
	working sync.WaitGroup
}

// fetched is a part that is fetched ahead.
type fetched struct {
	buf  *[PartSize]byte
	n    int64
	err  error
	done chan struct{}
}

func (f *Fetcher) inParts(ctx context.Context, size int64, open func(ctx context.Context, offset int64) (io.ReadCloser, error)) *parts {
	ctx, end := context.WithCancel(ctx)
	p := &parts{ctx: ctx, end: end, open: open, size: size, connections: f.connections, memory: f.memory, releaseSlot: func() {}}
	p.begin = sync.OnceValue(func() error {
		err := f.slot.Acquire(ctx, 1)
		if err == nil {
			p.releaseSlot = sync.OnceFunc(func() { f.slot.Release(1) })
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
		p.detectParts()
	}
	ended := errors.Is(err, io.EOF)
	switch {
	case ended && p.came == 0:
		err = io.ErrUnexpectedEOF
	case ended, err == nil && p.offset == p.stop:
		// After a short answer the next request continues from offset.
		err = p.closeCurrent()
	}
	return n, err
}

// detectParts derives from an answer whether the registry supports parts.
func (p *parts) detectParts() {
	if p.asked.whole.Load() {
		p.noParts.Store(true)
		if len(p.ahead) == 0 {
			p.stop = p.size
			p.releaseSlot()
		}
		return
	}
	p.lookAhead()
}

// advance opens what is next: the rest of a part, a part fetched ahead, or a new request.
func (p *parts) advance() error {
	p.came = 0
	if p.offset < p.stop {
		return p.request()
	}
	if len(p.ahead) == 0 {
		p.stop = min(p.offset+PartSize, p.size)
		if p.noParts.Load() {
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

// request requests the bytes up to stop.
func (p *parts) request() (err error) {
	ctx := p.ctx
	p.asked = nil
	if p.stop == p.size && p.noParts.Load() {
		p.releaseSlot()
	} else {
		p.asked = &part{size: p.stop - p.offset}
		ctx = context.WithValue(ctx, partKey{}, p.asked)
	}
	p.current, err = p.open(ctx, p.offset)
	return err
}

func (p *parts) closeCurrent() error {
	err := p.current.Close()
	p.current = nil
	return err
}

// lookAhead starts to fetch the parts after the current one, within the limits.
func (p *parts) lookAhead() {
	for {
		offset := p.stop + int64(len(p.ahead))*PartSize
		if offset >= p.size {
			p.releaseSlot() // the rest is being fetched
		}
		if p.noParts.Load() || len(p.ahead) >= partsAhead || offset >= p.size || !p.connections.TryAcquire(1) {
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

// fetch fills f from one answer, or from several if they are shorter than requested.
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
			p.noParts.Store(true)
		}
		if n > 0 && errors.Is(err, io.ErrUnexpectedEOF) {
			err = nil // the next request continues after this answer
		} else if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		if err := errors.Join(err, from.Close()); err != nil {
			return err
		}
	}
	return nil
}

// Seek implements io.Seeker, from the start only: an interrupted download resumes by it.
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

// Close implements io.Closer. It waits for running fetches.
func (p *parts) Close() error {
	p.end()
	p.releaseSlot()
	var err error
	if p.current != nil {
		err = p.closeCurrent()
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

// fetchedReader reads a part from memory, which Close frees.
type fetchedReader struct {
	*bytes.Reader
	release func()
}

func (r fetchedReader) Close() error {
	r.release()
	return nil
}
