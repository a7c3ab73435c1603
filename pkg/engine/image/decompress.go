package image

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/pkg/archive/compression"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"github.com/klauspost/compress/zstd"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/semaphore"

	"github.com/berth-cri/berth/pkg/engine/image/bounds"
)

// decompression is the name under which the unpacker hands the store's windows to
// the decompressor of a layer.
const decompression = "berth.dev/decompression"

// sizeKey is under which the context of a decompressor has the size of what it opens.
type sizeKey struct{}

// minWindow is the window that every decoder of zstd has (RFC 8878).
const minWindow = 8 << 20

func init() { diff.RegisterProcessor(decompressor) }

// windows is the memory that all layers which are opened at the same time share.
type windows struct {
	max    int64
	budget *semaphore.Weighted
}

var _ typeurl.Any = (*windows)(nil)

func newWindows(size int64) *windows {
	size = max(size, minWindow)
	return &windows{max: size, budget: semaphore.NewWeighted(size)}
}

// GetTypeUrl implements typeurl.Any.
func (*windows) GetTypeUrl() string { return decompression } //nolint:revive // the interface's name

// GetValue implements typeurl.Any; nobody may read it.
func (*windows) GetValue() []byte { return nil }

// withWindows tells the decompressor of a layer what it may take.
func withWindows(w *windows) diff.ApplyOpt {
	return func(_ context.Context, _ imagespec.Descriptor, c *diff.ApplyConfig) error {
		if c.ProcessorPayloads == nil {
			c.ProcessorPayloads = map[string]typeurl.Any{}
		}
		c.ProcessorPayloads[decompression] = w
		return nil
	}
}

// decompressor is a diff.Handler for compressed layers. containerd's own lets a
// layer say how much memory it takes, and opens zstd in goroutines whose panics
// nobody could catch.
func decompressor(ctx context.Context, mediaType string) (diff.StreamProcessorInit, bool) {
	if compressed, err := images.DiffCompression(ctx, mediaType); err != nil || compressed == "" {
		return nil, false
	}
	return func(ctx context.Context, stream diff.StreamProcessor, payloads map[string]typeurl.Any) (diff.StreamProcessor, error) {
		w, ok := payloads[decompression].(*windows)
		if !ok {
			return nil, fmt.Errorf("the memory limit for unpacking a layer is not set: %w", errdefs.ErrInternal)
		}
		in := bufio.NewReaderSize(stream, 32<<10)
		head, err := in.Peek(zstd.HeaderMaxSize)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		if compression.DetectCompression(head) == compression.Zstd {
			return w.open(ctx, in, head)
		}
		if compression.DetectCompression(head) != compression.Gzip {
			return &plainLayer{Reader: in, close: func() {}}, nil
		}
		size, _ := ctx.Value(sizeKey{}).(int64)
		opened, err := gunzip(ctx, in, size)
		if err != nil {
			return nil, err
		}
		return &plainLayer{Reader: opened, close: sync.OnceFunc(func() { _ = opened.Close() })}, nil
	}, true
}

// open opens zstd, when as much memory is free as the first frame wants.
func (w *windows) open(ctx context.Context, in io.Reader, head []byte) (diff.StreamProcessor, error) {
	window := int64(minWindow)
	var h zstd.Header
	switch err := h.Decode(head); {
	case err != nil:
		return nil, fmt.Errorf("zstd: %w", err)
	case h.Skippable:
		window = w.max
	case h.SingleSegment:
		window = max(window, bounded(h.FrameContentSize))
	default:
		window = max(window, bounded(h.WindowSize))
	}
	if window > w.max {
		return nil, bounds.Beyond("layer needs a zstd window of %d bytes, more than %d", window, w.max)
	}
	if err := w.budget.Acquire(ctx, window); err != nil {
		return nil, err
	}
	d, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxWindow(uint64(window)), zstd.WithDecoderMaxMemory(uint64(window)))
	if err != nil {
		w.budget.Release(window)
		return nil, err
	}
	return &plainLayer{Reader: zstdReader{d}, close: sync.OnceFunc(func() {
		d.Close()
		w.budget.Release(window)
	})}, nil
}

// bounded makes a size of what a layer says it is.
func bounded(size uint64) int64 { return int64(min(size, 1<<62)) } //nolint:gosec // it fits

// zstdReader says which limit a layer exceeds.
type zstdReader struct{ *zstd.Decoder }

func (r zstdReader) Read(p []byte) (int, error) {
	n, err := r.Decoder.Read(p)
	if errors.Is(err, zstd.ErrWindowSizeExceeded) || errors.Is(err, zstd.ErrDecoderSizeExceeded) {
		err = bounds.Beyond("layer needs a larger zstd window than its first frame")
	}
	return n, err
}

// plainLayer is what is inside of a compressed layer.
type plainLayer struct {
	io.Reader
	close func()
}

// MediaType implements diff.StreamProcessor.
func (*plainLayer) MediaType() string { return imagespec.MediaTypeImageLayer }

// Close implements io.Closer.
func (l *plainLayer) Close() error {
	l.close()
	return nil
}
