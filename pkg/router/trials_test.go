package router_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/router"
	"github.com/berth-cri/berth/pkg/router/routertest"
)

// judge notes what it hears, and tells nothing in Status.
type judge struct {
	mu            sync.Mutex
	tried, failed map[string]int
}

func (*judge) AdvertiseNotReady() bool { return false }
func (*judge) Info() map[string]string { return nil }

func (j *judge) Tried(name, path, pod string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.tried[name+path+" "+pod]++
}

func (j *judge) Failed(name, path, pod string, _ error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.failed[name+path+" "+pod]++
}

func onTrial(b router.Backend, percent int) handler.Route[router.Backend] {
	r := ready("runc", b)
	r.Definition.Path, r.Definition.Next = "/old", &handler.Next{Path: "/new", Percent: percent}
	r.Next = r.Definition.WithNext()
	return r
}

// The share is what was asked for, whatever uids look like; a pod always gets the
// same; and who is in a share is in every larger one.
func TestShareOfATrial(t *testing.T) {
	one, _ := two()
	n := serveReady(t, table(t, 1, "runc", onTrial(one, 0)), one)
	got := map[int]map[string]bool{}
	const pods = 1000
	for _, percent := range []int{0, 10, 50, 100} {
		n.registry.Swap(table(t, 2, "runc", onTrial(one, percent)))
		got[percent] = map[string]bool{}
		for i := range pods {
			uid := fmt.Sprintf("0f0f0f0f-0000-4000-8000-%012d", i)
			resp, err := n.RunPodSandbox(ctx(t), podOf("", uid))
			if err != nil {
				t.Fatal(err)
			}
			if d := one.Definition(resp.GetPodSandboxId()); d.Variant == handler.VariantNext {
				if d.Path != "/new" {
					t.Fatalf("it runs %s", d.Path)
				}
				got[percent][uid] = true
			}
		}
	}
	for percent, least := range map[int]int{0: 0, 10: 70, 50: 440, 100: pods} {
		most := map[int]int{0: 0, 10: 130, 50: 560, 100: pods}[percent]
		if n := len(got[percent]); n < least || n > most {
			t.Errorf("%d of %d pods try it, at %d percent", n, pods, percent)
		}
	}
	for uid := range got[10] {
		if !got[50][uid] {
			t.Errorf("pod %s tries it at 10 percent, and not at 50", uid)
		}
	}
}

// Failures are the binary's when they are not the caller's, and belong to the
// pod's binary, also when the table has none on trial any more.
func TestJudgeHearsOfTrials(t *testing.T) {
	b := routertest.New("one")
	var fail func(rpc string) error
	b.Fail = func(_ context.Context, rpc string) error {
		if fail == nil {
			return nil
		}
		return fail(rpc)
	}
	j := &judge{tried: map[string]int{}, failed: map[string]int{}}
	registry := handler.NewRegistry(table(t, 1, "runc", onTrial(b, 100)))
	r := router.NewTelling(registry, j)
	r.Adopt(b)
	r.SetReady()
	n := serveRouter(t, registry, r)

	resp, err := n.RunPodSandbox(ctx(t), podOf("", "u1"))
	if err != nil {
		t.Fatal(err)
	}
	sandbox := resp.GetPodSandboxId()
	container := n.create(t, sandbox)
	registry.Swap(table(t, 2, "runc", ready("runc", b)))
	for rpc, call := range map[string]func() error{
		"CreateContainer": func() error {
			_, err := n.CreateContainer(ctx(t), &runtimeapi.CreateContainerRequest{PodSandboxId: sandbox})
			return err
		},
		"StartContainer": func() error {
			_, err := n.StartContainer(ctx(t), &runtimeapi.StartContainerRequest{ContainerId: container})
			return err
		},
	} {
		for class, counts := range map[error]bool{errdefs.ErrInvalidArgument: false, errdefs.ErrNotFound: false, errdefs.ErrInternal: true, errdefs.ErrUnknown: true} {
			before := j.failed["runc/new "+sandbox]
			fail = func(at string) error {
				if at == rpc {
					return fmt.Errorf("no: %w", class)
				}
				return nil
			}
			if err := call(); err == nil {
				t.Fatalf("%s did not fail", rpc)
			}
			if got := j.failed["runc/new "+sandbox] > before; got != counts {
				t.Errorf("%s, %v: counted %v", rpc, class, got)
			}
		}
	}
	fail = nil
	n.run(t, "") // on no trial
	if len(j.tried) != 1 || j.tried["runc/new "+sandbox] != 1 || len(j.failed) != 1 {
		t.Errorf("heard of %v and %v", j.tried, j.failed)
	}
	want := map[string]router.Variant{
		"stable": {Handler: "runc", Variant: "stable", Pods: 1},
		"next":   {Handler: "runc", Variant: "next", Pods: 1, Failures: 4},
	}
	for _, v := range r.Variants() {
		if v != want[v.Variant] {
			t.Errorf("got %+v, want %+v", v, want[v.Variant])
		}
	}
}
