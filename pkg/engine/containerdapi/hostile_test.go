package containerdapi

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	contentapi "github.com/containerd/containerd/api/services/content/v1"
	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	streamingapi "github.com/containerd/containerd/api/services/streaming/v1"
	transferapi "github.com/containerd/containerd/api/services/transfer/v1"
	"github.com/containerd/containerd/api/types/transfer"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/log"
	"github.com/containerd/typeurl/v2"
	"github.com/distribution/reference"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/observe"
)

// served starts a server for agents, and returns a client with a context for its calls.
func served(t *testing.T) (context.Context, *grpc.ClientConn) { return newServer(t).served(t, Agents) }

func (s *Server) served(t *testing.T, to Audience) (context.Context, *grpc.ClientConn) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	l := test.Value(net.Listen("unix", socket))(t)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, l, to, observe.NewContainerd(nil).ServerOptions()...) }()
	t.Cleanup(func() {
		cancel()
		test.Check(t, <-ended)
	})
	c := test.Value(grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
	t.Cleanup(func() { _ = c.Close() })
	return metadata.AppendToOutgoingContext(ctx, namespaces.GRPCHeader, Namespace), c
}

func packed(t *testing.T, m any) *anypb.Any {
	t.Helper()
	a := test.Value(typeurl.MarshalAny(m))(t)
	return typeurl.MarshalProto(a)
}

// openStream opens a stream for transfers.
func openStream(ctx context.Context, t *testing.T, c *grpc.ClientConn, id string) streamingapi.Streaming_StreamClient {
	t.Helper()
	stream := test.Value(streamingapi.NewStreamingClient(c).Stream(ctx))(t)
	test.Must(t, stream.Send(packed(t, &streamingapi.StreamInit{ID: id})))
	test.Must(t, test.Err(stream.Recv()))
	return stream
}

// A shim and an agent may give their streams the same name.
func TestStreamsOfEachAudience(t *testing.T) {
	s := newServer(t)
	for _, to := range []Audience{Agents, Shims} {
		ctx, c := s.served(t, to)
		openStream(ctx, t, c, "export")
	}
}

// If two goroutines receive on one stream, gRPC panics outside of the call's goroutines.
func TestManyTransfersWithOneStream(t *testing.T) {
	ctx, c := served(t)
	for i := range 20 {
		ctx, cancel := context.WithCancel(ctx)
		id := fmt.Sprint("stream", i)
		stream := openStream(ctx, t, c, id)
		var transfers sync.WaitGroup
		for range 8 {
			transfers.Go(func() {
				_, _ = transferapi.NewTransferClient(c).Transfer(ctx, &transferapi.TransferRequest{
					Source: packed(t, &transfer.ImageImportStream{Stream: id}), Destination: packed(t, &transfer.ImageStore{}),
				})
			})
		}
		for range 500 {
			if stream.Send(packed(t, &streamingapi.StreamInit{ID: "x"})) != nil {
				break
			}
		}
		cancel()
		transfers.Wait()
	}
}

// Transfers that fail or are cancelled leave no goroutines behind.
func TestTransfersLeaveNothing(t *testing.T) {
	ctx, c := served(t)
	bad := func(i int) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		id := fmt.Sprint("bad", i)
		stream := openStream(ctx, t, c, id)
		for range 4 { // not an archive, and more data than the import reads
			_ = stream.Send(packed(t, &transfer.Data{Data: bytes.Repeat([]byte{'x'}, 32<<10)}))
		}
		_, err := transferapi.NewTransferClient(c).Transfer(ctx, &transferapi.TransferRequest{
			Source: packed(t, &transfer.ImageImportStream{Stream: id}), Destination: packed(t, &transfer.ImageStore{}),
		})
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("import of data that is not an archive: %v", err)
		}
	}
	abandoned := func(i int) {
		ctx, cancel := context.WithCancel(ctx)
		id := fmt.Sprint("auth", i)
		stream := openStream(ctx, t, c, id)
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = transferapi.NewTransferClient(c).Transfer(ctx, &transferapi.TransferRequest{
				Source:      packed(t, &transfer.OCIRegistry{Reference: "registry.test/app:1", Resolver: &transfer.RegistryResolver{AuthStream: id}}),
				Destination: packed(t, &transfer.ImageStore{}),
			})
		}()
		test.Must(t, test.Err(stream.Recv())) // the request for credentials, which is not answered
		cancel()
		<-done
	}
	bad(-1)
	abandoned(-1)
	before := runtime.NumGoroutine()
	for i := range 20 {
		bad(i)
		abandoned(i)
	}
	test.Retry(t, func() error {
		if after := runtime.NumGoroutine(); after > before+5 {
			buf := make([]byte, 1<<20)
			return fmt.Errorf("%d goroutines, %d before:\n%s", after, before, buf[:runtime.Stack(buf, true)])
		}
		return nil
	})
}

// answering is a client's stream that answers every request with one message.
type answering struct{ with typeurl.Any }

func (answering) Send(typeurl.Any) error       { return nil }
func (a answering) Recv() (typeurl.Any, error) { return a.with, nil }
func (answering) Close() error                 { return nil }

// Credentials are only for the host that the client was asked about, not for mirrors.
func TestCredentialsAreForTheHost(t *testing.T) {
	for _, kind := range []transfer.AuthType{transfer.AuthType_CREDENTIALS, transfer.AuthType_REFRESH} {
		s := &transferService{streams: newStreams()}
		with := packed(t, &transfer.AuthResponse{AuthType: kind, Username: "me", Secret: "secret"})
		test.Must(t, s.streams.Register(t.Context(), "auth", answering{with}))
		named := test.Value(reference.ParseNamed("registry.test:5000/app:1"))(t)
		auth := test.Value(s.credentials(t.Context(), "auth", named))(t)
		test.Equal(t, fmt.Sprintf("server of %s", kind), auth.GetServerAddress(), "registry.test:5000")
	}
}

// A client's mistakes are returned to the client, and not logged.
func TestMistakesAreNotLogged(t *testing.T) {
	var written bytes.Buffer
	var mu sync.Mutex
	logger, out, level := log.L.Logger, log.L.Logger.Out, log.L.Logger.GetLevel()
	logger.SetOutput(lockedWriter{&mu, &written})
	logger.SetLevel(log.DebugLevel)
	t.Cleanup(func() { logger.SetOutput(out); logger.SetLevel(level) })
	ctx, c := served(t)
	for i := range 50 {
		w := test.Value(contentapi.NewContentClient(c).Write(ctx))(t)
		_ = w.Send(&contentapi.WriteContentRequest{Action: contentapi.WriteAction_COMMIT, Ref: "x", Expected: "sha256:nonsense"})
		test.Fails(t, test.Err(w.Recv()), "content with an invalid digest was committed")
		if _, err := imagesapi.NewImagesClient(c).Create(ctx, &imagesapi.CreateImageRequest{}); status.Code(err) != codes.InvalidArgument {
			t.Errorf("an empty request to create an image: %v", err)
		}
		if _, err := contentapi.NewContentClient(c).Update(ctx, &contentapi.UpdateRequest{}); status.Code(err) != codes.InvalidArgument {
			t.Errorf("an empty request to update content: %v", err)
		}
		stream, end := context.WithCancel(ctx)
		openStream(stream, t, c, fmt.Sprint("stream", i))
		end()
	}
	mu.Lock()
	defer mu.Unlock()
	if lines := strings.Count(written.String(), "\n") - strings.Count(written.String(), "Call of the containerd API"); lines > 5 {
		t.Errorf("%d unexpected log lines:\n%.2000s", lines, written.String())
	}
}

type lockedWriter struct {
	mu *sync.Mutex
	to *bytes.Buffer
}

func (w lockedWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.to.Write(p)
}
