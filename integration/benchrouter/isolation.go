package main

import (
	"context"
	"syscall"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// isolation measures calls about a pod of berth's own engine while the other daemon
// is well, stopped, and killed, and while somebody lists all the time, as a kubelet
// does each second.
func (r *report) isolation(t testbed.T, o options, berth *testbed.Berth, other *testbed.Daemon, own *testbed.Pod) {
	lists, stop := context.WithCancel(t.Context())
	over := make(chan struct{})
	go func() {
		defer close(over)
		for lists.Err() == nil {
			_, _ = berth.Client.ListPodSandbox(lists, &runtimeapi.ListPodSandboxRequest{})
			_, _ = berth.Client.ListContainers(lists, &runtimeapi.ListContainersRequest{})
			select {
			case <-lists.Done():
			case <-time.After(time.Second / 4):
			}
		}
	}()
	defer func() { stop(); <-over }()

	status := func(ctx context.Context) error {
		_, err := berth.Client.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: own.Container.ID})
		return err
	}
	exec := func(ctx context.Context) error {
		_, err := berth.Client.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: own.Container.ID, Cmd: []string{"true"}, Timeout: 10})
		return err
	}
	measure := func() (ofStatus, ofExec []float64) {
		for range (o.calls + batch - 1) / batch {
			ofStatus = append(ofStatus, many(t, 1, status)...)
		}
		for range (o.calls/20 + batch - 1) / batch {
			ofExec = append(ofExec, many(t, 1, exec)...)
		}
		return ofStatus, ofExec
	}
	signal := func(s syscall.Signal) {
		testbed.Mustf(t, syscall.Kill(other.PID(), s), "%v of the other daemon", s)
	}
	t.Cleanup(func() {
		if other.Running() { // a call that fails leaves it stopped, and then it does not end
			_ = syscall.Kill(other.PID(), syscall.SIGCONT)
		}
	})
	_, _ = measure() // warm
	wellStatus, wellExec := measure()
	signal(syscall.SIGSTOP)
	stoppedStatus, stoppedExec := measure()
	signal(syscall.SIGCONT)
	other.Kill9(t)
	killedStatus, killedExec := measure()
	r.beside("ContainerStatus", "µs", 1e6, wellStatus, stoppedStatus, killedStatus)
	r.beside("ExecSync of true", "ms", 1e3, wellExec, stoppedExec, killedExec)
	other.Start(t)
}
