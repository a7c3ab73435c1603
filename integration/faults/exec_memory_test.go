package faults

import (
	"bytes"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// TestLargeOutputsOfCommands has many commands write more than an answer holds, all
// at once. The daemon does not hold them all in memory: it cuts answers, and none of a
// command that runs alone.
func TestLargeOutputsOfCommands(t *testing.T) {
	const (
		commands  = 12
		maxGrowth = 192 << 20 // 64 MiB of outputs, as much of encoded answers, and what the garbage collector leaves
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
	growth := growthOf(t, b.PID())
	whole := bytes.Repeat([]byte("0123456789abcde\n"), 1<<20)
	answered := func(least int) {
		if out, err := run(); err != nil {
			t.Error(err)
		} else if len(out) < least || !bytes.HasPrefix(whole, out) {
			t.Errorf("the answer has %d bytes, or others than were written", len(out))
		}
	}
	var all sync.WaitGroup
	for range commands {
		all.Go(func() { answered(32 << 10) })
	}
	all.Wait()
	answered(16<<20 - 1024)
	growth(maxGrowth)
	pod.Remove(t)
}
