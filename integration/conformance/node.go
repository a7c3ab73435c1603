package conformance

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/patience"
	"github.com/berth-cri/berth/integration/testbed"
)

// node is a target whose Busybox image was pulled.
type node struct {
	Target
	// imageID is what PullImage answered for Image.Busybox.
	imageID string
	// checks has all checks by Group/name.
	checks map[string]check
}

func newNode(t *testing.T, target Target) *node {
	t.Helper()
	if target.Runtime == nil || target.Images == nil || target.Ran == nil {
		t.Fatal("conformance: Runtime, Images and Ran must be set")
	}
	if target.Wait == 0 {
		target.Wait = time.Minute
	}
	n := &node{Target: target}
	n.imageID = n.pull(t, target.Image.Busybox)
	return n
}

// call gives every RPC a deadline, so that a hanging daemon fails one check and
// not the whole run.
func call(t *testing.T) context.Context {
	t.Helper()
	return callWithin(t, 2*time.Minute)
}

func callWithin(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience.Of(d))
	t.Cleanup(cancel)
	return ctx
}

func (n *node) pull(t *testing.T, ref string) string {
	t.Helper()
	r, err := n.Images.PullImage(call(t), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}})
	must(t, err, "PullImage "+ref)
	if r.GetImageRef() == "" {
		t.Fatalf("PullImage %s: empty image_ref", ref)
	}
	return r.GetImageRef()
}

func (n *node) imageStatus(t *testing.T, ref string) *runtimeapi.Image {
	t.Helper()
	r, err := n.Images.ImageStatus(call(t), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: ref}})
	must(t, err, "ImageStatus "+ref)
	return r.GetImage()
}

func (n *node) listSandboxes(t *testing.T, f *runtimeapi.PodSandboxFilter) []*runtimeapi.PodSandbox {
	t.Helper()
	r, err := n.Runtime.ListPodSandbox(call(t), &runtimeapi.ListPodSandboxRequest{Filter: f})
	must(t, err, "ListPodSandbox")
	return r.GetItems()
}

func (n *node) listContainers(t *testing.T, f *runtimeapi.ContainerFilter) []*runtimeapi.Container {
	t.Helper()
	r, err := n.Runtime.ListContainers(call(t), &runtimeapi.ListContainersRequest{Filter: f})
	must(t, err, "ListContainers")
	return r.GetContainers()
}

// must ends the check if a step has failed.
func must(t *testing.T, err error, step string) {
	t.Helper()
	testbed.Mustf(t, err, "%s", step)
}

// mustFail ends the check unless err has one of the codes; without codes any error passes.
func mustFail(t *testing.T, err error, step string, want ...codes.Code) {
	t.Helper()
	if err == nil {
		t.Fatalf("%s succeeded, want an error %v", step, want)
	}
	got := status.Code(err)
	for _, c := range want {
		if c == got {
			return
		}
	}
	if len(want) > 0 {
		t.Fatalf("%s: code %v, want %v: %v", step, got, want, err)
	}
}

// rejects is mustFail, but other daemons than berth may return any code.
func (n *node) rejects(t *testing.T, err error, step string, want ...codes.Code) {
	t.Helper()
	if !n.Berth {
		want = nil
	}
	mustFail(t, err, step, want...)
	if clause := saidTwice(status.Convert(err).Message()); n.Berth && clause != "" {
		t.Errorf("%s: the message has %q twice: %v", step, clause, err)
	}
}

// saidTwice returns a part of an error that the wrapped error repeats, or "".
func saidTwice(message string) string {
	clauses := strings.Split(message, ": ")
	for i, c := range clauses {
		if slices.Contains(clauses[i+1:], c) {
			return c
		}
	}
	return ""
}

// eventually polls until ok returns true. If that takes too long, the check fails with what.
func (n *node) eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	within(t, n.Wait, what, ok)
}

// within is eventually with another time limit.
func within(t *testing.T, bound time.Duration, what string, ok func() bool) {
	t.Helper()
	testbed.Eventually(t, bound, func() error {
		if !ok() {
			return errors.New("still waiting for: " + what)
		}
		return nil
	})
}

// maxReceive lets one call receive more than gRPC's 4 MiB.
func maxReceive(bytes int) grpc.CallOption { return grpc.MaxCallRecvMsgSize(bytes) }

// touch creates an empty file, which containers wait for.
func touch(t *testing.T, path string) {
	t.Helper()
	must(t, os.WriteFile(path, nil, 0o644), "touch")
}
