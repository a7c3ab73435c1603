package main

import (
	"bytes"
	"context"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/api/events"
	eventsapi "github.com/containerd/containerd/api/services/ttrpc/events/v1"
	"github.com/containerd/ttrpc"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/berth-cri/berth/internal/test"
)

type received chan *eventsapi.ForwardRequest

func (r received) Forward(_ context.Context, f *eventsapi.ForwardRequest) (*emptypb.Empty, error) {
	r <- f
	return &emptypb.Empty{}, nil
}

// TestPublish calls the program with the arguments with which shims built on containerd 1.2
// call their program for events.
func TestPublish(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket+".ttrpc") // shims get the address of containerd's API, without the suffix
	test.Must(t, err)
	srv := test.Value(ttrpc.NewServer())(t)
	got := make(received, 1)
	eventsapi.RegisterTTRPCEventsService(srv, got)
	go func() { _ = srv.Serve(t.Context(), l) }()
	t.Cleanup(func() { _ = srv.Close() })

	a := test.Value(typeurl.MarshalAnyToProto(&events.TaskOOM{ContainerID: "c"}))(t)
	data := test.Value(proto.Marshal(a))(t)
	args := []string{"--address", socket, "publish", "--topic", "/tasks/oom", "--namespace", "berth"}
	if !publishes(args) || publishes([]string{"serve", "--dir", "publish"}) || publishes(nil) {
		t.Error("publishes does not recognize the calls")
	}
	test.Must(t, publish(args, bytes.NewReader(data)))
	e := (<-got).GetEnvelope()
	if e.GetTopic() != "/tasks/oom" || e.GetNamespace() != "berth" || e.GetTimestamp().AsTime().Unix() == 0 || !typeurl.Is(e.GetEvent(), &events.TaskOOM{}) {
		t.Errorf("the published event is %v", e)
	}
	for name, c := range map[string]struct {
		args  []string
		stdin string
		says  string
	}{
		"no topic":                   {[]string{"--address", socket, "publish"}, "", "usage"},
		"more arguments":             {append(args, "x"), "", "usage"},
		"an invalid event":           {args, "nonsense", "read the event"},
		"an event that is too large": {args, strings.Repeat("x", maxEvent+1), "larger than"},
		"no server":                  {[]string{"--address", socket + "x", "publish", "--topic", "t"}, "", "publish event"},
		"an unknown flag":            {append([]string{"--nonsense"}, args...), "", "nonsense"},
	} {
		if err := publish(c.args, strings.NewReader(c.stdin)); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
