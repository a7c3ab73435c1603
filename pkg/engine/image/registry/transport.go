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

// ErrSlowAnswers ends a pull whose registry takes too long for what is not a layer.
var ErrSlowAnswers = errors.New("registry takes too long to respond")

// ErrSlowDownload ends a pull whose registry sends a layer too slowly.
var ErrSlowDownload = errors.New("registry sends too slowly")

// wire is what all requests of one pull pass through: nothing that a registry, a
// token server or whoever they redirect to answers is longer than it may be, or
// takes longer.
type wire struct {
	limits bounds.Limits
	// window is over how long rates are measured.
	window time.Duration
	// spent is how long all answers but layers took, in nanoseconds.
	spent    atomic.Int64
	progress *Progress
}

// layerKey marks the context of a request for a layer; its value is the size.
type layerKey struct{}

// withLayer says that requests under ctx are for a layer of so many bytes.
func withLayer(ctx context.Context, size int64) context.Context {
	return context.WithValue(ctx, layerKey{}, size)
}

// transport passes requests for layers, and others, through rt.
func (w *wire) transport(rt http.RoundTripper) http.RoundTripper {
	return wireTransport{rt: rt, wire: w, layers: true, limit: w.limits.MaxManifestSize}
}

// tokens passes requests of tokens through rt.
func (w *wire) tokens(rt http.RoundTripper) http.RoundTripper {
	if t, ok := rt.(wireTransport); ok {
		rt = t.rt // else their time would count twice
	}
	return wireTransport{rt: rt, wire: w, limit: min(maxToken, w.limits.MaxManifestSize)}
}

type wireTransport struct {
	rt   http.RoundTripper
	wire *wire
	// layers says whether layers come this way.
	layers bool
	// limit bounds what is not a layer.
	limit int64
}

func (t wireTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	size, layer := r.Context().Value(layerKey{}).(int64)
	layer = layer && t.layers
	done := func() {}
	ctx := r.Context()
	if !layer {
		ctx, done = t.wire.hurry(ctx)
	}
	r = r.Clone(ctx)
	// A compressed answer would be bounded by less than what becomes of it.
	r.Header.Set("Accept-Encoding", "identity")
	var asked *part
	if layer && r.Method == http.MethodGet {
		if asked = partOf(r.Context()); asked != nil {
			if err := asked.ask(r); err != nil {
				return nil, err
			}
		}
	}
	t.wire.progress.open.Add(1)
	resp, err := t.rt.RoundTrip(r)
	if err == nil {
		// An answer is progress, also one without a body.
		t.wire.progress.bytes.Add(1)
		if asked != nil {
			asked.answered(resp)
		}
		resp.Body = &wireBody{ReadCloser: resp.Body, wire: t.wire, paced: layer, done: done, ctx: ctx}
		limit := t.limit
		if layer && (resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusPartialContent) {
			limit = size
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

// bound cuts an answer at limit, and refuses one that says that it is longer.
func (t wireTransport) bound(resp *http.Response, limit int64) error {
	host := resp.Request.URL.Host
	// An answer to HEAD has the length of what it does not send.
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

// hurry ends ctx when the pull's time for what is not a layer is used up. The
// caller calls done when the answer is read.
func (w *wire) hurry(ctx context.Context) (_ context.Context, done func()) {
	if w.limits.AnswerTimeout < 0 {
		return ctx, func() {}
	}
	start := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, w.limits.AnswerTimeout-time.Duration(w.spent.Load()), ErrSlowAnswers)
	return ctx, sync.OnceFunc(func() {
		cancel()
		w.spent.Add(int64(time.Since(start)))
	})
}

// overdue names the reason if err is that the time is used up: not as a timeout of
// the network, after which the registry client would try again.
func overdue(ctx context.Context, err error) error {
	if err != nil && !errors.Is(err, io.EOF) && errors.Is(context.Cause(ctx), ErrSlowAnswers) {
		return ErrSlowAnswers
	}
	return err
}

// wireBody is the body of an answer as it comes from the network.
type wireBody struct {
	io.ReadCloser
	wire  *wire
	ctx   context.Context
	paced bool
	pace  pace
	done  func()
	once  sync.Once
}

func (b *wireBody) Read(buf []byte) (int, error) {
	start := time.Now()
	n, err := b.ReadCloser.Read(buf)
	b.wire.progress.came(n)
	// Only the time counts that the registry needs, not what becomes of the bytes.
	if b.paced && err == nil && b.pace.tooSlow(n, time.Since(start), b.wire.window, b.wire.limits.MinDownloadRate) {
		return n, ErrSlowDownload
	}
	return n, overdue(b.ctx, err)
}

func (b *wireBody) Close() error {
	b.once.Do(func() { b.wire.progress.open.Add(-1) })
	err := b.ReadCloser.Close()
	b.done()
	return err
}

// pace measures a download in windows of time.
type pace struct {
	spent time.Duration
	bytes int64
}

// tooSlow counts n bytes that took so long, and says at the end of each window
// whether it had fewer than rate per second.
func (p *pace) tooSlow(n int, took, window time.Duration, rate int64) bool {
	p.spent += took
	p.bytes += int64(n)
	if rate <= 0 || window <= 0 || p.spent < window {
		return false
	}
	slow := float64(p.bytes) < p.spent.Seconds()*float64(rate)
	*p = pace{}
	return slow
}

// boundedBody fails when there is more than its limit.
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

// unzippedBody is what is inside of a body.
type unzippedBody struct {
	io.Reader
	io.Closer
}
