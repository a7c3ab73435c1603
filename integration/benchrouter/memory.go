package main

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// memory measures what pods of another daemon weigh in berth, and what a polling
// kubelet leaves there. The other daemon is a berth, because pods without a
// process of their own are cheap there.
func (r *report) memory(t testbed.T, o options) {
	runtimes := map[string]string{testbed.Runc: testbed.Part(t, testbed.Runc)}
	other := testbed.StartBerth(t, testbed.Options{Runtimes: runtimes, CNI: testbed.NewCNI(t), Config: "[log]\nlevel = \"info\"\n"})
	berth := testbed.StartBerth(t, testbed.Options{Runtimes: runtimes, CNI: testbed.NewCNI(t), Config: leadTo(other.Socket, testbed.Runc)})
	waitReady(t, berth.Client)
	before := anonymous(t, berth.PID())
	turn := make(chan struct{}, 8)
	var running sync.WaitGroup
	for range o.pods {
		turn <- struct{}{}
		running.Go(func() {
			defer func() { <-turn }()
			config := berth.Client.SandboxConfig("")
			config.Hostname, config.Linux.SecurityContext.NamespaceOptions.Network = "", runtimeapi.NamespaceMode_NODE
			if _, err := berth.Client.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: config, RuntimeHandler: remoteHandler}); err != nil {
				t.Errorf("run a sandbox: %v", err)
			}
		})
	}
	running.Wait()
	poll(t, berth.Client, 10)
	with := anonymous(t, berth.PID())
	r.tell(fmt.Sprintf("anonymous memory of berth with %d pods in another daemon, above that without", o.pods), "MB", with-before)
	poll(t, berth.Client, o.polls/2)
	middle := anonymous(t, berth.PID())
	poll(t, berth.Client, o.polls/2)
	r.tell(fmt.Sprintf("growth of it in the second half of %d rounds of a polling kubelet", o.polls), "MB", anonymous(t, berth.PID())-middle)
}

// poll asks what a kubelet asks each second.
func poll(t testbed.T, c *testbed.Client, rounds int) {
	t.Helper()
	for range rounds {
		if _, err := c.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{}); err != nil {
			t.Fatalf("list: %v", err)
		}
		if _, err := c.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{}); err != nil {
			t.Fatalf("list: %v", err)
		}
	}
}

// anonymous is the anonymous memory of a process, in MB.
func anonymous(t testbed.T, pid int) float64 {
	t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatalf("%v", err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), "RssAnon:"); ok {
			kB, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 64)
			if err != nil {
				t.Fatalf("%v", err)
			}
			return kB / 1024
		}
	}
	t.Fatalf("/proc/%d/status has no RssAnon", pid)
	return 0
}
