package router_test

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/router"
	"github.com/berth-cri/berth/pkg/router/routertest"
)

// A new pod goes to the backend of its handler, and every later call about it to its owner.
func Example() {
	runc := &handler.Definition{Name: "runc"}
	engine := routertest.New("engine")
	resp, err := engine.RunPodSandbox(handler.WithDefinition(context.Background(), runc), &runtimeapi.RunPodSandboxRequest{})
	if err != nil {
		panic(err)
	}

	registry := handler.NewRegistry(handler.EmptyTable[router.Backend]())
	pods := router.NewPods(registry)
	pods.Adopt(engine) // including the pod above

	table, err := handler.NewTable(1, "runc", []handler.Route[router.Backend]{
		{Backend: engine, Definition: runc, State: handler.State{Phase: handler.Ready}},
	})
	if err != nil {
		panic(err)
	}
	registry.Swap(table) // also while calls are served

	r := router.New(pods, nothingReported{}, nil)
	server := grpc.NewServer(r.ServerOptions()...)
	r.Register(server)
	r.SetReady() // until then all calls are refused

	owner, err := pods.Find(resp.GetPodSandboxId()[:8])
	if err != nil {
		panic(err)
	}
	fmt.Println(owner.Handler, owner.Backend.ID(), pods.SandboxCounts())
	// Output: runc engine map[runc:1]
}
