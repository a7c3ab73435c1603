package main

import (
	"context"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// exit kills a container's process and waits for its event.
func (tr *trial) exit() {
	ctx, cancel := context.WithTimeout(tr.Context(), callTimeout)
	defer cancel()
	stream, err := tr.peer.Client.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	testbed.Mustf(tr, err, "subscribe to events")
	p, _ := tr.newPod()
	// The first event proves that the subscription works.
	tr.await(stream, p, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
	tr.killed(stream, p)
}

// events is the client's side of GetContainerEvents.
type events = grpc.ServerStreamingClient[runtimeapi.ContainerEventResponse]

// killed kills the pod's process, and records the time from its exit, as a pidfd shows it, to the
// event.
func (tr *trial) killed(stream events, p *pod) {
	tr.Helper()
	var pid int
	// A container counts as started a moment before its process has exec'd the command.
	testbed.Eventually(tr, time.Second, func() (err error) {
		pid, err = p.workloadPID()
		return err
	})
	fd, err := unix.PidfdOpen(pid, 0)
	testbed.Mustf(tr, err, "open process %d", pid)
	defer unix.Close(fd)
	died := make(chan time.Time, 1)
	go func() {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		for {
			n, err := unix.Poll(poll, int(callTimeout.Milliseconds()))
			if n > 0 || (err != nil && err != unix.EINTR) {
				break
			}
		}
		died <- time.Now()
	}()
	testbed.Mustf(tr, unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0), "kill process %d", pid)
	came := tr.await(stream, p, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
	tr.record("exit", max(0, milliseconds(came.Sub(<-died))))
}

// await waits for an event of the pod's container, and returns the time of its arrival.
func (tr *trial) await(stream events, p *pod, kind runtimeapi.ContainerEventType) time.Time {
	tr.Helper()
	for {
		event, err := stream.Recv()
		testbed.Mustf(tr, err, "wait for %v", kind)
		if event.GetContainerId() == p.container && event.GetContainerEventType() == kind {
			return time.Now()
		}
	}
}
