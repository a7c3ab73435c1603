package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"slices"
	"time"

	eventsapi "github.com/containerd/containerd/api/services/ttrpc/events/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const (
	// publishTimeout bounds the complete call: a shim waits for it.
	publishTimeout = 10 * time.Second
	// maxEvent bounds an event, in bytes; events are far smaller.
	maxEvent = 1 << 20
)

const publishUsage = "berth-shim --address <socket> publish --topic <topic> --namespace <namespace>"

// publishes reports whether a shim has called this program as it would call containerd.
func publishes(args []string) bool {
	return len(args) > 0 && args[0] != "serve" && slices.Contains(args[:min(len(args), 3)], "publish")
}

// publish forwards one event of a shim to the daemon: shims without ttrpc run the program in
// -publish-binary, with the event on stdin.
func publish(args []string, stdin io.Reader) error {
	flags := flag.NewFlagSet("berth-shim publish", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	address := flags.String("address", "", "socket of the daemon")
	topic := flags.String("topic", "", "topic of the event")
	namespace := flags.String("namespace", "", "namespace of the event")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.Arg(0) == "publish" {
		if err := flags.Parse(flags.Args()[1:]); err != nil {
			return err
		}
	}
	if *address == "" || *topic == "" || flags.NArg() > 0 {
		return errors.New("usage: " + publishUsage)
	}
	data, err := io.ReadAll(io.LimitReader(stdin, maxEvent+1))
	if err != nil {
		return fmt.Errorf("read the event: %w", err)
	}
	if len(data) > maxEvent {
		return fmt.Errorf("the event is larger than %d bytes", maxEvent)
	}
	event := &anypb.Any{}
	if err := proto.Unmarshal(data, event); err != nil {
		return fmt.Errorf("read the event: %w", err)
	}
	return forward(*address, &types.Envelope{Timestamp: timestamppb.Now(), Namespace: *namespace, Topic: *topic, Event: event})
}

func forward(address string, e *types.Envelope) error {
	ctx, cancel := context.WithTimeout(context.Background(), publishTimeout)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", address+".ttrpc") // the ttrpc socket, named as in containerd
	if err != nil {
		return fmt.Errorf("publish event: %w", err)
	}
	defer conn.Close()
	client := eventsapi.NewTTRPCEventsClient(ttrpc.NewClient(conn))
	if _, err := client.Forward(ctx, &eventsapi.ForwardRequest{Envelope: e}); err != nil {
		return fmt.Errorf("publish event: %w", err)
	}
	return nil
}
