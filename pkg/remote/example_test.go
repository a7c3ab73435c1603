package remote_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/remote"
	"github.com/berth-cri/berth/pkg/router/routertest"
)

// A pool has one backend for each daemon that handlers use.
func ExamplePool() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	legacy := &handler.Definition{Name: "legacy", Type: handler.CRI, Endpoint: filepath.Join(dir, "cri.sock"), RemoteHandler: "runc"}
	defer daemonAt(legacy.Endpoint).Stop()

	driver := func(context.Context) (runtimeapi.CgroupDriver, error) { return runtimeapi.CgroupDriver_CGROUPFS, nil }
	pool, err := remote.NewPool(context.Background(), remote.PoolOptions{
		Dir: dir, Instance: "this run of berth", ListTimeout: time.Second, CgroupDriver: driver, Changed: func(*remote.Backend) {},
	})
	if err != nil {
		panic(err)
	}
	defer func() {
		if err := pool.Close(); err != nil {
			panic(err)
		}
	}()
	runtime, err := pool.Check(context.Background(), legacy) // can the handler run pods?
	fmt.Println(runtime.Name, err)

	b, err := pool.For(legacy)
	if err != nil {
		panic(err)
	}
	inForce := []*handler.Definition{legacy}
	if err := pool.Record(inForce); err != nil { // writes to disk, before the first pod
		panic(err)
	}
	pool.SetInForce(inForce)
	fmt.Println(b.Health().Phase)
	// Output:
	// memory <nil>
	// ready
}

// daemonAt serves an in-memory CRI daemon.
func daemonAt(socket string) *grpc.Server {
	l, err := net.Listen("unix", socket)
	if err != nil {
		panic(err)
	}
	server, backend := grpc.NewServer(), routertest.New("other")
	runtimeapi.RegisterRuntimeServiceServer(server, backend)
	runtimeapi.RegisterImageServiceServer(server, backend)
	go func() {
		if err := server.Serve(l); err != nil {
			panic(err)
		}
	}()
	return server
}
