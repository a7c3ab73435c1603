package router_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/router"
	"github.com/berth-cri/berth/pkg/router/routertest"
)

func limited(name string, b router.Backend, l handler.Limits) handler.Route[router.Backend] {
	r := ready(name, b)
	r.Definition.Limits = l
	return r
}

// held is a backend whose starts block until a value is sent on let.
type held struct {
	*routertest.Backend
	arrived chan string // the uid of each pod, as its start arrives
	let     chan struct{}
}

func newHeld() *held {
	h := &held{Backend: routertest.New("one"), arrived: make(chan string, 100), let: make(chan struct{})}
	return h
}

func (h *held) RunPodSandbox(ctx context.Context, req *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
	h.arrived <- req.GetConfig().GetMetadata().GetUid()
	select {
	case <-h.let:
		return h.Backend.RunPodSandbox(ctx, req)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func podOf(name, uid string) *runtimeapi.RunPodSandboxRequest {
	return &runtimeapi.RunPodSandboxRequest{RuntimeHandler: name, Config: &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Uid: uid},
	}}
}

// runAsync starts a pod, and returns a channel that gets its error or nil.
func (n *node) runAsync(c context.Context, name, uid string) <-chan error {
	ended := make(chan error, 1)
	go func() {
		_, err := n.RunPodSandbox(c, podOf(name, uid))
		ended <- err
	}()
	return ended
}

func (n *node) startsOf(t *testing.T, name string) router.Starts {
	t.Helper()
	for _, s := range n.router.Starts() {
		if s.Handler == name {
			return s
		}
	}
	t.Fatalf("Starts has no handler %s", name)
	return router.Starts{}
}

func (n *node) awaitStarts(t *testing.T, name string, running, queued int) {
	t.Helper()
	test.Retry(t, func() error {
		s := n.startsOf(t, name)
		if s.Running != running || s.Queued != queued {
			return fmt.Errorf("%d starts run and %d wait, want %d and %d", s.Running, s.Queued, running, queued)
		}
		return nil
	})
}

func wantText(t *testing.T, err error, code codes.Code, words ...string) {
	t.Helper()
	wantCode(t, err, code)
	for _, w := range words {
		if err != nil && !strings.Contains(status.Convert(err).Message(), w) {
			t.Errorf("the error %v does not contain %q", err, w)
		}
	}
}

// While pods are created and removed concurrently, there are never more than
// max_pods. Afterwards exactly max_pods can start.
func TestMaxPodsIsExact(t *testing.T) {
	const most = 5
	one, _ := two()
	var now, highest, refused atomic.Int64
	one.Fail = func(_ context.Context, rpc string) error {
		switch rpc {
		case "RunPodSandbox":
			if n := now.Add(1); n > highest.Load() {
				highest.Store(n)
			}
			if n := now.Load(); n > most {
				return fmt.Errorf("%d pods", n)
			}
		case "RemovePodSandbox":
			now.Add(-1)
		}
		return nil
	}
	n := serveReady(t, table(t, 1, "runc", limited("runc", one, handler.Limits{MaxPods: most})), one)
	var working sync.WaitGroup
	for range 8 {
		working.Go(func() {
			for range 40 {
				resp, err := n.RunPodSandbox(ctx(t), podOf("runc", ""))
				switch status.Code(err) {
				case codes.OK:
					test.Check(t, test.Err(n.RemovePodSandbox(ctx(t), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: resp.GetPodSandboxId()})))
				case codes.ResourceExhausted:
					refused.Add(1)
				default:
					t.Error(err)
				}
			}
		})
	}
	working.Wait()
	if s := n.startsOf(t, "runc"); s.Running != 0 || s.Refused["max_pods"] != uint64(refused.Load()) {
		t.Errorf("the counts are %+v, but %d starts were refused", s, refused.Load())
	}
	for range most {
		n.run(t, "runc")
	}
	wantText(t, test.Err(n.RunPodSandbox(ctx(t), podOf("", ""))), codes.ResourceExhausted, `handler "runc": pods running or being created: 5`, "max_pods is 5", "[runtimes.runc]")
	if len(one.Inventory()) != most {
		t.Errorf("there are %d pods", len(one.Inventory()))
	}
}

// The sandbox of a failed start does not count for max_pods, although it is listed.
func TestFailedStartsAndMaxPods(t *testing.T) {
	one, _ := two()
	var where atomic.Value
	where.Store("")
	one.Fail = func(_ context.Context, rpc string) error {
		if rpc == where.Load() {
			return errors.New("no address is left")
		}
		return nil
	}
	n := serveReady(t, table(t, 1, "runc", limited("runc", one, handler.Limits{MaxPods: 2})), one)
	where.Store("RunPodSandbox")
	for range 5 {
		wantText(t, test.Err(n.RunPodSandbox(ctx(t), podOf("runc", ""))), codes.Unknown, "no address is left")
	}
	where.Store("RunPodSandbox, half-way")
	for range 3 {
		wantText(t, test.Err(n.RunPodSandbox(ctx(t), podOf("runc", ""))), codes.Unknown, "no address is left")
	}
	where.Store("")
	left := one.Inventory()[0].Sandbox
	n.run(t, "runc")
	n.run(t, "runc")
	_, err := n.RunPodSandbox(ctx(t), podOf("runc", ""))
	wantText(t, err, codes.ResourceExhausted, "pods running or being created: 2,")
	test.Must(t, test.Err(n.RemovePodSandbox(ctx(t), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: left[:10]})))
	wantText(t, test.Err(n.RunPodSandbox(ctx(t), podOf("runc", ""))), codes.ResourceExhausted, "pods running or being created: 2,")
}

// A sandbox counts for max_pods until it was stopped without an error or died, not
// until it is removed: the kubelet creates the next sandbox before it removes the last.
func TestMaxPodsCountsWhatRuns(t *testing.T) {
	one, _ := two()
	n := serveReady(t, table(t, 1, "runc", limited("runc", one, handler.Limits{MaxPods: 1})), one)
	full := func(t *testing.T, want bool) {
		t.Helper()
		resp, err := n.RunPodSandbox(ctx(t), podOf("runc", ""))
		if want {
			wantText(t, err, codes.ResourceExhausted, "pods running or being created: 1,")
			return
		}
		test.Must(t, err)
		n.stop(t, resp.GetPodSandboxId())
		n.remove(t, resp.GetPodSandboxId())
	}
	for name, end := range map[string]func(t *testing.T, id string){
		"stopped":       func(t *testing.T, id string) { n.stop(t, id) },
		"stopped twice": func(t *testing.T, id string) { n.stop(t, id); n.stop(t, id) },
		"died":          func(_ *testing.T, id string) { one.Die(id) },
		"died, then stopped": func(t *testing.T, id string) {
			one.Die(id)
			n.stop(t, id)
		},
		"stopped at the second try": func(t *testing.T, id string) {
			one.Fail = func(_ context.Context, rpc string) error {
				if rpc == "StopPodSandbox" {
					return errors.New("a device is busy")
				}
				return nil
			}
			wantText(t, test.Err(n.StopPodSandbox(ctx(t), &runtimeapi.StopPodSandboxRequest{PodSandboxId: id})), codes.Unknown, "a device is busy")
			full(t, true)
			one.Fail = nil
			n.stop(t, id)
		},
	} {
		t.Run(name, func(t *testing.T) {
			id := n.run(t, "runc")
			full(t, true)
			end(t, id)
			full(t, false)
			n.remove(t, id)
			full(t, false)
		})
	}
}

func (n *node) stop(t *testing.T, id string) {
	t.Helper()
	test.Must(t, test.Err(n.StopPodSandbox(ctx(t), &runtimeapi.StopPodSandboxRequest{PodSandboxId: id})))
}

func (n *node) remove(t *testing.T, id string) {
	t.Helper()
	test.Must(t, test.Err(n.RemovePodSandbox(ctx(t), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})))
}

func TestMaxPodsAfterARestart(t *testing.T) {
	one, _ := two()
	before := serveReady(t, table(t, 1, "runc", ready("runc", one)), one)
	before.run(t, "")
	before.run(t, "")
	after := serveReady(t, table(t, 1, "runc", limited("runc", one, handler.Limits{MaxPods: 3})), one)
	after.run(t, "")
	wantText(t, test.Err(after.RunPodSandbox(ctx(t), podOf("runc", ""))), codes.ResourceExhausted, "pods running or being created: 3,")
}

func TestStartsWaitInOrder(t *testing.T) {
	h, free := newHeld(), routertest.New("two")
	n := serveReady[router.Backend](t, table(t, 1, "runc", limited("runc", h, handler.Limits{MaxParallelStarts: 2, MaxQueuedStarts: 4}), ready("free", free)), h, free)
	var ended []<-chan error
	for i := range 6 {
		ended = append(ended, n.runAsync(ctx(t), "runc", fmt.Sprint(i)))
		n.awaitStarts(t, "runc", min(i+1, 2), max(0, i-1))
	}
	wantText(t, test.Err(n.RunPodSandbox(ctx(t), podOf("runc", "7"))), codes.ResourceExhausted, `handler "runc": pods being started: 2`, "max_parallel_starts is 2", "waiting: 4", "max_queued_starts is 4", "[runtimes.runc]")
	if got := n.startsOf(t, "runc").Refused["max_parallel_starts"]; got != 1 {
		t.Errorf("%d starts are counted as refused, want 1", got)
	}
	// Starts of another handler are not limited.
	n.run(t, "free")
	order := []string{<-h.arrived, <-h.arrived}
	for i := 2; i < 6; i++ {
		h.let <- struct{}{}
		if got := <-h.arrived; got != fmt.Sprint(i) {
			t.Errorf("pod %s started instead of %d", got, i)
		}
	}
	close(h.let)
	for _, e := range ended {
		test.Check(t, <-e)
	}
	n.awaitStarts(t, "runc", 0, 0)
	slices.Sort(order)
	test.EqualLists(t, "the first two starts", order, []string{"0", "1"})
}

func TestNoQueue(t *testing.T) {
	h := newHeld()
	n := serveReady(t, table(t, 1, "runc", limited("runc", h, handler.Limits{MaxParallelStarts: 1})), h)
	first := n.runAsync(ctx(t), "runc", "")
	<-h.arrived
	wantText(t, test.Err(n.RunPodSandbox(ctx(t), podOf("runc", ""))), codes.ResourceExhausted, "pods being started: 1", "max_queued_starts is 0")
	close(h.let)
	test.Must(t, <-first)
	n.run(t, "runc")
}

func TestWhoLeavesTheQueueCostsNothing(t *testing.T) {
	h := newHeld()
	n := serveReady(t, table(t, 1, "runc", limited("runc", h, handler.Limits{MaxParallelStarts: 1, MaxQueuedStarts: 2, MaxPods: 3})), h)
	first := n.runAsync(ctx(t), "runc", "first")
	n.awaitStarts(t, "runc", 1, 0)
	patience, leave := context.WithCancel(ctx(t))
	impatient := n.runAsync(patience, "runc", "impatient")
	n.awaitStarts(t, "runc", 1, 1)
	patient := n.runAsync(ctx(t), "runc", "patient")
	n.awaitStarts(t, "runc", 1, 2)
	leave()
	wantCode(t, <-impatient, codes.Canceled)
	n.awaitStarts(t, "runc", 1, 1)
	last := n.runAsync(ctx(t), "runc", "last") // as the third pod and the second in the queue, it is within the limits
	n.awaitStarts(t, "runc", 1, 2)
	close(h.let)
	for _, e := range []<-chan error{first, patient, last} {
		test.Check(t, <-e)
	}
	for _, want := range []string{"first", "patient", "last"} {
		if got := <-h.arrived; got != want {
			t.Errorf("%s started instead of %s", got, want)
		}
	}
}

func TestStartTimeout(t *testing.T) {
	h := newHeld()
	n := serveReady(t, table(t, 1, "runc",
		limited("runc", h, handler.Limits{StartTimeout: 50 * time.Millisecond}),
		limited("queue", h, handler.Limits{StartTimeout: 50 * time.Millisecond, MaxParallelStarts: 1, MaxQueuedStarts: 1})), h)
	_, err := n.RunPodSandbox(ctx(t), podOf("runc", ""))
	wantText(t, err, codes.DeadlineExceeded, `handler "runc": the sandbox was not ready within start_timeout = 50ms`, "[runtimes.runc]")
	<-h.arrived

	first, second := n.runAsync(ctx(t), "queue", ""), n.runAsync(ctx(t), "queue", "")
	for _, e := range []<-chan error{first, second} {
		wantText(t, <-e, codes.DeadlineExceeded, "start_timeout = 50ms")
	}
	n.awaitStarts(t, "queue", 0, 0)
	if got := n.startsOf(t, "queue").Refused["start_timeout"]; got != 2 {
		t.Errorf("%d starts are counted", got)
	}
	// The end of the caller's context is not counted.
	short, cancel := context.WithTimeout(ctx(t), 20*time.Millisecond)
	defer cancel()
	n.registry.Swap(table(t, 2, "runc", limited("runc", h, handler.Limits{StartTimeout: time.Hour})))
	wantCode(t, test.Err(n.RunPodSandbox(short, podOf("runc", ""))), codes.DeadlineExceeded)
	n.awaitStarts(t, "runc", 0, 0)
	if got := n.startsOf(t, "runc").Refused["start_timeout"]; got != 1 {
		t.Errorf("%d starts are counted", got)
	}
}

// Counts belong to the handler and survive a new table, the limits of the new table
// apply at once, and a start that waited is routed by the current table.
func TestLimitsAcrossTables(t *testing.T) {
	h := newHeld()
	withLimits := func(generation uint64, l handler.Limits) *handler.Table[router.Backend] {
		return table(t, generation, "runc", limited("runc", h, l))
	}
	n := serveReady(t, table(t, 1, "runc", ready("runc", h)), h)
	var ended []<-chan error
	for i := range 2 { // without any limit
		ended = append(ended, n.runAsync(ctx(t), "runc", fmt.Sprint(i)))
		<-h.arrived
	}
	n.registry.Swap(withLimits(2, handler.Limits{MaxParallelStarts: 1, MaxQueuedStarts: 3}))
	for i := range 3 {
		ended = append(ended, n.runAsync(ctx(t), "runc", fmt.Sprint(i)))
		n.awaitStarts(t, "runc", 2, i+1)
	}
	h.let <- struct{}{} // one still runs
	n.awaitStarts(t, "runc", 1, 3)
	n.registry.Swap(withLimits(3, handler.Limits{}))
	h.let <- struct{}{} // no start has to wait any more
	n.awaitStarts(t, "runc", 3, 0)

	n.registry.Swap(withLimits(4, handler.Limits{MaxParallelStarts: 3, MaxQueuedStarts: 1}))
	waits := n.runAsync(ctx(t), "runc", "waits")
	n.awaitStarts(t, "runc", 3, 1)
	cordoned := limited("runc", h, handler.Limits{MaxParallelStarts: 3, MaxQueuedStarts: 1})
	cordoned.State = handler.State{Phase: handler.Cordoned, Reason: "maintenance"}
	n.registry.Swap(table(t, 5, "runc", cordoned))
	close(h.let)
	wantText(t, <-waits, codes.Unavailable, "cordoned", "maintenance")
	for _, e := range ended {
		test.Check(t, <-e)
	}
	n.awaitStarts(t, "runc", 0, 0)
}

// If many starts are run few at a time, each one succeeds unless its caller gives up.
func TestManyStartsFewAtATime(t *testing.T) {
	const most = 3
	one, _ := two()
	var now atomic.Int64
	one.Fail = func(_ context.Context, rpc string) error {
		if rpc == "RunPodSandbox" {
			defer now.Add(-1)
			if n := now.Add(1); n > most {
				return fmt.Errorf("%d at the same time", n)
			}
		}
		return nil
	}
	n := serveReady(t, table(t, 1, "runc", limited("runc", one, handler.Limits{MaxParallelStarts: most, MaxQueuedStarts: 1000})), one)
	var working sync.WaitGroup
	for i := range 200 {
		working.Go(func() {
			c := ctx(t)
			if i%4 == 0 {
				var cancel context.CancelFunc
				c, cancel = context.WithTimeout(c, time.Duration(i)*50*time.Microsecond)
				defer cancel()
			}
			_, err := n.RunPodSandbox(c, podOf("runc", ""))
			if code := status.Code(err); err != nil && (i%4 != 0 || code != codes.DeadlineExceeded) {
				t.Error(err)
			}
		})
	}
	working.Wait()
	n.awaitStarts(t, "runc", 0, 0)
	if len(one.Inventory()) < 150 {
		t.Errorf("only %d pods were created", len(one.Inventory()))
	}
}
