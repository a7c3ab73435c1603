package router_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/router"
	"github.com/berth-cri/berth/pkg/router/routertest"
)

// stored returns the images of one store.
func stored(t *testing.T, b *routertest.Backend) (names []string) {
	t.Helper()
	list := test.Value(b.ListImages(ctx(t), &runtimeapi.ListImagesRequest{}))(t)
	for _, image := range list.GetImages() {
		names = append(names, image.GetId())
	}
	return names
}

func (n *node) removeImage(t *testing.T, name string) error {
	_, err := n.images.RemoveImage(ctx(t), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: name}})
	return err
}

func TestImagesAreRemovedFromAllStores(t *testing.T) {
	one, two := two()
	n := serveReady(t, table(t, 1, "runc", ready("runc", one), ready("kata", two)), one, two)
	for _, name := range []string{"runc", "kata"} {
		test.Must(t, test.Err(n.pull(t, name)))
	}
	for range 2 {
		test.Check(t, n.removeImage(t, "busybox"))
	}
	if left := append(stored(t, one), stored(t, two)...); len(left) > 0 {
		t.Errorf("%v are left", left)
	}
}

func TestAStoreThatCannotRemoveAnImageIsNamed(t *testing.T) {
	one, two := two()
	two.Fail = failing("RemoveImage", status.Error(codes.FailedPrecondition, "it is in use"))
	n := serveReady(t, table(t, 1, "runc", ready("runc", one), ready("kata", two)), one, two)
	err := n.removeImage(t, "busybox")
	wantCode(t, err, codes.FailedPrecondition)
	if !strings.Contains(err.Error(), `backend "two": it is in use`) {
		t.Error(err)
	}
}

// For a caller without a handler, an image is present if all stores with pods have it.
func TestImagesAreThereInEveryUsedStoreOnly(t *testing.T) {
	one, two := two()
	n := serveReady(t, table(t, 1, "runc", ready("runc", one), ready("kata", two)), one, two)
	is := func(what string, want, verbose bool) {
		t.Helper()
		for v, want := range map[bool]bool{false: want, true: verbose} {
			got, err := n.images.ImageStatus(ctx(t), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: "busybox"}, Verbose: v})
			if err != nil || (got.GetImage() != nil) != want {
				t.Errorf("%s, verbose %v: %v, %v", what, v, got, err)
			}
		}
	}
	pull := func(name string) {
		t.Helper()
		test.Must(t, test.Err(n.pull(t, name)))
	}
	is("in no store", false, false)
	pull("kata")
	is("not in the default handler's store, without pods", false, true)
	n.run(t, "kata")
	is("in the only store with pods", true, true)
	n.run(t, "runc")
	is("in one of two stores with pods", false, true)
	n.registry.Swap(table(t, 2, "kata", ready("kata", two)))
	is("missing only in a store without a handler", true, true)
	n.registry.Swap(table(t, 3, "runc", ready("runc", one), ready("kata", two)))
	pull("runc")
	is("in both stores", true, true)
}

func TestAnEmptyListOfImagesIsNoMessage(t *testing.T) {
	one, two := two()
	n := serveReady(t, table(t, 1, "runc", ready("runc", one), ready("kata", two)), one, two)
	stream := test.Value(n.images.StreamImages(ctx(t), &runtimeapi.StreamImagesRequest{}))(t)
	if m, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("got %v, %v", m, err)
	}
}

// hesitant is an unresponsive store.
type hesitant struct{ *routertest.Backend }

func (hesitant) Responsive() bool { return false }

func TestStoresThatDoNotAnswerAreNotWaitedFor(t *testing.T) {
	one, two := two()
	asked := func(_ context.Context, rpc string) error {
		switch rpc {
		case "ImageStatus", "RemoveImage": // the list of images may be called: it returns the last known ones
			t.Errorf("%s was called at an unresponsive store", rpc)
		}
		return nil
	}
	n := serveReady[router.Backend](t, table(t, 1, "runc", ready("runc", one), ready("kata", hesitant{two})), one, hesitant{two})
	two.Fail = asked
	test.Must(t, test.Err(n.pull(t, "runc")))
	for _, name := range []string{"busybox", "absent"} {
		test.Check(t, test.Err(n.images.ImageStatus(ctx(t), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: name}})))
	}
	test.Check(t, test.Err(n.images.ListImages(ctx(t), &runtimeapi.ListImagesRequest{})))
	test.Check(t, n.removeImage(t, "busybox"))
}

func TestImagesOfOthersAreThereWithoutTheDefault(t *testing.T) {
	one, two := two()
	one.Fail = func(_ context.Context, rpc string) error {
		if rpc == "ImageStatus" || rpc == "ListImages" {
			return status.Error(codes.Unavailable, "away")
		}
		return nil
	}
	n := serveReady(t, table(t, 1, "runc", ready("runc", one), ready("kata", two)), one, two)
	test.Must(t, test.Err(n.pull(t, "kata")))
	n.run(t, "kata")
	got, err := n.images.ImageStatus(ctx(t), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: "busybox"}})
	if err != nil || got.GetImage() == nil {
		t.Errorf("got %v, %v", got, err)
	}
	list, err := n.images.ListImages(ctx(t), &runtimeapi.ListImagesRequest{})
	if err != nil || len(list.GetImages()) != 1 {
		t.Errorf("listed %v, %v", list, err)
	}
}

func TestEventsEndWhenThereIsAnotherBackend(t *testing.T) {
	one, two := two()
	n := serveReady(t, table(t, 1, "runc", ready("runc", one)), one)
	stream := n.subscribe(t, one)
	n.router.Adopt(one)
	want := n.run(t, "")
	if event, err := stream.Recv(); err != nil || event.GetContainerId() != want {
		t.Fatalf("adopting the same backend again: %v, %v", event, err)
	}
	n.router.Adopt(two)
	wantCode(t, test.Err(stream.Recv()), codes.Unavailable)
}

// The images of an unresponsive store are listed, so their removal fails.
func TestAnImageOfAStoreThatDoesNotAnswerIsNotRemoved(t *testing.T) {
	one, two := two()
	n := serveReady[router.Backend](t, table(t, 1, "runc", ready("runc", one), ready("kata", hesitant{two})), one, hesitant{two})
	for _, name := range []string{"runc", "kata"} {
		test.Must(t, test.Err(n.pull(t, name)))
	}
	err := n.removeImage(t, "busybox")
	wantCode(t, err, codes.Unavailable)
	if !strings.Contains(err.Error(), `backend "two"`) || len(stored(t, one)) > 0 {
		t.Errorf("%v; left: %v", err, stored(t, one))
	}
	test.Check(t, n.removeImage(t, "another"))
}

// RemoveImage is not sent to a store that hangs but is not marked as unresponsive
// yet: it might remove the image much later.
func TestAStoreThatStandsStillIsNotAskedToRemove(t *testing.T) {
	one, two := two()
	n := serveReady(t, table(t, 1, "runc", ready("runc", one), ready("kata", two)), one, two)
	for _, name := range []string{"runc", "kata"} {
		test.Must(t, test.Err(n.pull(t, name)))
	}
	two.Fail = func(c context.Context, rpc string) error {
		switch rpc {
		case "ImageStatus":
			<-c.Done()
			return c.Err()
		case "RemoveImage":
			t.Error("RemoveImage was sent to the store that hangs")
		}
		return nil
	}
	wantCode(t, n.removeImage(t, "busybox"), codes.Unavailable)
	if left := stored(t, one); len(left) > 0 {
		t.Errorf("%v are left in the other store", left)
	}
}

// Stores are called concurrently: here, neither answers before both are called.
func TestStoresAreAskedTogether(t *testing.T) {
	one, two := two()
	for rpc, call := range map[string]func(*node) error{
		"ListImages": func(n *node) error {
			_, err := n.images.ListImages(ctx(t), &runtimeapi.ListImagesRequest{})
			return err
		},
		"ImageFsInfo": func(n *node) error {
			fs, err := n.images.ImageFsInfo(ctx(t), &runtimeapi.ImageFsInfoRequest{})
			if err == nil && (len(fs.GetImageFilesystems()) != 2 || fs.GetImageFilesystems()[0].GetFsId().GetMountpoint() != "one") {
				t.Errorf("file systems %v", fs)
			}
			return err
		},
	} {
		asked := make(chan bool, 2)
		both := make(chan struct{})
		wait := func(c context.Context, called string) error {
			if called != rpc {
				return nil
			}
			if asked <- true; len(asked) == 2 {
				close(both)
			}
			select {
			case <-both:
				return nil
			case <-c.Done():
				return c.Err()
			}
		}
		one.Fail, two.Fail = wait, wait
		test.Checkf(t, call(serveReady(t, table(t, 1, "runc", ready("runc", one), ready("kata", two)), one, two)), "%s", rpc)
	}
}

func TestFileSystemsOfImagesWithoutTheDefault(t *testing.T) {
	one, two := two()
	one.Fail = failing("ImageFsInfo", status.Error(codes.Unavailable, "away"))
	n := serveReady(t, table(t, 1, "runc", ready("runc", one), ready("kata", two)), one, two)
	fs, err := n.images.ImageFsInfo(ctx(t), &runtimeapi.ImageFsInfoRequest{})
	if err != nil || len(fs.GetImageFilesystems()) != 1 {
		t.Errorf("got %v, %v", fs, err)
	}
	two.Fail = one.Fail
	wantCode(t, test.Err(n.images.ImageFsInfo(ctx(t), &runtimeapi.ImageFsInfoRequest{})), codes.Unavailable)
}

// Some stores ignore a filter.
func TestAListOfImagesByName(t *testing.T) {
	one, two := two()
	n := serveReady(t, table(t, 1, "runc", ready("runc", one), ready("kata", two)), one, two)
	test.Must(t, test.Err(n.pull(t, "kata")))
	for name, want := range map[string]int{"busybox": 1, "another": 0} {
		list, err := n.images.ListImages(ctx(t), &runtimeapi.ListImagesRequest{Filter: &runtimeapi.ImageFilter{Image: &runtimeapi.ImageSpec{Image: name}}})
		if err != nil || len(list.GetImages()) != want {
			t.Errorf("%s: %v, %v", name, list, err)
		}
	}
}

// A pull goes to the store of its pod's live sandbox, also if the sandbox is older than the router.
func TestPullsGoToTheirPodsStore(t *testing.T) {
	one, two := two()
	made := func(n *node, uid string) string {
		config := &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Uid: uid}}
		resp := test.Value(n.RunPodSandbox(ctx(t), &runtimeapi.RunPodSandboxRequest{RuntimeHandler: "kata", Config: config}))(t)
		return resp.GetPodSandboxId()
	}
	goes := func(n *node, what, uid string, want *routertest.Backend) {
		t.Helper()
		_, err := n.images.PullImage(ctx(t), &runtimeapi.PullImageRequest{
			Image:         &runtimeapi.ImageSpec{Image: what},
			SandboxConfig: &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Uid: uid}},
		})
		if err != nil || !slices.Contains(stored(t, want), what) {
			t.Errorf("%s: %v; it is not in %s", what, err, want.ID())
		}
	}
	n := serveReady(t, table(t, 1, "runc", ready("runc", one), ready("kata", two)), one, two)
	first := made(n, "p")
	goes(n, "of-a-pod", "p", two)
	goes(n, "of-no-pod", "gone", one)
	n = serveReady(t, table(t, 1, "runc", ready("runc", two), ready("kata", one)), one, two)
	goes(n, "after-a-restart", "p", two)
	two.Die(first)
	made(n, "p")
	goes(n, "of-a-new-sandbox", "p", one)
}
