package faults

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// TestStatsOfPodsThatHang pauses a foreign shim and a gVisor sandbox by SIGSTOP, and
// lists the statistics of all containers: only the hanging ones may be missing.
func TestStatsOfPodsThatHang(t *testing.T) {
	// This shim's name does not show that its containers share the host's kernel, so
	// berth calls the shim for statistics. The shim finds runc in the PATH.
	runc, shim := testbed.Part(t, testbed.Runc), filepath.Join(t.TempDir(), "containerd-shim-unheard-of-v2")
	if err := os.Link(testbed.Part(t, testbed.RuncShim), shim); err != nil {
		body, err := os.ReadFile(testbed.Part(t, testbed.RuncShim))
		if err == nil {
			err = os.WriteFile(shim, body, 0o755)
		}
		testbed.Must(t, err)
	}
	b := newBed(t, testbed.Options{
		Runtimes:       map[string]string{"runc": runc, "runsc": testbed.Part(t, testbed.Runsc), "shim": shim},
		DefaultRuntime: "runc",
	})
	b.SetEnvironment("PATH=" + filepath.Dir(runc) + ":" + os.Getenv("PATH"))
	b.Restart(t)
	well, sick := map[string]*testbed.Pod{}, map[string]*testbed.Pod{}
	run := func(handler string) *testbed.Pod {
		// gVisor counts CPU time in ticks: a container that only sleeps may have none.
		return b.Client.RunPod(t, testbed.PodSpec{Handler: handler, Image: b.Image, Command: []string{
			"sh", "-c", "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; exec sleep 3600",
		}})
	}
	for _, handler := range []string{"runc", "shim", "runsc"} {
		well[handler] = run(handler)
	}
	sick["shim"], sick["runsc"] = run("shim"), run("runsc")
	stopped := []int{
		processOf(t, sick["shim"].ID, filepath.Base(shim), "-id"),
		processOf(t, sick["runsc"].ID, "runsc-sandbox", "boot"),
	}
	for _, pid := range stopped {
		signal(t, pid, syscall.SIGSTOP)
		t.Cleanup(func() { signal(t, pid, syscall.SIGCONT) }) // before the pod is removed
	}

	const bound = 30 * time.Second
	begin := time.Now()
	containers := b.containerStats(t, bound)
	pods := b.podStats(t, bound)
	tookAtMost(t, bound, begin, "both lists")
	for handler, pod := range well {
		if used(containers[pod.Container.ID]) == 0 {
			t.Errorf("%s: the container's statistics are missing or zero: %v", handler, containers[pod.Container.ID])
		}
		if s := pods[pod.ID]; len(s.GetLinux().GetContainers()) != 1 || used(s.GetLinux().GetContainers()[0]) == 0 {
			t.Errorf("%s: the pod's statistics are %v", handler, s)
		}
	}
	for handler, pod := range sick {
		if s := containers[pod.Container.ID]; s != nil {
			t.Errorf("%s that hangs: the list has its container: %v", handler, s)
		}
		// The pod's own statistics come from its cgroup, without the hanging process.
		s := pods[pod.ID].GetLinux()
		if len(s.GetContainers()) != 0 || s.GetCpu().GetUsageCoreNanoSeconds().GetValue() == 0 || s.GetMemory().GetWorkingSetBytes().GetValue() == 0 {
			t.Errorf("%s that hangs: the pod's statistics are %v", handler, s)
		}
		_, err := b.Client.ContainerStats(testbed.Within(t, bound), &runtimeapi.ContainerStatsRequest{ContainerId: pod.Container.ID})
		why := "did not respond within"
		if handler == "shim" {
			why = fmt.Sprintf("(process %d) is unresponsive since", stopped[0])
		}
		testbed.Refused(t, err, codes.Unavailable, why)
	}
	begin = time.Now()
	b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}})
	if took := time.Since(begin); took > bound {
		t.Errorf("another pod took %s to start", took)
	}

	for _, pid := range stopped {
		signal(t, pid, syscall.SIGCONT)
	}
	for handler, pod := range sick {
		testbed.Eventually(t, time.Minute, func() error {
			if s := b.containerStats(t, bound)[pod.Container.ID]; used(s) == 0 {
				return fmt.Errorf("%s was resumed, but its statistics are %v", handler, s)
			}
			return nil
		})
	}
}

func used(s *runtimeapi.ContainerStats) uint64 {
	return s.GetCpu().GetUsageCoreNanoSeconds().GetValue()
}

func (b *bed) containerStats(t *testing.T, bound time.Duration) map[string]*runtimeapi.ContainerStats {
	t.Helper()
	r, err := b.Client.ListContainerStats(testbed.Within(t, bound), &runtimeapi.ListContainerStatsRequest{})
	testbed.Mustf(t, err, "list statistics of containers")
	all := map[string]*runtimeapi.ContainerStats{}
	for _, s := range r.GetStats() {
		all[s.GetAttributes().GetId()] = s
	}
	return all
}

func (b *bed) podStats(t *testing.T, bound time.Duration) map[string]*runtimeapi.PodSandboxStats {
	t.Helper()
	r, err := b.Client.ListPodSandboxStats(testbed.Within(t, bound), &runtimeapi.ListPodSandboxStatsRequest{})
	testbed.Mustf(t, err, "list statistics of pods")
	all := map[string]*runtimeapi.PodSandboxStats{}
	for _, s := range r.GetStats() {
		all[s.GetAttributes().GetId()] = s
	}
	return all
}

// processOf returns the pid of the process whose command line has the sandbox's ID and
// all the words.
func processOf(t *testing.T, sandbox string, words ...string) int {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	testbed.Must(t, err)
next:
	for _, path := range lines {
		line, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(line, []byte(sandbox)) {
			continue
		}
		for _, word := range words {
			if !strings.Contains(string(line), word) {
				continue next
			}
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		testbed.Must(t, err)
		return pid
	}
	t.Fatalf("no process of sandbox %s has %q in its command line", sandbox, words)
	return 0
}

func signal(t *testing.T, pid int, s syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, s); err != nil && err != syscall.ESRCH {
		t.Errorf("signal %s to process %d: %v", s, pid, err)
	}
}
