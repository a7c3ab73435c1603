package registry

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/pkg/engine/image/bounds"
)

// maxHeader bounds the headers of one answer.
const maxHeader = 256 << 10

// maxToken bounds the answer of a token server.
const maxToken = 1 << 20

// ErrSlowAnswers ends a pull if its registry takes too long for answers other than layers.
var ErrSlowAnswers = errors.New("registry takes too long to respond")

// ErrSlowDownload ends a pull if its registry sends a layer too slowly.
var ErrSlowDownload = errors.New("registry sends too slowly")

// wire bounds all requests of one pull: every answer of a registry, a token server or a server that
// they redirect to is limited in size and time.
type wire struct {
	limits bounds.Limits
	// window is the time over which rates are measured.
	window time.Duration
	// spent is the time of all answers except layers, in nanoseconds.
	spent    atomic.Int64
	progress *Progress
}

// layerKey marks the context of a request for a layer; its value is a *layer.
type layerKey struct{}

// layer is shared by all requests for one layer, also those for its parts.
type layer struct {
	size int64 // in bytes
	pace pace
	// came is set after an answer with bytes of the layer.
	came atomic.Bool
}

// tokens returns rt with the limits for requests of tokens.
func (w *wire) tokens(rt http.RoundTripper) http.RoundTripper {
	if t, ok := rt.(wireTransport); ok {
		rt = t.rt // else their time would count twice
	}
	return wireTransport{rt: rt, wire: w, limit: min(maxToken, w.limits.MaxManifestSize)}
}

type wireTransport struct {
	rt   http.RoundTripper
	wire *wire
	// layers is set if the transport may fetch layers.
	layers bool
	// limit bounds answers that are not layers.
	limit int64
}

func (t wireTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	layer, _ := r.Context().Value(layerKey{}).(*layer)
	if !t.layers {
		layer = nil
	}
	done := func() {}
	ctx := r.Context()
	if layer == nil {
		ctx, done = t.wire.withAnswerTimeout(ctx)
	}
	r = r.Clone(ctx)
	// The limit of a compressed answer would not bound its content.
	r.Header.Set("Accept-Encoding", "identity")
	var asked *part
	if layer != nil && r.Method == http.MethodGet {
		if asked, _ = r.Context().Value(partKey{}).(*part); asked != nil {
			if err := asked.ask(r); err != nil {
				return nil, err
			}
		}
	}
	t.wire.progress.open.Add(1)
	// A server must not gain time by closing a connection and delaying its next answer.
	again := layer != nil && layer.came.Load()
	if again {
		layer.pace.wait(time.Now())
	}
	resp, err := t.rt.RoundTrip(r)
	if again {
		_ = t.wire.tooSlow(layer, 0) // the reader of the bytes gets the error
	}
	if err == nil {
		// An answer is progress, even without a body.
		t.wire.progress.answers.Add(1)
		if asked != nil {
			asked.answered(resp)
		}
		resp.Body = &wireBody{ReadCloser: resp.Body, wire: t.wire, layer: layer, done: done, ctx: ctx}
		limit := t.limit
		if layer != nil && (resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusPartialContent) {
			limit = layer.size
			layer.came.Store(true)
		}
		if err = t.bound(resp, limit); err != nil {
			_ = resp.Body.Close()
			return nil, err
		}
		return resp, nil
	}
	t.wire.progress.open.Add(-1)
	err = overdue(ctx, err)
	done()
	return nil, err
}

// bound makes an answer fail after limit bytes, or at once if its header has a greater length.
func (t wireTransport) bound(resp *http.Response, limit int64) error {
	host := resp.Request.URL.Host
	// An answer to HEAD has the length of a body that it does not send.
	if resp.ContentLength > limit && resp.Request.Method != http.MethodHead {
		return bounds.Beyond("response of %s has %d bytes; the limit is %d", host, resp.ContentLength, limit)
	}
	resp.Body = &boundedBody{ReadCloser: resp.Body, host: host, limit: limit, left: limit}
	if resp.Request.Method == http.MethodHead {
		if resp.Header.Get("Content-Encoding") != "" {
			resp.ContentLength = -1 // it is not the length of the content
		}
		return nil
	}
	switch encoding := strings.ToLower(strings.TrimSpace(resp.Header.Get("Content-Encoding"))); encoding {
	case "", "identity":
		return nil
	case "gzip":
		opened, err := gzip.NewReader(resp.Body)
		if err != nil {
			return fmt.Errorf("decompress the response of %s: %w", host, err)
		}
		plain := &unzippedBody{Reader: opened, Closer: resp.Body}
		resp.Body = &boundedBody{ReadCloser: plain, host: host, limit: limit, left: limit}
		resp.Header.Del("Content-Encoding")
		resp.ContentLength = -1
		return nil
	default:
		return fmt.Errorf("response of %s has encoding %.50q, which was not requested: %w", host, encoding, errdefs.ErrInvalidArgument)
	}
}

// withAnswerTimeout ends ctx when the pull's time for answers other than layers is used up. The
// caller calls done after it has read the answer.
func (w *wire) withAnswerTimeout(ctx context.Context) (_ context.Context, done func()) {
	start := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, w.limits.AnswerTimeout-time.Duration(w.spent.Load()), ErrSlowAnswers)
	return ctx, sync.OnceFunc(func() {
		cancel()
		w.spent.Add(int64(time.Since(start)))
	})
}

// overdue returns ErrSlowAnswers if err follows from the answer timeout, else err. The registry
// client would retry after a network timeout.
func overdue(ctx context.Context, err error) error {
	if err != nil && !errors.Is(err, io.EOF) && errors.Is(context.Cause(ctx), ErrSlowAnswers) {
		return ErrSlowAnswers
	}
	return err
}

// wireBody is the body of an answer, as received.
type wireBody struct {
	io.ReadCloser
	wire  *wire
	ctx   context.Context
	layer *layer // nil if the body is not of a layer
	done  func()
	once  sync.Once
}

func (b *wireBody) Read(buf []byte) (int, error) {
	if b.layer != nil {
		b.layer.pace.wait(time.Now())
	}
	n, err := b.ReadCloser.Read(buf)
	b.wire.progress.count(n)
	if b.layer != nil && b.wire.tooSlow(b.layer, n) && err == nil {
		return n, ErrSlowDownload
	}
	return n, overdue(b.ctx, err)
}

// tooSlow counts n received bytes of a layer, and reports whether its download is too slow.
func (w *wire) tooSlow(l *layer, n int) bool {
	return l.pace.tooSlow(n, time.Now(), w.window, w.limits.MinDownloadRate)
}

func (b *wireBody) Close() error {
	b.once.Do(func() { b.wire.progress.open.Add(-1) })
	err := b.ReadCloser.Close()
	b.done()
	return err
}

// pace measures the download of a layer in windows of time. Only the time counts in which a reader
// waits for the registry, not the processing of the bytes.
type pace struct {
	mu      sync.Mutex
	waiting int       // number of waiting readers
	since   time.Time // the waiting time is counted up to here
	spent   time.Duration
	bytes   int64
	slow    bool // a window was too slow
}

// wait begins the wait of a reader for bytes, and tooSlow ends it.
func (p *pace) wait(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waiting++; p.waiting == 1 {
		p.since = now
	}
}

// tooSlow ends the wait for n bytes, and reports whether a window was below rate, in bytes per
// second.
func (p *pace) tooSlow(n int, now time.Time, window time.Duration, rate int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting--
	p.spent += now.Sub(p.since)
	p.since = now
	p.bytes += int64(n)
	if window <= 0 || p.spent < window {
		return p.slow
	}
	p.slow = p.slow || float64(p.bytes) < p.spent.Seconds()*float64(rate)
	p.spent, p.bytes = 0, 0
	return p.slow
}

// boundedBody fails after more than limit bytes.
type boundedBody struct {
	io.ReadCloser
	host        string
	limit, left int64
}

func (b *boundedBody) Read(buf []byte) (int, error) {
	if b.left < 0 {
		return 0, b.exceeded()
	}
	if int64(len(buf)) > b.left+1 {
		buf = buf[:b.left+1]
	}
	n, err := b.ReadCloser.Read(buf)
	if b.left -= int64(n); b.left < 0 {
		return n - 1, b.exceeded()
	}
	return n, err
}

func (b *boundedBody) exceeded() error {
	return bounds.Beyond("response of %s is longer than %d bytes", b.host, b.limit)
}

type unzippedBody struct {
	io.Reader
	io.Closer
}

// ErrStalled is the cause of a pull's end if its registry stopped sending.
var ErrStalled = errors.New("no progress")

// Progress watches the requests of one pull. Time counts against the pull only while a request is
// open: unpacking, or waiting for another pull that downloads the same layer, is not a stall.
type Progress struct {
	// Total, if set, counts the bytes of all pulls.
	Total *atomic.Int64

	open, answers, bytes atomic.Int64
}

func (p *Progress) count(n int) {
	p.bytes.Add(int64(n))
	if p.Total != nil {
		p.Total.Add(int64(n))
	}
}

// Bytes is the number of received bytes.
func (p *Progress) Bytes() int64 { return p.bytes.Load() }

// Watch cancels with ErrStalled once a request has been open for timeout without a byte. It returns
// when ctx ends. With a timeout below 0 it does nothing.
func (p *Progress) Watch(ctx context.Context, timeout time.Duration, cancel context.CancelCauseFunc) {
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
		open, came := p.open.Load() > 0, p.answers.Load()+p.bytes.Load()
		if !open || !wasOpen || came != seen {
			since, seen, wasOpen = time.Now(), came, open
			continue
		}
		if time.Since(since) >= timeout {
			cancel(ErrStalled)
			return
		}
	}
}
