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

	lanes := open(t, other.Socket, berth.Socket)
	status := call(runtimeapi.RuntimeService_ContainerStatus_FullMethodName, &runtimeapi.ContainerStatusRequest{ContainerId: theirs.Container.ID})
	for _, clients := range []int{1, 8} {
		r.compare(fmt.Sprintf("ContainerStatus, %d clients", clients), "µs", 1e6, lanes.inTurns(t, o.calls, clients, status))
	}
	r.work(t, "ContainerStatus", berth.PID(), o.calls, func(ctx context.Context) error { return status(ctx, lanes.through) })

	half := o.containers/2 - 1
	idle := testbed.PodSpec{Image: image, Command: []string{"sleep", "86400"}}
	var added []string
	for i := range half {
		theirs.CreateContainer(t, fmt.Sprint("more-", i), idle)
		added = append(added, own.CreateContainer(t, fmt.Sprint("more-", i), idle).ID)
	}
	list := call(runtimeapi.RuntimeService_ListContainers_FullMethodName, &runtimeapi.ListContainersRequest{})
	r.compare(fmt.Sprintf("ListContainers, %d through berth, of which the other daemon has %d", 2*(half+1), half+1), "ms", 1e3,
		lanes.inTurns(t, max(o.calls/20, 100), 1, list))
	for i, id := range added {
		theirs.CreateContainer(t, fmt.Sprint("moved-", i), idle)
		if _, err := berth.Client.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
			t.Fatalf("remove a container: %v", err)
		}
	}
	r.compare(fmt.Sprintf("ListContainers, %d through berth, of which the other daemon has %d", 2*(half+1), 2*half+1), "ms", 1e3,
		lanes.inTurns(t, max(o.calls/20, 100), 1, list))
	r.isolation(t, o, berth, other, own)
}

// work tells what one call costs a process, on the CPU.
func (r *report) work(t testbed.T, name string, pid, n int, call func(context.Context) error) {
	t.Helper()
	before := used(t, pid)
	for range (n + batch - 1) / batch {
		_ = many(t, 1, call)
	}
	r.tell("time of CPUs that "+name+" of a pod in the other daemon costs berth", "µs", (used(t, pid)-before).Seconds()*1e6/float64((n+batch-1)/batch*batch))
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
