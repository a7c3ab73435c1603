package conformance

import (
	"fmt"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

var restartChecks = []check{
	{name: "everything is as before a kill -9 of the daemon", run: restartKeepsAll},
}

// restartKeepsAll compares the status of pods and containers before and after a restart. Then it
// checks that the containers still run, log, stop and start as before.
func restartKeepsAll(t *testing.T, n *node) {
	if n.Restart == nil {
		t.Skip("the target gives no way to restart its daemon")
	}
	p := n.pod(t, func(c *runtimeapi.PodSandboxConfig) {
		c.Metadata.Attempt, c.Labels, c.Annotations = 2, oddLabels(), oddLabels()
	})
	created := p.create(t, sh("exit 11"), resources(someLimits()))
	running := p.start(t, onSignal(), resources(someLimits()))
	running.waitLog(t, "ready\n")
	exited := p.start(t, sh("exit 12"))
	exited.waitExit(t)
	dir := t.TempDir()
	ending := p.start(t, sh("while [ ! -e /in/go ]; do sleep 0.1; done; echo last words; exit 13"),
		mount(&runtimeapi.Mount{ContainerPath: "/in", HostPath: dir}))
	counting := p.start(t, sh("i=0; while [ ! -e /in/go ]; do i=$((i+1)); echo $i; sleep 0.01; done; exit 0"),
		mount(&runtimeapi.Mount{ContainerPath: "/in", HostPath: dir}))
	stopped := n.pod(t)
	stopped.stop(t)
	updated := []*container{created}
	if _, lacks := n.Lacks[LiveUpdate]; !lacks {
		updated = append(updated, running)
	}
	limits := someLimits()
	limits.CpuQuota, limits.MemoryLimitInBytes = 30000, 80<<20
	for _, c := range updated {
		must(t, c.tryUpdate(t, limits), "UpdateContainerResources")
	}

	sandboxBefore, stoppedBefore := p.status(t), stopped.status(t)
	before := map[*container]*runtimeapi.ContainerStatus{}
	for _, c := range []*container{created, running, exited} {
		before[c] = c.status(t)
	}
	n.Restart(t)

	if after := p.status(t); !proto.Equal(sandboxBefore, after) {
		t.Errorf("the sandbox was\n%v\nand is\n%v", sandboxBefore, after)
	}
	if after := stopped.status(t); !proto.Equal(stoppedBefore, after) {
		t.Errorf("the stopped sandbox was\n%v\nand is\n%v", stoppedBefore, after)
	}
	for c, was := range before {
		if after := c.status(t); !proto.Equal(was, after) {
			t.Errorf("a container was\n%v\nand is\n%v", was, after)
		}
	}
	for _, c := range updated {
		wantLimits(t, c, limits)
	}
	if _, lacks := n.Lacks[CgroupPerCtr]; !lacks {
		wantCgroup(t, running, limits)
	}
	touch(t, dir+"/go")
	testbed.Same(t, ending.waitExit(t).GetExitCode(), 13, "a container that ended after the restart has exit code")
	testbed.Same(t, ending.logged(t).stdout, "last words\n", "it logged")
	counting.waitExit(t)
	l := counting.logged(t)
	wantNumbers(t, l, l.lines())
	testbed.Same(t, running.line(t, "echo", "still here"), "still here", "exec after the restart printed")
	running.stop(t, longGrace)
	testbed.Same(t, running.status(t).GetExitCode(), 21, "stopped after the restart with exit code")
	must(t, created.tryStart(t), "StartContainer of a container that was CREATED before the restart")
	testbed.Same(t, created.waitExit(t).GetExitCode(), 11, "started after the restart, exit code")
	p.output(t, sh("true")) // a new container in the old sandbox
}

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

// stopRemoveAtOnce stops and removes a pod in parallel. A call may fail because of the others, but
// in the end nothing is left.
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
