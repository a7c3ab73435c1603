package containerdapi

import (
	"context"
	"fmt"
	"maps"
	"sync"

	"github.com/containerd/containerd/v2/core/streaming"
	"github.com/containerd/errdefs"
)

// streams is the manager of containerd's streaming service. Clients open streams for a Transfer:
// they carry archives, progress and credentials.
type streams struct {
	mu   sync.Mutex
	open map[string]*clientStream
}

// maxClientStreams is the limit of open streams.
const maxClientStreams = 64

func newStreams() *streams { return &streams{open: map[string]*clientStream{}} }

// Register implements streaming.StreamManager. A stream is dropped when its context ends.
func (s *streams) Register(ctx context.Context, id string, stream streaming.Stream) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropEnded()
	if _, taken := s.open[id]; taken {
		return fmt.Errorf("stream %.100q: %w", id, errdefs.ErrAlreadyExists)
	}
	if len(s.open) >= maxClientStreams {
		return fmt.Errorf("%d streams are open; close some: %w", maxClientStreams, errdefs.ErrResourceExhausted)
	}
	s.open[id] = &clientStream{Stream: stream, ended: ctx.Err}
	context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.dropEnded()
	})
	return nil
}

// dropEnded drops the streams that have ended. Register and Get call it, too, because AfterFunc
// runs some time later. s.mu is held.
func (s *streams) dropEnded() {
	maps.DeleteFunc(s.open, func(_ string, stream *clientStream) bool { return stream.ended() != nil })
}

// Get implements streaming.StreamManager. A stream serves one transfer, because gRPC forbids
// concurrent sends, and concurrent receives, on one stream. It is closed when ctx ends, which
// unblocks its users.
func (s *streams) Get(ctx context.Context, id string) (streaming.Stream, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropEnded()
	stream, ok := s.open[id]
	if !ok || stream.taken {
		return nil, fmt.Errorf("stream %.100q: %w", id, errdefs.ErrNotFound)
	}
	stream.taken = true
	context.AfterFunc(ctx, func() { _ = stream.Close() })
	return stream, nil
}

// clientStream allows concurrent calls of Close, unlike containerd's stream.
type clientStream struct {
	streaming.Stream
	ended func() error
	once  sync.Once
	taken bool // guarded by streams.mu
}

func (s *clientStream) Close() (err error) {
	s.once.Do(func() { err = s.Stream.Close() })
	return err
}
