package containerdapi

import (
	"context"
	"fmt"
	"strings"
	"testing"

	contentapi "github.com/containerd/containerd/api/services/content/v1"
	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	leasesapi "github.com/containerd/containerd/api/services/leases/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/image/disk"
	"github.com/berth-cri/berth/pkg/engine/shim"
)

func full(short string) string {
	service, method, _ := strings.Cut(short, "/")
	group, name, _ := strings.Cut(service, ".")
	if group == "health" {
		return "/grpc.health.v1.Health/" + method
	}
	return "/containerd.services." + group + ".v1." + name + "/" + method
}

func TestAllowed(t *testing.T) {
	for _, c := range []struct {
		method, namespace string
		to                Audience
		want              codes.Code
	}{
		{"images.Images/List", Namespace, Agents, codes.OK},
		{"images.Images/List", "default", Agents, codes.OK},
		{"images.Images/Create", Namespace, Agents, codes.OK},
		{"images.Images/Create", "default", Agents, codes.PermissionDenied},
		{"images.Images/Create", shim.Namespace, Agents, codes.PermissionDenied},
		{"content.Content/Write", shim.Namespace, Shims, codes.OK},
		{"content.Content/Write", "default", Shims, codes.PermissionDenied},
		{"leases.Leases/Create", "", Agents, codes.OK}, // the service refuses an empty namespace
		{"tasks.Tasks/Get", Namespace, Agents, codes.OK},
		{"tasks.Tasks/Kill", Namespace, Agents, codes.PermissionDenied},
		{"tasks.Tasks/Kill", Namespace, Shims, codes.PermissionDenied},
		{"containers.Containers/Delete", Namespace, Agents, codes.PermissionDenied},
		{"snapshots.Snapshots/View", Namespace, Agents, codes.PermissionDenied},
		{"diff.Diff/Apply", Namespace, Agents, codes.PermissionDenied},
		{"events.Events/Subscribe", "default", Agents, codes.OK},
		{"events.Events/Forward", Namespace, Agents, codes.PermissionDenied},
		{"events.Events/Forward", Namespace, Shims, codes.OK},
		{"sandbox.Store/List", Namespace, Agents, codes.Unimplemented},
		{"tasks.Tasks/Later", Namespace, Agents, codes.Unimplemented},
	} {
		own := c.namespace == Namespace || c.to == Shims && c.namespace == shim.Namespace
		test.Equal(t, fmt.Sprintf("%s in %q for %d", c.method, c.namespace, c.to), status.Code(allowed(full(c.method), c.namespace, own, c.to)), c.want)
	}
}

func TestNamespaceOfTheStore(t *testing.T) {
	for _, c := range []struct {
		asked string
		to    Audience
		own   bool
	}{
		{Namespace, Agents, true},
		{Namespace, Shims, true},
		{shim.Namespace, Shims, true},
		{disk.Namespace, Agents, false},
		{"default", Agents, false},
		{"default", Shims, false},
	} {
		ctx := metadata.NewIncomingContext(context.Background(), metadata.Pairs(namespaces.GRPCHeader, c.asked))
		ctx = test.Value(newGate(c.to).admit(ctx, full("images.Images/List")))(t)
		test.Equal(t, fmt.Sprintf("namespace %q for %d is the store's", c.asked, c.to), test.Value(ours(ctx))(t), c.own)
	}
	ctx := test.Value(newGate(Agents).admit(context.Background(), full("images.Images/List")))(t)
	test.Fails(t, test.Err(ours(ctx)), "a call without a namespace got one")
}

func TestWhole(t *testing.T) {
	for name, c := range map[string]struct {
		req  any
		want codes.Code
	}{
		"an image":             {&imagesapi.CreateImageRequest{Image: &imagesapi.Image{Target: &types.Descriptor{}}}, codes.OK},
		"no image":             {&imagesapi.CreateImageRequest{}, codes.InvalidArgument},
		"no target":            {&imagesapi.CreateImageRequest{Image: &imagesapi.Image{}}, codes.InvalidArgument},
		"no image to change":   {&imagesapi.UpdateImageRequest{}, codes.InvalidArgument},
		"no content to change": {&contentapi.UpdateRequest{}, codes.InvalidArgument},
		"no resource":          {&leasesapi.AddResourceRequest{}, codes.InvalidArgument},
		"no resource to drop":  {&leasesapi.DeleteResourceRequest{}, codes.InvalidArgument},
		"any other request":    {&imagesapi.ListImagesRequest{}, codes.OK},
	} {
		test.Equal(t, name, status.Code(checkFields(c.req)), c.want)
	}
}

func TestAPIVersion(t *testing.T) {
	for _, c := range []struct{ api, own, want string }{
		{"2.4.2", "0.1.0", "v2.4.2+berth.0.1.0"},
		{"v2.4.2+unknown", "0.1.0-dev+abc", "v2.4.2+berth.0.1.0-dev.abc"},
	} {
		test.Equal(t, fmt.Sprintf("%s, %s", c.api, c.own), apiVersion(c.api, c.own), c.want)
	}
}
