package router_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/router"
	"github.com/berth-cri/berth/pkg/router/routertest"
)

// outcomes counts its calls as router.Outcomes, and is an empty router.NodeReport.
type outcomes struct {
	mu                 sync.Mutex
	rollingOut, failed map[string]int
	// started and notStarted count the calls for all handlers.
	started, notStarted int
}

func (j *outcomes) Started(string, handler.Attempt) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.started++
}

func (j *outcomes) NotStarted(string, handler.Attempt, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.notStarted++
}

func (*outcomes) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return nil, errors.New("not used")
}
func (*outcomes) Stranded() []string      { return nil }
func (*outcomes) AdvertiseNotReady() bool { return false }
func (*outcomes) Info() map[string]string { return nil }

func told(name string, a handler.Attempt) string {
	return name + a.Definition.Path + " " + a.SHA256 + " " + a.Pod
}

func (j *outcomes) Began(name string, a handler.Attempt) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.rollingOut[told(name, a)]++
}

func (j *outcomes) Failed(name string, a handler.Attempt, _ error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.failed[told(name, a)]++
}

func rollingOut(b router.Backend, percent int) handler.Route[router.Backend] {
	r := ready("runc", b)
	r.Definition.Path, r.Definition.Candidate = "/old", &handler.Candidate{Path: "/new", Percent: percent}
	r.Candidate = r.Definition.WithCandidate()
	return r
}

// The share of pods on the candidate is close to the percentage, even if their uids
// are similar. Pods in a share are in every larger share too.
func TestShareOfARollout(t *testing.T) {
	one, _ := two()
	n := serveReady(t, table(t, 1, "runc", rollingOut(one, 0)), one)
	got := map[int]map[string]bool{}
	const pods = 1000
	for _, percent := range []int{0, 10, 50, 100} {
		n.registry.Swap(table(t, 2, "runc", rollingOut(one, percent)))
		got[percent] = map[string]bool{}
		for i := range pods {
			uid := fmt.Sprintf("0f0f0f0f-0000-4000-8000-%012d", i)
			resp := test.Value(n.RunPodSandbox(ctx(t), podOf("", uid)))(t)
			if d := one.Definition(resp.GetPodSandboxId()); d.Binary == handler.BinaryCandidate {
				if d.Path != "/new" {
					t.Fatalf("the candidate is %s", d.Path)
				}
				got[percent][uid] = true
			}
		}
	}
	for percent, least := range map[int]int{0: 0, 10: 70, 50: 440, 100: pods} {
		most := map[int]int{0: 0, 10: 130, 50: 560, 100: pods}[percent]
		if n := len(got[percent]); n < least || n > most {
			t.Errorf("%d of %d pods run the candidate, at %d percent", n, pods, percent)
		}
	}
	for uid := range got[10] {
		if !got[50][uid] {
			t.Errorf("pod %s runs the candidate at 10 percent, but not at 50", uid)
		}
	}
}

// A failure counts if the backend attributes it to the runtime and the call was not
// canceled. It counts for the binary of the pod, also after the rollout is over, and for
// the pod as a whole, which may have several sandboxes.
func TestOutcomesAreHeard(t *testing.T) {
	b := routertest.New("one")
	b.SHA256 = map[string]string{"/new": "5a"}
	var fail func(rpc string) error
	b.Fail = func(_ context.Context, rpc string) error {
		if fail == nil {
			return nil
		}
		return fail(rpc)
	}
	j := &outcomes{rollingOut: map[string]int{}, failed: map[string]int{}}
	registry := handler.NewRegistry(table(t, 1, "runc", rollingOut(b, 100)))
	r := router.New(router.NewPods(registry), j, j)
	r.Adopt(b)
	r.SetReady()
	n := serveRouter(t, registry, r)

	resp := test.Value(n.RunPodSandbox(ctx(t), podOf("", "u1")))(t)
	sandbox := resp.GetPodSandboxId()
	container := n.create(t, sandbox)
	failing := map[string]func() error{
		"RunPodSandbox": func() error {
			_, err := n.RunPodSandbox(ctx(t), podOf("", "u1"))
			return err
		},
		"CreateContainer": func() error {
			_, err := n.CreateContainer(ctx(t), &runtimeapi.CreateContainerRequest{PodSandboxId: sandbox})
			return err
		},
		"StartContainer": func() error {
			_, err := n.StartContainer(ctx(t), &runtimeapi.StartContainerRequest{ContainerId: container})
			return err
		},
	}
	count := 0
	for rpc, call := range failing {
		for _, c := range []struct {
			err    error
			counts bool
			// ofNode is set if NotStarted is called: the request, its caller and the pod are not the cause.
			ofNode bool
		}{
			{errors.New("network: no address is left"), false, true},
			{fmt.Errorf("no image: %w", errdefs.ErrNotFound), false, false},
			{fmt.Errorf("the name is taken: %w", errdefs.ErrAlreadyExists), false, false},
			{fmt.Errorf("the field: %w", errdefs.ErrInvalidArgument), false, false},
			{fmt.Errorf("the handler lacks it: %w", errdefs.ErrFailedPrecondition), false, false},
			{fmt.Errorf("the disk: %w", errdefs.ErrInternal), false, true},
			{fmt.Errorf("the disk is full: %w", errdefs.ErrResourceExhausted), false, true},
			{handler.AttributeToRuntime(fmt.Errorf("it was called off: %w", context.Canceled)), false, false},
			{handler.AttributeToPod(errors.New("exec: no such program")), false, false},
			{handler.AttributeToPod(fmt.Errorf("the pod ran into its limit: %w", errdefs.ErrResourceExhausted)), false, false},
			{grpcstatus.Error(codes.InvalidArgument, "of another daemon"), false, false},
			{grpcstatus.Error(codes.NotFound, "of another daemon"), false, false},
			{grpcstatus.Error(codes.Unknown, "of another daemon"), false, true},
			{handler.AttributeToRuntime(errors.New("it cannot be done")), true, true},
			{fmt.Errorf("start: %w", handler.AttributeToRuntime(fmt.Errorf("it is not a program: %w", errdefs.ErrFailedPrecondition))), true, true},
		} {
			notStarted := j.notStarted
			before := len(j.failed) + j.failed["runc/new 5a u1"] + j.failed["runc/new  u1"]
			fail = func(at string) error {
				if at == rpc {
					return c.err
				}
				return nil
			}
			if err := call(); err == nil {
				t.Fatalf("%s did not fail", rpc)
			}
			got := len(j.failed)+j.failed["runc/new 5a u1"]+j.failed["runc/new  u1"] > before
			test.Equal(t, fmt.Sprintf("%s, %v: counted", rpc, c.err), got, c.counts)
			if got {
				count++
			}
			test.Equal(t, fmt.Sprintf("%s, %v: NotStarted was called", rpc, c.err), j.notStarted > notStarted, c.ofNode)
		}
		registry.Swap(table(t, 2, "runc", rollingOut(b, 100)))
	}
	registry.Swap(table(t, 3, "runc", ready("runc", b)))
	fail = nil
	n.run(t, "") // in no rollout
	if _, err := n.StartContainer(ctx(t), &runtimeapi.StartContainerRequest{ContainerId: container}); err != nil || j.started == 0 {
		t.Errorf("Started was called %d times (%v)", j.started, err)
	}
	if len(j.rollingOut) != 2 || j.rollingOut["runc/new 5a u1"] != 1 || j.failed["runc/new 5a u1"] != 4 || j.failed["runc/new  u1"] != 2 || count != 6 {
		t.Errorf("Began was called for %v, Failed for %v", j.rollingOut, j.failed)
	}
	for _, v := range r.BinaryStarts() {
		if v.Handler == "runc" && v.Failures != map[string]uint64{"stable": 0, "candidate": 6}[v.Binary] {
			t.Errorf("got %+v", v)
		}
	}

	// Pods on the handler's own binary count too, for the comparison with the candidate.
	registry.Swap(table(t, 4, "runc", rollingOut(b, 0)))
	if _, err := n.RunPodSandbox(ctx(t), podOf("", "u2")); err != nil || j.rollingOut["runc/old  u2"] != 1 {
		t.Errorf("Began was called for %v, error %v", j.rollingOut, err)
	}
	// After a restart, the backend reports the binary of an older pod.
	again := router.New(router.NewPods(registry), j, j)
	again.Adopt(b)
	again.SetReady()
	fail = func(at string) error {
		if at == "StartContainer" {
			return handler.AttributeToRuntime(errors.New("it cannot be done"))
		}
		return nil
	}
	_, err := serveRouter(t, registry, again).StartContainer(ctx(t), &runtimeapi.StartContainerRequest{ContainerId: container})
	if err == nil || j.failed["runc/new 5a u1"] != 5 {
		t.Errorf("Failed was called for %v, error %v", j.failed, err)
	}
}
