package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// widths are how many pods of a fleet are started in parallel. The last fleet stays for the
// measurements on a full node.
var widths = []int{1, 4, 8}

// settle is how long a node is idle before its memory or CPU time is read.
const settle = 2 * time.Second

// fleet does the measurements that need a full node.
func (tr *trial) fleet() {
	if tr.wants(groupParallel) {
		for _, width := range widths[:len(widths)-1] {
			tr.removeFleet(tr.newFleet(width))
		}
	}
	fleet := tr.newFleet(widths[len(widths)-1])
	if tr.wants(groupMemory) {
		tr.memory()
	}
	if tr.wants(groupLists) {
		tr.lists()
	}
	if tr.wants(groupIdle) {
		tr.idle()
	}
	if tr.wants(groupRecovery) {
		tr.recovery()
	}
	tr.removeFleet(fleet)
}

// newFleet starts all pods, as many in parallel as width.
func (tr *trial) newFleet(width int) []*pod {
	tr.Helper()
	fleet := make([]*pod, tr.pods)
	begin := time.Now()
	tr.each(width, func(ctx context.Context, i int) (err error) {
		fleet[i], _, err = tr.tryPod(ctx)
		return err
	})
	if tr.wants(groupParallel) {
		tr.record(fmt.Sprintf("parallel%d", width), float64(tr.pods)/time.Since(begin).Seconds())
	}
	return fleet
}

func (tr *trial) removeFleet(fleet []*pod) {
	tr.Helper()
	tr.each(widths[len(widths)-1], func(ctx context.Context, i int) error {
		_, err := fleet[i].remove(ctx)
		return err
	})
}

// each calls do for every pod, as many in parallel as width, and waits for all. It fails with the
// first error.
func (tr *trial) each(width int, do func(ctx context.Context, i int) error) {
	tr.Helper()
	next := make(chan int)
	failed := make(chan error, tr.contest.pods)
	var workers sync.WaitGroup
	for range width {
		workers.Go(func() {
			for i := range next {
				if err := do(tr.Context(), i); err != nil {
					failed <- err
				}
			}
		})
	}
	for i := range tr.contest.pods {
		next <- i
	}
	close(next)
	workers.Wait()
	select {
	case err := <-failed:
		tr.Fatalf("%v (and %d more failed)", err, len(failed))
	default:
	}
}

// memory records the memory of the helpers and of the daemon.
func (tr *trial) memory() {
	time.Sleep(settle)
	helpers, err := tr.peer.helpers()
	testbed.Mustf(tr, err, "look for helpers")
	var kilobytes float64
	for _, pid := range helpers {
		pss, err := memory(pid, "Pss")
		if err != nil {
			continue // it has exited
		}
		kilobytes += pss
	}
	tr.record("helpers", kilobytes/1024/float64(tr.pods))
	anonymous, err := memory(tr.peer.PID(), "Anonymous")
	testbed.Mustf(tr, err, "read the daemon's memory")
	tr.record("daemon", anonymous/1024)
}

// lists measures the calls that a kubelet repeats all the time.
func (tr *trial) lists() {
	client := tr.peer.Client
	calls := []struct {
		key  string
		call func(context.Context) (int, error)
	}{
		{"listPods", func(ctx context.Context) (int, error) {
			r, err := client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
			return len(r.GetItems()), err
		}},
		{"listContainers", func(ctx context.Context) (int, error) {
			r, err := client.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
			return len(r.GetContainers()), err
		}},
		{"listStats", func(ctx context.Context) (int, error) {
			r, err := client.ListContainerStats(ctx, &runtimeapi.ListContainerStatsRequest{})
			return measured(r.GetStats()), err
		}},
		{"listPodStats", func(ctx context.Context) (int, error) {
			r, err := client.ListPodSandboxStats(ctx, &runtimeapi.ListPodSandboxStatsRequest{})
			return measuredPods(r.GetStats()), err
		}},
	}
	const times = 10
	for range times {
		for _, c := range calls {
			begin := time.Now()
			n, err := c.call(tr.Context())
			took := time.Since(begin)
			testbed.Mustf(tr, err, "%s", c.key)
			if n != tr.pods {
				tr.Fatalf("%s has %d entries, not %d", c.key, n, tr.pods)
			}
			tr.record(c.key, milliseconds(took))
		}
	}
}

// measured counts the containers that have statistics.
func measured(stats []*runtimeapi.ContainerStats) int {
	n := 0
	for _, s := range stats {
		if s.GetCpu().GetUsageCoreNanoSeconds().GetValue() > 0 && s.GetMemory().GetWorkingSetBytes().GetValue() > 0 {
			n++
		}
	}
	return n
}

// measuredPods counts the pods that have statistics, also of their containers and their network.
func measuredPods(stats []*runtimeapi.PodSandboxStats) int {
	n := 0
	for _, s := range stats {
		l := s.GetLinux()
		if l.GetMemory().GetWorkingSetBytes().GetValue() > 0 && l.GetNetwork().GetDefaultInterface() != nil && measured(l.GetContainers()) > 0 {
			n++
		}
	}
	return n
}

// idle polls as a kubelet does, and records the CPU time of the daemon and its helpers.
func (tr *trial) idle() {
	helpers, err := tr.peer.helpers()
	testbed.Mustf(tr, err, "look for helpers")
	processes := append(slices.Clone(helpers), tr.peer.PID())
	used := func() float64 {
		seconds, err := cpuSeconds(processes)
		testbed.Mustf(tr, err, "read CPU times")
		return seconds
	}
	time.Sleep(settle) // for the garbage collection after the last calls
	before, begin := used(), time.Now()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for n := 0; time.Since(begin) < tr.polling; n++ {
		testbed.Mustf(tr, tr.poll(n), "poll")
		select {
		case <-tick.C:
		case <-tr.Context().Done():
			tr.Fatalf("%v", context.Cause(tr.Context()))
		}
	}
	tr.record("idle", 100*(used()-before)/time.Since(begin).Seconds())
}

// poll makes the calls of an idle kubelet in its n-th second.
func (tr *trial) poll(n int) error {
	client, ctx := tr.peer.Client, tr.Context()
	if _, err := client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{}); err != nil {
		return err
	}
	if _, err := client.ListContainers(ctx, &runtimeapi.ListContainersRequest{}); err != nil {
		return err
	}
	if n%5 != 0 {
		return nil
	}
	_, err := client.RuntimeServiceClient.Status(ctx, &runtimeapi.StatusRequest{})
	return err
}

// recovery kills the daemon and waits until it knows all pods again.
func (tr *trial) recovery() {
	tr.peer.Kill9(tr)
	begin := time.Now()
	testbed.Mustf(tr, tr.peer.TryStart(tr.Context()), "start after a kill")
	testbed.Poll(tr, callTimeout, time.Millisecond, func() error {
		n, err := tr.running()
		if err == nil && n != tr.pods {
			err = fmt.Errorf("after a restart %d of %d containers are listed RUNNING", n, tr.pods)
		}
		return err
	})
	tr.record("recovery", milliseconds(time.Since(begin)))
}

// running returns how many containers of ready sandboxes are listed as running.
func (tr *trial) running() (int, error) {
	client, ctx := tr.peer.Client, tr.Context()
	sandboxes, err := client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return 0, err
	}
	ready := map[string]bool{}
	for _, s := range sandboxes.GetItems() {
		ready[s.GetId()] = s.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY
	}
	containers, err := client.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return 0, err
	}
	n := 0
	for _, c := range containers.GetContainers() {
		if ready[c.GetPodSandboxId()] && c.GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING {
			n++
		}
	}
	return n, nil
}
