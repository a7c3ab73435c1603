package router

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// supply gets images into the store of a backend that lacks them.
type supply struct {
	pulls  *pulls
	stores []Backend
	to     Backend
	// sandbox is the id, and config what a kubelet says of it.
	sandbox string
	config  *runtimeapi.PodSandboxConfig
}

// provide gets the images of a new container, those of its volumes too, into the
// store of its backend, if another store has them and this one does not: who
// asked whether they are there was told that they are. It returns the request to
// create the container with.
func (s supply) provide(ctx context.Context, req *runtimeapi.CreateContainerRequest) (*runtimeapi.CreateContainerRequest, error) {
	changed := req
	for at, spec := range imagesOf(req.GetConfig()) {
		ref, err := s.get(ctx, spec)
		if err != nil {
			return nil, err
		}
		if ref == "" || ref == spec.GetImage() {
			continue
		}
		if changed == req {
			changed = proto.CloneOf(req)
		}
		imagesOf(changed.GetConfig())[at].Image = ref
	}
	return changed, nil
}

// imagesOf are a container's own image and those of its volumes.
func imagesOf(c *runtimeapi.ContainerConfig) []*runtimeapi.ImageSpec {
	var all []*runtimeapi.ImageSpec
	if c.GetImage() != nil {
		all = append(all, c.GetImage())
	}
	for _, m := range c.GetMounts() {
		if m.GetImage() != nil {
			all = append(all, m.GetImage())
		}
	}
	return all
}

// get pulls an image that only other stores have. It returns what the store calls
// it, or nothing if there is nothing to do.
func (s supply) get(ctx context.Context, spec *runtimeapi.ImageSpec) (string, error) {
	if spec.GetImage() == "" {
		return "", nil
	}
	status := &runtimeapi.ImageStatusRequest{Image: spec}
	own, err := s.to.ImageStatus(ctx, status)
	if err != nil || present(own) {
		return "", nil // what is wrong with the store is said by the creation
	}
	others := slices.DeleteFunc(slices.Clone(s.stores), func(b Backend) bool { return b.ID() == s.to.ID() })
	for _, answer := range askPrompt(ctx, others, status, Backend.ImageStatus) {
		if !present(answer.answer) {
			continue
		}
		image := understood(answer.answer).GetImage()
		name := exact(spec, image)
		if name == "" {
			continue
		}
		ref, err := s.pull(ctx, spec, name, image)
		if err != nil {
			s.pulls.lacks(s.sandbox, s.to, slices.Concat([]string{spec.GetImage(), spec.GetUserSpecifiedImage(), image.GetId()}, image.GetRepoTags(), image.GetRepoDigests()))
		}
		return ref, err
	}
	return "", nil
}

// pull pulls an image of another store by a name.
func (s supply) pull(ctx context.Context, spec *runtimeapi.ImageSpec, name string, image *runtimeapi.Image) (string, error) {
	req := &runtimeapi.PullImageRequest{
		Image:         proto.CloneOf(spec),
		Auth:          s.pulls.credentials(s.config.GetMetadata().GetUid(), name),
		SandboxConfig: s.config,
	}
	req.Image.Image = name
	pulled, err := s.to.PullImage(ctx, req)
	if err != nil {
		return "", fmt.Errorf("image %s is only in the image store of another handler, and pulling it for this one failed; the kubelet's next attempt pulls it itself: %w", name, err)
	}
	// What was asked for by an id is this image, whatever its name means by now.
	if isID(spec.GetImage()) && bareID(pulled.GetImageRef()) != bareID(image.GetId()) {
		return "", fmt.Errorf("image %s is only in the image store of another handler, and its name %s now refers to another image in the registry; the kubelet's next attempt pulls that: %w",
			image.GetId(), name, errdefs.ErrFailedPrecondition)
	}
	return pulled.GetImageRef(), nil
}

// exact is the name by which an image of another store can be pulled: by its
// digest if it has one, because tags move; else as the user calls it. Empty if it
// has no name. Pure.
func exact(spec *runtimeapi.ImageSpec, image *runtimeapi.Image) string {
	user := spec.GetUserSpecifiedImage()
	if user == "" && !isID(spec.GetImage()) {
		user = spec.GetImage()
	}
	// One of the user's own repository, for which the pod has the secrets.
	for _, digest := range image.GetRepoDigests() {
		if user != "" && repository(digest) == repository(user) {
			return digest
		}
	}
	names := slices.Concat(image.GetRepoDigests(), []string{user}, image.GetRepoTags())
	if at := slices.IndexFunc(names, func(name string) bool { return name != "" }); at >= 0 {
		return names[at]
	}
	return ""
}

// isID says whether an image is called by an id.
func isID(s string) bool {
	digits := bareID(s)
	return len(digits) == fullID && strings.Trim(digits, "0123456789abcdef") == ""
}
