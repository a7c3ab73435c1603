package image

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// errStalled is the cause of a pull's end when its registry went silent.
var errStalled = errors.New("no progress")

// progress watches the requests of one pull. Time counts against the pull only
// while a request is open: unpacking, or waiting for another pull that downloads
// the same layer, is no stall.
type progress struct {
	open  atomic.Int64
	bytes atomic.Int64
}

// watch cancels with errStalled once a request has been open for timeout without
// a byte. It returns when ctx ends. A timeout below 0 never fires.
func (p *progress) watch(ctx context.Context, timeout time.Duration, cancel context.CancelCauseFunc) {
	if timeout < 0 {
		return
	}
	tick := time.NewTicker(max(min(timeout/4, 10*time.Second), time.Millisecond))
	defer tick.Stop()
	since, seen, wasOpen := time.Now(), int64(0), false
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		open, bytes := p.open.Load() > 0, p.bytes.Load()
		if !open || !wasOpen || bytes != seen {
			since, seen, wasOpen = time.Now(), bytes, open
			continue
		}
		if time.Since(since) >= timeout {
			cancel(errStalled)
			return
		}
	}
}

// transport counts what passes through rt.
func (p *progress) transport(rt http.RoundTripper) http.RoundTripper {
	return countingTransport{rt: rt, p: p}
}

type countingTransport struct {
	rt http.RoundTripper
	p  *progress
}

func (t countingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	t.p.open.Add(1)
	resp, err := t.rt.RoundTrip(r)
	if err != nil {
		t.p.open.Add(-1)
		return nil, err
	}
	// An answer is progress, also one without a body.
	t.p.bytes.Add(1)
	resp.Body = &countingBody{ReadCloser: resp.Body, p: t.p}
	return resp, nil
}

type countingBody struct {
	io.ReadCloser
	p    *progress
	once sync.Once
}

func (b *countingBody) Read(buf []byte) (int, error) {
	n, err := b.ReadCloser.Read(buf)
	b.p.bytes.Add(int64(n))
	return n, err
}

func (b *countingBody) Close() error {
	b.once.Do(func() { b.p.open.Add(-1) })
	return b.ReadCloser.Close()
}
