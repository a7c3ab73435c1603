package conformance

import (
	"fmt"
	"sync"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

var parallelChecks = []check{
	{name: "20 pods at once", run: twentyPods},
	{name: "several containers of a pod at once", run: containersAtOnce},
	{name: "stop and remove at once", run: stopRemoveAtOnce},
}

func twentyPods(t *testing.T, n *node) {
	const pods = 20
	var wg sync.WaitGroup
	for i := range pods {
		wg.Go(func() {
			p, err := n.tryPod(t, n.podConfig(t))
			if err != nil {
				t.Errorf("pod %d: %v", i, err)
				return
			}
			c, err := p.tryCreate(t, p.containerConfig(sh(fmt.Sprintf("echo pod %d; exit %d", i, i))))
			if err == nil {
				err = c.tryStart(t)
			}
			if err != nil {
				t.Errorf("pod %d: %v", i, err)
				return
			}
			testbed.Same(t, c.waitExit(t).GetExitCode(), int32(i), "pod %d: exit code", i)
			if got, want := c.logged(t).stdout, fmt.Sprintf("pod %d\n", i); got != want {
				t.Errorf("pod %d logged %q", i, got)
			}
			p.destroy(t)
		})
	}
	wg.Wait()
}

func containersAtOnce(t *testing.T, n *node) {
	p := n.pod(t)
	all := make([]*container, 6)
	var wg sync.WaitGroup
	for i := range all {
		cfg := p.containerConfig(sh(fmt.Sprintf("exit %d", i+1)))
		wg.Go(func() {
			c, err := p.tryCreate(t, cfg)
			if err == nil {
				err = c.tryStart(t)
			}
			if err != nil {
				t.Errorf("container %d: %v", i, err)
				return
			}
			all[i] = c
		})
	}
	wg.Wait()
	for i, c := range all {
		if c == nil {
			continue
		}
		testbed.Same(t, c.waitExit(t).GetExitCode(), int32(i+1), "container %d: exit code", i)
	}
}

// stopRemoveAtOnce is a kubelet in a hurry: every call must succeed or say that
// another one is at it, and in the end nothing is left.
func stopRemoveAtOnce(t *testing.T, n *node) {
	p := n.pod(t)
	c := p.start(t, forever())
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() { _ = c.tryStop(t, 0) })
		wg.Go(func() {
			_, _ = n.Runtime.StopPodSandbox(call(t), &runtimeapi.StopPodSandboxRequest{PodSandboxId: p.ID})
		})
		wg.Go(func() {
			_, _ = n.Runtime.RemoveContainer(call(t), &runtimeapi.RemoveContainerRequest{ContainerId: c.ID})
		})
	}
	wg.Wait()
	p.destroy(t)
	testbed.Empty(t, n.listContainers(t, &runtimeapi.ContainerFilter{PodSandboxId: p.ID}), "containers left")
	testbed.Empty(t, n.listSandboxes(t, &runtimeapi.PodSandboxFilter{Id: p.ID}), "sandboxes left")
}
