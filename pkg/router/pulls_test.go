package router

import (
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/router/routertest"
)

func pullOf(image, user string) *runtimeapi.PullImageRequest {
	req := &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: image}}
	if user != "" {
		req.Auth = &runtimeapi.AuthConfig{Username: user}
	}
	return req
}

func TestCredentialsArePodsOwnAndEndWithThem(t *testing.T) {
	o, p := newOwners(), &pulls{}
	b := routertest.New("one")
	for _, id := range []string{"a", "b"} {
		recorded(t, o.addSandbox(id, "runc", handler.Attempt{}, b))
		p.made(o, "pod-"+id, id)
	}
	p.remember("pod-a", pullOf("example.test/private:latest", "a"))
	p.remember("pod-gone", pullOf("example.test/private:latest", "gone"))
	for uid, want := range map[string]string{"pod-a": "a", "pod-b": "", "pod-gone": "", "": ""} {
		// A user leaves the tag out, a kubelet does not.
		if got := p.credentials(uid, "example.test/private").GetUsername(); got != want {
			t.Errorf("pod %q pulls as %q, want %q", uid, got, want)
		}
	}
	p.remember("pod-a", pullOf("example.test/private", ""))
	if p.credentials("pod-a", "example.test/private") != nil {
		t.Error("credentials are used that the last pull did without")
	}
	p.remember("pod-a", pullOf("example.test/private", "a"))
	o.dropSandbox("a") // by somebody else than a client of this router
	recorded(t, o.addSandbox("c", "runc", handler.Attempt{}, b))
	p.made(o, "pod-c", "c")
	if p.credentials("pod-a", "example.test/private") != nil || len(p.pods) != 2 {
		t.Errorf("credentials of a pod that is gone are kept: %d pods", len(p.pods))
	}
}

// Changes elsewhere must not keep a backend's pods from being taken over.
func TestReconcileEndsAlthoughChangesNeverPause(t *testing.T) {
	o := newOwners()
	other := routertest.New("other")
	asked := 0
	b := &inventoried{routertest.New("one"), func() []handler.Owned {
		if asked++; asked <= 3 {
			recorded(t, o.addSandbox(string(rune('a'+asked)), "runc", handler.Attempt{}, other))
		}
		return []handler.Owned{owned("5b")}
	}}
	if err := o.reconcile(b); err != nil {
		t.Fatal(err)
	}
	if o.sandboxes.get("5b") == nil {
		t.Error("its pod has no owner")
	}
}
