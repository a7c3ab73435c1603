package remote

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/router/routertest"
)

const newest = "/runtime.v1.RuntimeService/Newest"

// answeringNewest returns a daemon with a method that this CRI does not have. It doubles
// the text of each message. A call ends with end; ended gets the error of a canceled call.
func answeringNewest(t *testing.T, end error) (d *daemon, ended chan error) {
	t.Helper()
	ended = make(chan error, 1)
	d = &daemon{Backend: routertest.New("other"), path: t.TempDir() + "/cri.sock"}
	d.unknown = func(_ any, stream grpc.ServerStream) error {
		md, _ := metadata.FromIncomingContext(stream.Context())
		if err := stream.SetHeader(metadata.Pairs("x-heard", strings.Join(md.Get("x-said"), ","))); err != nil {
			return err
		}
		stream.SetTrailer(metadata.Pairs("x-end", "yes"))
		for {
			m := &wrapperspb.StringValue{}
			if err := stream.RecvMsg(m); errors.Is(err, io.EOF) {
				return end
			} else if err != nil {
				ended <- stream.Context().Err()
				return err
			}
			if err := stream.SendMsg(wrapperspb.String(m.GetValue() + m.GetValue())); err != nil {
				return err
			}
		}
	}
	d.start(t)
	t.Cleanup(func() { d.server.Stop() })
	return d, ended
}

// face serves calls that a backend forwards, and returns a client connection.
func face(t *testing.T, b *Backend) *grpc.ClientConn {
	t.Helper()
	path := t.TempDir() + "/face.sock"
	l := test.Value(net.Listen("unix", path))(t)
	s := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		method, _ := grpc.MethodFromServerStream(stream)
		receive := func() (proto.Message, error) {
			m := &emptypb.Empty{}
			return m, stream.RecvMsg(m)
		}
		first, err := receive()
		if err != nil {
			return err
		}
		return b.Forward(stream.Context(), method, first, receive, func(m proto.Message) error { return stream.SendMsg(m) })
	}))
	go serve(t, s, l)
	t.Cleanup(s.Stop)
	conn := test.Value(grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
	t.Cleanup(func() { test.Check(t, conn.Close()) })
	return conn
}

func TestNewerCallsOfEveryForm(t *testing.T) {
	end := test.Value(status.New(codes.ResourceExhausted, "enough").WithDetails(wrapperspb.String("a detail")))(t)
	for name, want := range map[string]*status.Status{"that succeed": nil, "that fail": end} {
		t.Run(name, func(t *testing.T) {
			d, _ := answeringNewest(t, want.Err())
			b := connect(t, d, t.TempDir())
			isReady(t, b)
			conn := face(t, b)
			ctx := metadata.AppendToOutgoingContext(t.Context(), "x-said", "hello")

			var header, trailer metadata.MD
			got := &wrapperspb.StringValue{}
			err := conn.Invoke(ctx, newest, wrapperspb.String("a"), got, grpc.Header(&header), grpc.Trailer(&trailer))
			if status.Code(err) != want.Code() || err == nil && got.GetValue() != "aa" {
				t.Errorf("%v, %v", got, err)
			}
			if len(header.Get("x-heard")) != 1 || header.Get("x-heard")[0] != "hello" || len(trailer.Get("x-end")) != 1 {
				t.Errorf("header %v, trailer %v", header, trailer)
			}

			stream := test.Value(conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, newest))(t)
			for _, word := range []string{"b", "c"} { // each response comes before the next request
				test.Must(t, stream.SendMsg(wrapperspb.String(word)))
				if err := stream.RecvMsg(got); err != nil || got.GetValue() != word+word {
					t.Errorf("%v, %v", got, err)
				}
			}
			test.Check(t, stream.CloseSend())
			err = stream.RecvMsg(got)
			if want == nil && !errors.Is(err, io.EOF) {
				t.Error(err)
			}
			if want != nil && (status.Code(err) != want.Code() || len(status.Convert(err).Details()) != 1 || status.Convert(err).Message() != "enough") {
				t.Errorf("%v with %v", err, status.Convert(err).Details())
			}
		})
	}
}

func TestNewerCallsEndWithTheirClient(t *testing.T) {
	d, ended := answeringNewest(t, nil)
	b := ready(t, d)
	ctx, cancel := context.WithCancel(t.Context())
	stream := test.Value(face(t, b).NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, newest))(t)
	test.Must(t, errors.Join(stream.SendMsg(wrapperspb.String("a")), stream.RecvMsg(&wrapperspb.StringValue{})))
	cancel()
	select {
	case err := <-ended:
		test.ErrorIs(t, err, context.Canceled, "the context of the daemon's call")
	case <-time.After(20 * time.Second):
		t.Error("the daemon's call continues although its client is gone")
	}
}

func TestWhoLacksACallIsNamed(t *testing.T) {
	d := newDaemon(t)
	b := ready(t, d)
	err := face(t, b).Invoke(t.Context(), newest, &emptypb.Empty{}, &emptypb.Empty{})
	if status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), d.path) || b.Health().Phase != Ready {
		t.Errorf("the error is %v; the daemon is %s", err, b.Health().Phase)
	}
}
