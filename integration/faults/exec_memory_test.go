package faults

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// peakRSS forgets what a process has had of memory so far, and returns how much it
// has at most from then on, in MiB.
func peakRSS(t *testing.T, pid int) (now int, most func() int) {
	t.Helper()
	testbed.Must(t, os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0))
	look := func() int {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		testbed.Must(t, err)
		for line := range strings.Lines(string(text)) {
			var kib int
			if n, _ := fmt.Sscanf(line, "VmHWM: %d kB", &kib); n == 1 {
				return kib >> 10
			}
		}
		t.Fatalf("no VmHWM in %s", text)
		return 0
	}
	return look(), look
}

// TestLargeOutputsOfCommands has many commands write more than an answer holds, all
// at once. Each answer is full, and the daemon does not hold them all in memory.
func TestLargeOutputsOfCommands(t *testing.T) {
	const (
		commands  = 12
		maxGrowth = 192 // MiB: 64 of outputs, two encoded answers, and what the garbage collector leaves
	)
	b := newBed(t, testbed.Options{})
	pod := b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}})
	run := func() ([]byte, error) {
		r, err := b.Client.ExecSync(testbed.Within(t, 5*time.Minute), &runtimeapi.ExecSyncRequest{
			ContainerId: pod.Container.ID, Timeout: 280,
			Cmd: []string{"sh", "-c", "yes 0123456789abcde | head -c 20971520"},
		}, grpc.MaxCallRecvMsgSize(16<<20))
		return r.GetStdout(), err
	}
	before, most := peakRSS(t, b.PID())
	whole := bytes.Repeat([]byte("0123456789abcde\n"), 1<<20)
	var all sync.WaitGroup
	for range commands {
		all.Go(func() {
			begin := time.Now()
			out, err := run()
			t.Logf("answered after %v", time.Since(begin).Round(time.Millisecond))
			if err != nil {
				t.Error(err)
			} else if len(out) < 16<<20-1024 || !bytes.HasPrefix(whole, out) {
				t.Errorf("the answer has %d bytes, or others than were written", len(out))
			}
		})
	}
	all.Wait()
	t.Logf("the daemon had %d MiB and at most %d MiB", before, most())
	if most() > before+maxGrowth {
		t.Errorf("the daemon grew from %d to %d MiB, by more than %d", before, most(), maxGrowth)
	}
	pod.Remove(t)
}
