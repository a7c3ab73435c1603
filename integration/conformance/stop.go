package conformance

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

func itoa(i int32) string { return strconv.Itoa(int(i)) }

var stopChecks = []check{
	{name: "the program gets SIGTERM and its own exit code counts", run: stopGraceful},
	{name: "SIGKILL after the grace period", run: stopKills},
	{name: "timeout 0 kills at once", run: stopNow},
	{name: "the image's stop signal", run: stopImageSignal},
	{name: "the config's stop signal beats the image's", run: stopConfigSignal},
	{name: "a short stop does not wait behind a long one", berth: true, run: stopShortAfterLong},
	{name: "several stops at once", run: stopSeveral},
	{name: "a cancelled stop still ends the container", berth: true, run: stopCancelled},
	{name: "stop of a container that never started", run: stopCreated},
	{name: "stop takes the program's children along", run: stopChildren},
	{name: "status is final when stop returns", run: stopIsFinal},
}

// longGrace is for a program that must exit by itself.
const longGrace = time.Minute

// startStubborn starts a program that ignores SIGTERM.
func (p *pod) startStubborn(t *testing.T) *container {
	t.Helper()
	c := p.start(t, sh("trap '' TERM; echo ready; while :; do sleep 1; done"))
	c.waitLog(t, "ready\n")
	return c
}

// onSignal logs the signal and exits with a code for that signal.
func onSignal() []string {
	return sh("trap 'echo got TERM; exit 21' TERM; trap 'echo got USR1; exit 22' USR1; trap 'echo got USR2; exit 23' USR2; echo ready; while :; do sleep 3600 & wait $!; done")
}

// startReady starts onSignal and waits until its traps are set.
func (p *pod) startReady(t *testing.T, opts ...containerOption) *container {
	t.Helper()
	c := p.start(t, onSignal(), opts...)
	c.waitLog(t, "ready\n")
	return c
}

// waitLog waits until the log's stdout contains text.
func (c *container) waitLog(t *testing.T, text string) {
	t.Helper()
	c.eventually(t, "the log contains "+strconv.Quote(text), func() bool {
		return strings.Contains(readLog(t, c.logFile()).stdout, text)
	})
}

func stopGraceful(t *testing.T, n *node) {
	c := n.pod(t).startReady(t)
	began := time.Now()
	c.stop(t, longGrace)
	if d := time.Since(began); d > longGrace/2 {
		t.Errorf("stop took %v though the program ended at once", d)
	}
	testbed.Same(t, c.status(t).GetExitCode(), 21, "exit code")
}

func stopKills(t *testing.T, n *node) {
	c := n.pod(t).startStubborn(t)
	began := time.Now()
	c.stop(t, 2*time.Second)
	if d := time.Since(began); d < 1500*time.Millisecond || d > longGrace/2 {
		t.Errorf("stop with a grace of 2s took %v", d)
	}
	testbed.Same(t, c.status(t).GetExitCode(), 137, "exit code")
}

func stopNow(t *testing.T, n *node) {
	c := n.pod(t).startStubborn(t)
	began := time.Now()
	c.stop(t, 0)
	if d := time.Since(began); d > longGrace/2 {
		t.Errorf("stop with timeout 0 took %v", d)
	}
	testbed.Same(t, c.status(t).GetExitCode(), 137, "exit code")
}

func stopImageSignal(t *testing.T, n *node) {
	id := n.pull(t, n.Image.Process)
	c := n.pod(t).startReady(t, func(c *runtimeapi.ContainerConfig) { c.Image = &runtimeapi.ImageSpec{Image: id} })
	c.stop(t, longGrace)
	testbed.Same(t, c.status(t).GetExitCode(), 22, "exit code")
}

func stopConfigSignal(t *testing.T, n *node) {
	id := n.pull(t, n.Image.Process)
	c := n.pod(t).startReady(t, func(c *runtimeapi.ContainerConfig) {
		c.Image = &runtimeapi.ImageSpec{Image: id}
		c.StopSignal = runtimeapi.Signal_SIGNAL_SIGUSR2
	})
	testbed.Same(t, c.status(t).GetStopSignal(), runtimeapi.Signal_SIGNAL_SIGUSR2, "status says stop_signal")
	c.stop(t, longGrace)
	testbed.Same(t, c.status(t).GetExitCode(), 23, "exit code")
}

func stopShortAfterLong(t *testing.T, n *node) {
	c := n.pod(t).startStubborn(t)
	long := make(chan error, 1)
	go func() { long <- c.tryStop(t, 2*longGrace) }()
	time.Sleep(300 * time.Millisecond)
	began := time.Now()
	c.stop(t, time.Second)
	if d := time.Since(began); d > longGrace {
		t.Errorf("the short stop took %v: it waited behind the long one", d)
	}
	select {
	case err := <-long:
		must(t, err, "the long stop")
	case <-time.After(longGrace):
		t.Error("the long stop did not return though the container ended")
	}
}

func stopSeveral(t *testing.T, n *node) {
	c := n.pod(t).startReady(t)
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			testbed.Checkf(t, c.tryStop(t, longGrace), "StopContainer")
		})
	}
	wg.Wait()
	if st := c.status(t); st.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED || st.GetExitCode() != 21 {
		t.Errorf("%v with exit code %d", st.GetState(), st.GetExitCode())
	}
}

func stopCancelled(t *testing.T, n *node) {
	c := n.pod(t).startStubborn(t)
	ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	_, err := n.Runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: c.ID, Timeout: 2})
	mustFail(t, err, "a stop that the caller gave up")
	testbed.Same(t, c.waitExit(t).GetExitCode(), 137, "exit code")
}

func stopCreated(t *testing.T, n *node) {
	c := n.pod(t).create(t, forever())
	c.stop(t, time.Second)
	if st := c.status(t); st.GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Errorf("state is %v", st.GetState())
	}
	c.remove(t)
}

func stopChildren(t *testing.T, n *node) {
	dir := t.TempDir()
	for _, mode := range []runtimeapi.NamespaceMode{runtimeapi.NamespaceMode_CONTAINER, runtimeapi.NamespaceMode_POD} {
		p := n.pod(t, pidMode(mode))
		c := p.start(t, sh("(trap '' TERM; while :; do date +%s%N > /out/beat; sleep 0.1; done) & trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done"),
			mount(&runtimeapi.Mount{ContainerPath: "/out", HostPath: dir}))
		n.eventually(t, "the child's first beat", func() bool { return readFile(dir+"/beat") != "" })
		c.stop(t, 2*time.Second)
		last := readFile(dir + "/beat")
		time.Sleep(400 * time.Millisecond)
		if again := readFile(dir + "/beat"); again != last {
			t.Errorf("pid %v: a child is still alive after StopContainer", mode)
		}
	}
}

func stopIsFinal(t *testing.T, n *node) {
	p := n.pod(t)
	for range 5 {
		c := p.start(t, forever())
		c.stop(t, time.Second)
		st := c.status(t)
		if st.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED || st.GetFinishedAt() == 0 || st.GetReason() == "" {
			t.Errorf("right after stop: %v, finished at %d, reason %q", st.GetState(), st.GetFinishedAt(), st.GetReason())
		}
	}
}
