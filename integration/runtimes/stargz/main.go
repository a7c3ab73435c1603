// Command stargz is the stargz snapshotter for the tests.
//
//	stargz serve SOCKET DIRECTORY   serves it, by containerd's protocol, as its own daemon does
//	stargz convert                  makes an eStargz layer of the archive on stdin
//
// It uses plain HTTP for registries on loopback. convert writes the layer to stdout, and the digest
// of its table of contents to stderr.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"syscall"

	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/v2/contrib/snapshotservice"
	"github.com/containerd/stargz-snapshotter/estargz"
	"github.com/containerd/stargz-snapshotter/service"
	"google.golang.org/grpc"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 3 && args[0] == "serve":
		return serve(args[1], args[2])
	case len(args) == 1 && args[0] == "convert":
		return convert()
	}
	return errors.New("usage: stargz serve SOCKET DIRECTORY | stargz convert")
}

func convert() error {
	archive, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	blob, err := estargz.Build(io.NewSectionReader(bytes.NewReader(archive), 0, int64(len(archive))), estargz.WithChunkSize(64<<10))
	if err != nil {
		return err
	}
	defer blob.Close()
	if _, err := io.Copy(os.Stdout, blob); err != nil {
		return err
	}
	_, err = fmt.Fprint(os.Stderr, blob.TOCDigest())
	return err
}

func serve(address, root string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	config := &service.Config{}
	// Only what is read is fetched, because tests check what was not fetched.
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
