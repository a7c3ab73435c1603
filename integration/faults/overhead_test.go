package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

// ballast has a runtime start a process for each container that it creates, like a
// container monitor. The n-th process holds the n-th size in MiB; further ones hold the
// last size. The deletion of the container kills the process.
func (s *scripted) ballast(t *testing.T, verb string, sizes ...int) {
	t.Helper()
	text := strings.Trim(fmt.Sprint(sizes), "[]")
	s.on(t, verb, fmt.Sprintf(`
for id; do :; done
n=$(cat "$dir/count" 2>/dev/null || echo 0)
echo $((n+1)) >"$dir/count"
for size in %s; do [ $n -gt 0 ] || break; n=$((n-1)); done
mkfifo "$dir/$id.fifo"
# dd fills its buffer and then blocks in a write to a pipe that is never read.
(exec 3<>"$dir/$id.fifo"; exec setsid dd if=/dev/zero of="$dir/$id.fifo" bs=${size}M count=1 </dev/null >/dev/null 2>&1) &
echo $! >"$dir/$id.pid"
`, text))
	s.on(t, "delete", `
for id; do :; done
if [ -e "$dir/$id.pid" ]; then kill -9 $(cat "$dir/$id.pid") 2>/dev/null; rm -f "$dir/$id.pid"; fi
`)
	t.Cleanup(func() {
		for _, pid := range s.ballastPIDs() {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	})
}

func (s *scripted) ballastPIDs() []int {
	files, _ := filepath.Glob(filepath.Join(s.dir, "*.pid"))
	var pids []int
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		if pid, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && unix.Kill(pid, 0) == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// overhead returns the overhead of a handler from the management API.
func (b *bed) overhead(t *testing.T, name string) *adminv1.Overhead {
	t.Helper()
	c := b.admin(t)
	h, err := c.GetHandler(testbed.Within(t, time.Minute), &adminv1.GetHandlerRequest{Name: name})
	testbed.Must(t, err)
	return h.GetOverhead()
}

// about fails the test unless a number of bytes is within 10 % of want MiB.
func about(t *testing.T, what string, bytes uint64, want int) {
	t.Helper()
	if mib := float64(bytes) / (1 << 20); mib < 0.9*float64(want) || mib > 1.1*float64(want) {
		t.Errorf("%s is %.1f MiB, want %d within 10 %%", what, mib, want)
	}
}

// TestOverhead has runtimes start processes that hold a known amount of memory. The measured
// overhead must include the memory of these processes, but not that of containers.
func TestOverhead(t *testing.T) {
	t.Parallel()
	runc := testbed.Part(t, testbed.Runc)
	monitor, driven := newScripted(t), newScripted(t)
	monitor.ballast(t, "run", 128, 128, 256, 128)
	driven.ballast(t, "create", 128)
	b := newBed(t, testbed.Options{Config: fmt.Sprintf(`
default_runtime = "runc"
[runtimes.runc]
runtime_path = %[1]q
[runtimes.monitor]
runtime_path = %[2]q
[runtimes.driven]
runtime_path = %[3]q
options.BinaryName = %[4]q
[runtimes.gvisor]
runtime_path = %[5]q
`, runc, monitor.Path, testbed.Part(t, testbed.RuncShim), driven.Path, testbed.Part(t, testbed.Runsc))})
	atRest := b.Rest(t)
	for _, name := range []string{"runc", "gvisor"} {
		if o := b.overhead(t, name); o.GetLive() != nil || o.GetNoLiveReason() != "it has no pods" {
			t.Errorf("overhead of %s without pods: %v", name, o)
		}
	}
	var pods []*testbed.Pod
	for _, name := range []string{"monitor", "monitor", "monitor", "monitor", "driven", "gvisor"} {
		pods = append(pods, b.Client.RunPod(t, testbed.PodSpec{
			Handler: name, Image: b.Image,
			Command: []string{"sh", "-c", "dd if=/dev/zero bs=300M count=1 | sleep 1000"},
			Sandbox: func(c *runtimeapi.PodSandboxConfig) {
				c.Linux.Overhead = &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 100 << 20, CpuShares: 256}
			},
		}))
	}
	// The first measurements may be older than the processes, or leave out those younger than
	// a second, which may be calls of the runtime.
	var o *adminv1.Overhead
	testbed.Eventually(t, 3*time.Minute, func() error {
		if o = b.overhead(t, "monitor"); o.GetLive().GetPods() != 4 || o.GetLive().GetCpuNanocores() == nil || o.GetLive().GetMemoryBytes().GetP50() < 64<<20 {
			return fmt.Errorf("measured overhead: %v", o)
		}
		return nil
	})
	if o.GetDeclaredMemoryBytes() != 100<<20 || o.GetDeclaredCpuMillicores() != 250 {
		t.Errorf("declared overhead: %v, want 100 MiB and 250 millicores", o)
	}
	about(t, "p50 of 128, 128, 256 and 128 MiB", o.GetLive().GetMemoryBytes().GetP50(), 128)
	about(t, "p95", o.GetLive().GetMemoryBytes().GetP95(), 256)
	about(t, "the maximum", o.GetLive().GetMemoryBytes().GetMax(), 256)
	testbed.Contains(t, o.GetWarning(), "its pods declare 100Mi", "the warning")
	// Besides the shim there are two processes of 128 MiB: of the sandbox and of the container.
	if m := b.overhead(t, "driven").GetLive().GetMemoryBytes().GetP50(); m < 256<<20 || m > 320<<20 {
		t.Errorf("p50 under a shim is %d MiB, want 256 and the shim's", m>>20)
	}
	if o := b.overhead(t, "gvisor"); o.GetLive() != nil || !strings.Contains(o.GetNoLiveReason(), "separate kernel") {
		t.Errorf("overhead of gvisor: %v, want only a reason", o)
	}
	c := b.admin(t)
	status, err := c.GetStatus(testbed.Within(t, time.Minute), &adminv1.GetStatusRequest{})
	if err != nil || !strings.Contains(strings.Join(status.GetDegraded(), "\n"), "handler monitor: overhead is ") {
		t.Errorf("the status does not report the overhead of handler monitor: %v, %v", status, err)
	}
	for _, p := range pods {
		p.Remove(t)
	}
	b.NothingLeft(t, atRest)
}
