package image

import (
	"context"
	"io"
	"sync"
)

const (
	// aheadBlock is how much is decompressed at once, and aheadBlocks how many blocks
	// wait for whoever writes files.
	aheadBlock, aheadBlocks = 256 << 10, 4
)

// ahead reads from a slow source while what it has read is being worked on.
type ahead struct {
	full chan block
	free chan []byte
	stop func()
	done chan struct{}

	current block
	rest    []byte
}

// block is what was read, and how the source ended after it.
type block struct {
	bytes []byte
	err   error
}

// readAhead begins to read. The caller closes it, which waits for the source's last
// read: only then may the source be closed.
func readAhead(ctx context.Context, from io.Reader) *ahead {
	stopped := make(chan struct{})
	a := &ahead{
		full: make(chan block, aheadBlocks), free: make(chan []byte, aheadBlocks),
		stop: sync.OnceFunc(func() { close(stopped) }), done: make(chan struct{}),
	}
	for range aheadBlocks {
		a.free <- nil // it is made when it is needed
	}
	go func() {
		defer close(a.done)
		for {
			select {
			case buf := <-a.free:
				b := readBlock(ctx, from, buf)
				a.full <- b // there is room: no more blocks are about than it holds
				if b.err != nil {
					return
				}
			case <-stopped:
				return
			}
		}
	}()
	return a
}

// readBlock reads until the block is full. A panic of the source is its error.
func readBlock(ctx context.Context, from io.Reader, buf []byte) (b block) {
	defer caught(ctx, &b.err)
	if buf == nil {
		buf = make([]byte, aheadBlock)
	}
	n := 0
	for n < aheadBlock && b.err == nil {
		var more int
		more, b.err = from.Read(buf[n:aheadBlock])
		n += more
	}
	b.bytes = buf[:n]
	return b
}

// Read implements io.Reader.
func (a *ahead) Read(p []byte) (int, error) {
	for len(a.rest) == 0 {
		if a.current.err != nil {
			return 0, a.current.err
		}
		if a.current.bytes != nil {
			a.free <- a.current.bytes
		}
		a.current = <-a.full
		a.rest = a.current.bytes
	}
	n := copy(p, a.rest)
	a.rest = a.rest[n:]
	return n, nil
}

// close ends the reading.
func (a *ahead) close() {
	a.stop()
	<-a.done
}
