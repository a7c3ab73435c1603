package supervisor_test

import (
	"fmt"
	"os"
	"sync"
	"testing"

	taskAPI "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
	supervisorv1 "github.com/berth-cri/berth/proto/berth/supervisor/v1"
)

// Twenty containers start at once, and half of them exit while others start. Each has its own pid,
// output and exit code. No orphans are left.
func TestParallelStarts(t *testing.T) {
	const containers = 20
	forEachRuntime(t, hostRuntimes, func(t *testing.T, r ociRuntime) {
		b := newBed(t, r)
		var all []*container
		for n := range containers {
			all = append(all, b.create(fmt.Sprint("c", n), shell(fmt.Sprintf("echo I am %d; sleep 0.%d; exit %d", n, n%2*3, n))))
		}
		var work sync.WaitGroup
		for n, c := range all {
			work.Go(func() {
				if err := c.tryStart(); err != nil {
					t.Errorf("start %s: %v", c.id, err)
					return
				}
				w, err := c.task.Wait(c.ctx(), &taskAPI.WaitRequest{ID: c.id})
				if err != nil || w.ExitStatus != uint32(n) {
					t.Errorf("wait for %s: %v, %v; want status %d", c.id, w, err, n)
				}
				test.Checkf(t, test.Err(c.delete()), "delete %s", c.id)
			})
		}
		work.Wait()
		pids := map[int]bool{}
		for n, c := range all {
			expectContents(t, c.lines(), fmt.Sprint("I am ", n))
			if pids[c.pid] {
				t.Errorf("two containers have pid %d", c.pid)
			}
			pids[c.pid] = true
		}
		test.Eventually(t, "the supervisor has no children", func() bool {
			children, err := os.ReadFile(fmt.Sprintf("/proc/%[1]d/task/%[1]d/children", b.cmd.Process.Pid))
			return err == nil && len(children) == 0
		})
		info, err := b.extra.Info(b.ctx(), &supervisorv1.InfoRequest{})
		if err != nil || len(info.Tasks) != 0 {
			t.Errorf("Info returns %v, %v; want no tasks", info, err)
		}
	})
}

// Of concurrent calls of Start for one container exactly one succeeds, and the same holds for
// Delete.
func TestParallelCallsForOneContainer(t *testing.T) {
	b := newBed(t, findRuntime(t, "runc"))
	c := b.create("c", shell("sleep 1000"))
	results := make(chan error, 5)
	for range cap(results) {
		go func() {
			_, err := c.task.Start(c.ctx(), &taskAPI.StartRequest{ID: c.id})
			results <- errgrpc.ToNative(err)
		}()
	}
	started := 0
	for range cap(results) {
		switch err := <-results; {
		case err == nil:
			started++
		case !errdefs.IsFailedPrecondition(err):
			t.Errorf("start: %v", err)
		}
	}
	if started != 1 {
		t.Errorf("%d of the concurrent starts succeeded, want 1", started)
	}
	test.Must(t, c.kill(unix.SIGKILL, false))
	c.wait()
	for range cap(results) {
		go func() {
			_, err := c.task.Delete(c.ctx(), &taskAPI.DeleteRequest{ID: c.id})
			results <- errgrpc.ToNative(err)
		}()
	}
	deleted := 0
	for range cap(results) {
		switch err := <-results; {
		case err == nil:
			deleted++
		case !errdefs.IsNotFound(err):
			t.Errorf("delete: %v", err)
		}
	}
	if deleted != 1 {
		t.Errorf("%d of the concurrent deletes succeeded, want 1", deleted)
	}
}
