package containerdapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	streamingapi "github.com/containerd/containerd/api/services/streaming/v1"
	"github.com/containerd/containerd/v2/core/streaming"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/types/known/emptypb"
)

// streams serves the streams that clients open beside a Transfer: archives, progress and
// credentials go through them.
type streams struct {
	streamingapi.UnimplementedStreamingServer

	mu   sync.Mutex
	open map[string]*clientStream
}

// maxClientStreams is how many may be open.
const maxClientStreams = 64

func newStreams() *streams { return &streams{open: map[string]*clientStream{}} }

// Stream implements streamingapi.StreamingServer. It lasts until a transfer closes the
// stream, or its client does.
func (s *streams) Stream(srv streamingapi.Streaming_StreamServer) error {
	first, err := srv.Recv()
	if err != nil {
		return err
	}
	var init streamingapi.StreamInit
	if err := typeurl.UnmarshalTo(first, &init); err != nil {
		return fmt.Errorf("a stream begins with its name: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	stream := &clientStream{srv: srv, closed: make(chan struct{})}
	if err := s.add(init.GetID(), stream); err != nil {
		return err
	}
	defer s.remove(init.GetID())
	ready, err := typeurl.MarshalAny(&emptypb.Empty{})
	if err != nil {
		return err
	}
	if err := srv.Send(typeurl.MarshalProto(ready)); err != nil {
		return err
	}
	select {
	case <-stream.closed:
	case <-srv.Context().Done():
	}
	return nil
}

func (s *streams) add(id string, stream *clientStream) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, taken := s.open[id]; taken {
		return fmt.Errorf("stream %.100q: %w", id, errdefs.ErrAlreadyExists)
	}
	if len(s.open) >= maxClientStreams {
		return fmt.Errorf("%d streams are open; close some: %w", maxClientStreams, errdefs.ErrResourceExhausted)
	}
	s.open[id] = stream
	return nil
}

func (s *streams) remove(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, id)
}

// take gives a stream to the one transfer that uses it: gRPC forbids that two send on it,
// or two receive. It is closed when ctx ends, which ends whoever waits for it.
func (s *streams) take(ctx context.Context, id string) (streaming.Stream, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	stream, ok := s.open[id]
	if !ok || stream.taken {
		return nil, fmt.Errorf("stream %.100q: %w", id, errdefs.ErrNotFound)
	}
	stream.taken = true
	context.AfterFunc(ctx, func() { _ = stream.Close() })
	return stream, nil
}

// clientStream is one of them. One goroutine may send and one receive.
type clientStream struct {
	srv    streamingapi.Streaming_StreamServer
	once   sync.Once
	closed chan struct{}
	taken  bool // guarded by streams.mu
}

func (s *clientStream) Send(a typeurl.Any) error { return native(s.srv.Send(typeurl.MarshalProto(a))) }

func (s *clientStream) Recv() (typeurl.Any, error) {
	a, err := s.srv.Recv()
	return a, native(err)
}

func (s *clientStream) Close() error {
	s.once.Do(func() { close(s.closed) })
	return nil
}

func native(err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	return errgrpc.ToNative(err)
}
