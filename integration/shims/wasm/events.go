package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os/exec"

	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/containerd/v2/pkg/sys/reaper"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/proto"
)

// byBinary publishes events by the program that -publish-binary names: shims may do so,
// also if those of runwasi speak ttrpc.
type byBinary struct{ shim.Publisher }

func (byBinary) Publish(ctx context.Context, topic string, event events.Event) error {
	ns, err := namespaces.NamespaceRequired(ctx)
	if err != nil {
		return err
	}
	encoded, err := typeurl.MarshalAnyToProto(event)
	if err != nil {
		return err
	}
	data, err := proto.Marshal(encoded)
	if err != nil {
		return err
	}
	option := func(name string) string { return flag.Lookup(name).Value.String() }
	command := exec.Command(option("publish-binary"), "--address", option("address"), "publish", "--topic", topic, "--namespace", ns)
	command.Stdin = bytes.NewReader(data)
	exits, err := reaper.Default.Start(command)
	if err != nil {
		return err
	}
	status, err := reaper.Default.Wait(command, exits)
	if err == nil && status != 0 {
		err = fmt.Errorf("publish %s: status %d", topic, status)
	}
	return err
}
