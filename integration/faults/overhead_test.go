package faults

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
	"github.com/berth-cri/berth/pkg/admin/client"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

// ballast has a runtime leave a process behind for each container that it makes, as
// monitors are, which holds so many MiB; the n-th of them the n-th size, and then the
// last one. It ends with the container.
func (s *scripted) ballast(t *testing.T, verb string, sizes ...int) {
	t.Helper()
	text := strings.Trim(fmt.Sprint(sizes), "[]")
	s.on(t, verb, fmt.Sprintf(`
for id; do :; done
n=$(cat "$dir/count" 2>/dev/null || echo 0)
echo $((n+1)) >"$dir/count"
for size in %s; do [ $n -gt 0 ] || break; n=$((n-1)); done
mkfifo "$dir/$id.fifo"
# dd fills its buffer and then writes it to a pipe that nobody reads.
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

// overhead measures; see adminv1.MeasureOverheadRequest.
func (b *bed) overhead(t *testing.T, name string, pods int32) (*adminv1.Overhead, error) {
	t.Helper()
	return b.overheadWhile(testbed.Within(t, 2*time.Minute), t, name, pods, func(*adminv1.MeasureOverheadResponse) {})
}

func (b *bed) overheadWhile(ctx context.Context, t *testing.T, name string, pods int32, step func(*adminv1.MeasureOverheadResponse)) (*adminv1.Overhead, error) {
	t.Helper()
	c, err := client.New(filepath.Join(filepath.Dir(b.Socket), "admin.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	stream, err := c.MeasureOverhead(ctx, &adminv1.MeasureOverheadRequest{Name: name, Pods: pods, Window: durationpb.New(time.Second)})
	if err != nil {
		return nil, err
	}
	var o *adminv1.Overhead
	for {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return o, nil
		}
		if err != nil {
			return nil, err
		}
		step(resp)
		o = resp.GetOverhead()
	}
}

// about fails unless a number of bytes is within 10 % of so many MiB.
func about(t *testing.T, what string, bytes uint64, want int) {
	t.Helper()
	if mib := float64(bytes) / (1 << 20); mib < 0.9*float64(want) || mib > 1.1*float64(want) {
		t.Errorf("%s is %.1f MiB, want %d within 10 %%", what, mib, want)
	}
}

// TestOverhead has runtimes leave processes behind that hold a known amount of memory,
// and looks whether it is found, in self-check pods and in live ones, and whether what
// containers hold is not.
func TestOverhead(t *testing.T) {
	t.Parallel()
	runc := testbed.Part(t, testbed.Runc)
	monitor, driven, third := newScripted(t), newScripted(t), newScripted(t)
	monitor.ballast(t, "run", 128, 128, 256, 128)
	driven.ballast(t, "create", 128)
	third.on(t, "run", `[ $(ls "$dir"/began-* 2>/dev/null | wc -l) -lt 2 ] || { echo 'two are enough' >&2; exit 1; }; : >"$dir/began-$$"`)
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
[runtimes.third]
runtime_path = %[6]q
[runtimes.full]
runtime_path = %[1]q
max_pods = 2
`, runc, monitor.Path, testbed.Part(t, testbed.RuncShim), driven.Path, testbed.Part(t, testbed.Runsc), third.Path)})
	atRest := b.Rest(t)

	t.Run("no pods", func(t *testing.T) {
		for name, why := range map[string]string{"runc": "it has no pods", "gvisor": "it has no pods"} {
			if o, err := b.overhead(t, name, 0); err != nil || o.GetBest() != nil || o.GetNoLiveReason() != why {
				t.Errorf("%s: %v, %v", name, o, err)
			}
		}
	})
	t.Run("canaries", func(t *testing.T) { b.canaryOverhead(t) })
	t.Run("live pods", func(t *testing.T) { b.liveOverhead(t) })
	t.Run("refused", func(t *testing.T) { b.overheadRefused(t) })
	t.Run("interrupted", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		_, err := b.overheadWhile(ctx, t, "monitor", 3, func(s *adminv1.MeasureOverheadResponse) {
			if s.GetStep() == "settling" {
				cancel()
			}
		})
		if err == nil {
			t.Error("it went on to its end")
		}
		b.noCanaries(t, monitor)
	})
	t.Run("the daemon stops", func(t *testing.T) {
		settling := false
		testbed.Eventually(t, time.Minute, func() error { // the last one may not be over for the daemon
			_, err := b.overheadWhile(testbed.Within(t, 2*time.Minute), t, "monitor", 3, func(s *adminv1.MeasureOverheadResponse) {
				if s.GetStep() == "settling" {
					settling = true
					b.Restart(t)
				}
			})
			if err == nil {
				t.Error("it went on to its end")
			}
			if !settling {
				return err
			}
			return nil
		})
		b.noCanaries(t, monitor)
	})
	b.NothingLeft(t, atRest)
}

// noSelfChecks waits until nothing is left of any pod, nor of what runtimes left beside
// their containers.
func (b *bed) noCanaries(t *testing.T, runtimes ...*scripted) {
	t.Helper()
	testbed.Eventually(t, time.Minute, func() error {
		for _, dir := range []string{filepath.Join(b.State, "sandboxes"), filepath.Join(b.Root, "records", "sandboxes")} {
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				return fmt.Errorf("%s has %v: %w", dir, left, err)
			}
		}
		for _, s := range runtimes {
			if pids := s.ballastPIDs(); len(pids) > 0 {
				return fmt.Errorf("processes %v are left", pids)
			}
		}
		return nil
	})
}

func (b *bed) canaryOverhead(t *testing.T) {
	t.Helper()
	shown := map[string]bool{}
	o, err := b.overheadWhile(testbed.Within(t, 2*time.Minute), t, "monitor", 4, func(s *adminv1.MeasureOverheadResponse) {
		shown[s.GetStep()] = true
		if n := b.shown(t); n != 0 {
			t.Errorf("%d sandboxes are listed", n)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []string{"starting", "settling", "watching", "removing", ""} {
		if !shown[step] {
			t.Errorf("step %q was not shown: %v", step, shown)
		}
	}
	c := o.GetCanary()
	if c.GetPods() != 4 || o.GetLive() != nil || o.GetBest().GetPods() != 4 || c.GetCpuNanocores() == nil || c.GetWindow().AsDuration() < time.Second {
		t.Fatalf("got %v", o)
	}
	about(t, "p50 of 128, 128, 256 and 128 MiB", c.GetMemoryBytes().GetP50(), 128)
	about(t, "p95", c.GetMemoryBytes().GetP95(), 256)
	about(t, "the largest", c.GetMemoryBytes().GetMax(), 256)

	if o, err = b.overhead(t, "driven", 2); err != nil {
		t.Fatal(err)
	}
	plain, err := b.overhead(t, "gvisor", 1)
	if err != nil {
		t.Fatal(err)
	}
	about(t, "p50 under a shim", o.GetCanary().GetMemoryBytes().GetP50(), 128)
	if m := plain.GetCanary().GetMemoryBytes(); m.GetMax() < 5<<20 || m.GetMax() > 100<<20 {
		t.Errorf("gVisor's kernel has %d bytes", m.GetMax())
	}
}

// liveOverhead has pods hold more than what is beside them.
func (b *bed) liveOverhead(t *testing.T) {
	t.Helper()
	var pods []*testbed.Pod
	for _, name := range []string{"monitor", "monitor", "gvisor"} {
		pods = append(pods, b.Client.RunPod(t, testbed.PodSpec{
			Handler: name, Image: b.Image,
			Command: []string{"sh", "-c", "dd if=/dev/zero bs=300M count=1 | sleep 1000"},
			Sandbox: func(c *runtimeapi.PodSandboxConfig) {
				c.Linux.Overhead = &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 100 << 20, CpuShares: 256}
			},
		}))
	}
	time.Sleep(2 * time.Second) // what is younger may be a call to the runtime
	o, err := b.overhead(t, "monitor", 0)
	if err != nil {
		t.Fatal(err)
	}
	if o.GetLive().GetPods() != 2 || o.GetLive().GetCpuNanocores() == nil || o.GetDeclaredMemoryBytes() != 100<<20 || o.GetDeclaredCpuMillicores() != 250 {
		t.Fatalf("got %v", o)
	}
	about(t, "p50 of live pods", o.GetLive().GetMemoryBytes().GetP50(), 128)
	about(t, "the largest of live pods", o.GetLive().GetMemoryBytes().GetMax(), 128)
	if !strings.Contains(o.GetWarning(), "its pods declare 100Mi") {
		t.Errorf("the warning is %q", o.GetWarning())
	}
	c, err := client.New(filepath.Join(filepath.Dir(b.Socket), "admin.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	status, err := c.GetStatus(testbed.Within(t, time.Minute), &adminv1.GetStatusRequest{})
	if err != nil || !strings.Contains(strings.Join(status.GetDegraded(), "\n"), "handler monitor: overhead is ") {
		t.Errorf("the status is %v, %v", status, err)
	}
	h, err := c.GetHandler(testbed.Within(t, time.Minute), &adminv1.GetHandlerRequest{Name: "monitor"})
	if err != nil || h.GetOverhead().GetLive().GetPods() != 2 || h.GetOverhead().GetCanary().GetPods() != 4 ||
		h.GetOverhead().GetBest().GetPods() != 4 || h.GetOverhead().GetBest().GetMemorySource() != "canary" {
		t.Errorf("the handler is %v, %v", h.GetOverhead(), err)
	}
	if o, err = b.overhead(t, "gvisor", 0); err != nil || o.GetLive() != nil || !strings.Contains(o.GetNoLiveReason(), "separate kernel") {
		t.Errorf("gvisor: %v, %v", o, err)
	}
	for _, p := range pods {
		p.Remove(t)
	}
}

// overheadRefused asks for what self-check pods must not have.
func (b *bed) overheadRefused(t *testing.T) {
	t.Helper()
	pod := b.Client.RunPod(t, testbed.PodSpec{Handler: "full", Image: b.Image, Command: []string{"sleep", "1000"}})
	_, err := b.overhead(t, "full", 2)
	testbed.Refused(t, err, codes.ResourceExhausted, "self-check pod 2 of 2", "max_pods is 2")
	if o, err := b.overhead(t, "full", 1); err != nil || o.GetCanary().GetPods() != 1 {
		t.Errorf("the place of a pod that was refused is not free: %v, %v", o, err)
	}
	pod.Remove(t)
	_, err = b.overhead(t, "third", 4)
	testbed.Refused(t, err, codes.Unknown, "self-check pod 3 of 4: the self-check pod failed at its start: ")
	b.noCanaries(t)
	_, err = b.overhead(t, "runc", 51)
	testbed.Refused(t, err, codes.InvalidArgument, "1 to 50")
	_, err = b.overhead(t, "rumc", 1)
	testbed.Refused(t, err, codes.NotFound, `did you mean "runc"?`)
	c, err := client.New(filepath.Join(filepath.Dir(b.Socket), "admin.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Cordon(testbed.Within(t, time.Minute), &adminv1.CordonRequest{Name: "runc", Reason: "a test"}); err != nil {
		t.Fatal(err)
	}
	_, err = b.overhead(t, "runc", 1)
	testbed.Refused(t, err, codes.Unavailable, "cordoned", "a test")
	if _, err := c.Uncordon(testbed.Within(t, time.Minute), &adminv1.UncordonRequest{Name: "runc"}); err != nil {
		t.Fatal(err)
	}
}
