package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// batch is how many calls are made of one daemon before the other has its turn.
const batch = 50

// remoteHandler is the handler whose pods live in the other daemon.
const remoteHandler = "legacy"

// hops measures calls about one container, and lists of many, in a containerd.
func (r *report) hops(t testbed.T, o options) {
	registry := testbed.NewRegistry(t, testbed.RegistryOptions{})
	image := registry.Push(t, "bench/busybox:1", testbed.Busybox(t))
	runtimes := map[string]string{testbed.Runc: testbed.Part(t, testbed.Runc)}
	other := testbed.StartContainerd(t, testbed.ContainerdOptions{
		Runtimes: runtimes, DefaultRuntime: testbed.Runc, CNI: testbed.NewCNI(t), Registry: registry,
	})
	berth := testbed.StartBerth(t, testbed.Options{
		Runtimes: runtimes, DefaultRuntime: testbed.Runc, CNI: testbed.NewCNI(t), Registries: []*testbed.Registry{registry},
		Config: leadTo(other.Socket, testbed.Runc),
	})
	waitReady(t, berth.Client)
	theirs := berth.Client.RunPod(t, testbed.PodSpec{Handler: remoteHandler, Image: image, Command: []string{"sleep", "86400"}})
	own := berth.Client.RunPod(t, testbed.PodSpec{Image: image, Command: []string{"sleep", "86400"}})

	for _, clients := range []int{1, 8} {
		status := func(c *testbed.Client) func(context.Context) error {
			return func(ctx context.Context) error {
				_, err := c.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: theirs.Container.ID})
				return err
			}
		}
		direct, through := inTurns(t, o.calls, clients, status(other.Client), status(berth.Client))
		r.compare(fmt.Sprintf("ContainerStatus, %d clients", clients), "µs", 1e6, direct, through)
	}

	half := o.containers/2 - 1
	for i := range half {
		theirs.CreateContainer(t, fmt.Sprint("more-", i), testbed.PodSpec{Image: image, Command: []string{"sleep", "86400"}})
		own.CreateContainer(t, fmt.Sprint("more-", i), testbed.PodSpec{Image: image, Command: []string{"sleep", "86400"}})
	}
	list := func(c *testbed.Client) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := c.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
			return err
		}
	}
	direct, through := inTurns(t, max(o.calls/20, 100), 1, list(other.Client), list(berth.Client))
	r.compare(fmt.Sprintf("ListContainers, %d containers through berth, of which the daemon alone lists %d", 2*(half+1), half+1), "ms", 1e3, direct, through)
}

// leadTo is the configuration of a handler whose pods live in another daemon.
func leadTo(socket, handler string) string {
	return fmt.Sprintf("[log]\nlevel = \"info\"\n[runtimes.%s]\nendpoint = %q\nremote_handler = %q\n", remoteHandler, "unix://"+socket, handler)
}

func waitReady(t testbed.T, c *testbed.Client) {
	t.Helper()
	testbed.Eventually(t, time.Minute, func() error {
		s, err := c.Status(t.Context(), &runtimeapi.StatusRequest{})
		if err != nil {
			return err
		}
		for _, h := range s.GetRuntimeHandlers() {
			if h.GetName() == remoteHandler {
				return nil
			}
		}
		return fmt.Errorf("no handler %s: %v", remoteHandler, s.GetStatus().GetConditions())
	})
}

// inTurns makes n calls of each kind by several clients at once, and returns how
// long each took, in seconds.
func inTurns(t testbed.T, n, clients int, direct, through func(context.Context) error) (ofDirect, ofThrough []float64) {
	t.Helper()
	for range 2 { // warm
		_ = many(t, clients, direct)
		_ = many(t, clients, through)
	}
	for range (n + batch - 1) / batch {
		ofDirect = append(ofDirect, many(t, clients, direct)...)
		ofThrough = append(ofThrough, many(t, clients, through)...)
	}
	return ofDirect, ofThrough
}

// many makes a batch of calls.
func many(t testbed.T, clients int, call func(context.Context) error) []float64 {
	t.Helper()
	times := make([][]float64, clients)
	failed := make([]error, clients)
	var calling sync.WaitGroup
	for i := range clients {
		calling.Go(func() {
			for range (batch + clients - 1) / clients {
				begin := time.Now()
				if err := call(t.Context()); err != nil {
					failed[i] = err
					return
				}
				times[i] = append(times[i], time.Since(begin).Seconds())
			}
		})
	}
	calling.Wait()
	var all []float64
	for i := range clients {
		if failed[i] != nil {
			t.Fatalf("call: %v", failed[i])
		}
		all = append(all, times[i]...)
	}
	return all
}
