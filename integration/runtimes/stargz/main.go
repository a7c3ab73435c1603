// Command stargz serves the stargz snapshotter on a unix socket, by containerd's
// protocol for proxy snapshotters, as its own daemon does, for the tests. Registries
// on loopback are asked over plain HTTP.
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"

	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/v2/contrib/snapshotservice"
	"github.com/containerd/stargz-snapshotter/service"
	"google.golang.org/grpc"
)

func main() {
	address := flag.String("address", "", "the socket to serve on")
	root := flag.String("root", "", "the directory of the snapshots")
	flag.Parse()
	if err := serve(*address, *root); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve(address, root string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	config := &service.Config{}
	// What is fetched is only what is read: the tests look at what was not.
	config.NoPrefetch, config.NoBackgroundFetch = true, true
	s, err := service.NewStargzSnapshotterService(ctx, root, config)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := os.Remove(address); err != nil && !os.IsNotExist(err) {
		return err
	}
	listener, err := net.Listen("unix", address)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	snapshotsapi.RegisterSnapshotsServer(server, snapshotservice.FromSnapshotter(s))
	go func() { <-ctx.Done(); server.Stop() }()
	return server.Serve(listener)
}
