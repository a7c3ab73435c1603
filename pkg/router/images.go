package router

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// images routes calls about images. A backend has one store of images. Where a
// call names a handler it goes to that handler's store; where it does not, and
// there are several, a pull goes to the store of its pod and everything else is
// about all of them.
type images struct {
	routes routes
	owners *owners
	pulls  *pulls
}

func (i images) ListImages(ctx context.Context, req *runtimeapi.ListImagesRequest) (*runtimeapi.ListImagesResponse, error) {
	if others := i.others(req.GetFilter().GetImage()); len(others) > 0 {
		all, err := askStores(ctx, i, others, req, Backend.ListImages)
		if unavailable(err) {
			if rest := askOthers(ctx, others, req, Backend.ListImages); len(rest) > 0 {
				return &runtimeapi.ListImagesResponse{Images: union(append(rest, &runtimeapi.ListImagesResponse{}))}, nil
			}
		}
		if err != nil {
			return nil, err
		}
		return &runtimeapi.ListImagesResponse{Images: union(all)}, nil
	}
	return byImage(ctx, i.routes, req.GetFilter().GetImage(), req, Backend.ListImages)
}

func (i images) StreamImages(req *runtimeapi.StreamImagesRequest, to grpc.ServerStreamingServer[runtimeapi.StreamImagesResponse]) error {
	if len(i.others(req.GetFilter().GetImage())) > 0 {
		whole, err := i.ListImages(to.Context(), &runtimeapi.ListImagesRequest{Filter: req.GetFilter()})
		if err != nil {
			return err
		}
		for _, part := range parts(whole.GetImages()) {
			if err := to.Send(&runtimeapi.StreamImagesResponse{Images: part}); err != nil {
				return err
			}
		}
		return nil
	}
	_, err := byImage(to.Context(), i.routes, req.GetFilter().GetImage(), req,
		func(b Backend, ctx context.Context, req *runtimeapi.StreamImagesRequest) (struct{}, error) {
			return struct{}{}, b.StreamImages(req, &imageStream{to, ctx})
		})
	return err
}

// imageStream carries the Definition that the call is routed by.
type imageStream struct {
	grpc.ServerStreamingServer[runtimeapi.StreamImagesResponse]
	ctx context.Context
}

func (s *imageStream) Context() context.Context { return s.ctx }

// ImageStatus tells of the first store that has the image, the default handler's
// before others: what is in any store need not be pulled by who does not know of
// stores, because a container gets its image from another one's registry if its
// own store lacks it.
func (i images) ImageStatus(ctx context.Context, req *runtimeapi.ImageStatusRequest) (*runtimeapi.ImageStatusResponse, error) {
	others := i.others(req.GetImage())
	if len(others) == 0 {
		return byImage(ctx, i.routes, req.GetImage(), req, Backend.ImageStatus)
	}
	own, err := byImage(ctx, i.routes, nil, req, Backend.ImageStatus)
	if err != nil && !unavailable(err) || err == nil && present(own) {
		return own, err
	}
	for _, answer := range askOthers(ctx, others, req, Backend.ImageStatus) {
		if present(answer) {
			return answer, nil
		}
		if own == nil {
			own = answer
		}
	}
	if own == nil {
		return nil, err
	}
	return own, nil
}

// present says whether an image is there. An image that nobody has read is.
func present(r *runtimeapi.ImageStatusResponse) bool {
	return r.GetImage() != nil || hasUnread(r, 1)
}

// PullImage goes to the store of the pod that the image is for. Who pulled what
// with which credentials is remembered for as long as the pod is there.
func (i images) PullImage(ctx context.Context, req *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, error) {
	others := i.others(req.GetImage())
	if len(others) == 0 {
		return byImage(ctx, i.routes, req.GetImage(), req, Backend.PullImage)
	}
	uid := req.GetSandboxConfig().GetMetadata().GetUid()
	owner := i.pulls.pod(ctx, i.owners, uid)
	if owner == nil {
		return byImage(ctx, i.routes, req.GetImage(), req, Backend.PullImage)
	}
	ctx, err := i.routes.asImage(ctx, owner.Handler)
	if err != nil {
		return nil, err
	}
	resp, err := owner.Backend.PullImage(ctx, req)
	if err == nil {
		i.pulls.remember(uid, req)
	}
	return resp, named(owner.Handler, err)
}

// RemoveImage removes the image from all stores, and fails if one cannot. A store
// that does not answer is not in lists either: what it has is listed, and to be
// removed, when it does.
func (i images) RemoveImage(ctx context.Context, req *runtimeapi.RemoveImageRequest) (*runtimeapi.RemoveImageResponse, error) {
	others := i.others(req.GetImage())
	if len(others) == 0 {
		return byImage(ctx, i.routes, req.GetImage(), req, Backend.RemoveImage)
	}
	resp, err := byImage(ctx, i.routes, nil, req, Backend.RemoveImage)
	failed := []error{absent(err)}
	for _, b := range others {
		if !prompt(b) {
			continue
		}
		_, err := b.RemoveImage(ctx, req)
		if unavailable(err) {
			continue
		}
		failed = append(failed, prefixed("backend \""+b.ID()+"\": ", absent(err)))
	}
	if err := errors.Join(failed...); err != nil {
		return nil, first(failed)
	}
	if resp == nil {
		resp = &runtimeapi.RemoveImageResponse{}
	}
	return resp, nil
}

// absent is err, unless it says that there is no such image.
func absent(err error) error {
	if err != nil && (status.Code(err) == codes.NotFound || errdefs.IsNotFound(err)) {
		return nil
	}
	return err
}

func first(all []error) error {
	for _, err := range all {
		if err != nil {
			return err
		}
	}
	return nil
}

// ImageFsInfo tells of the file systems of all stores, those of the default
// handler's first: a kubelet takes the first for the node's.
func (i images) ImageFsInfo(ctx context.Context, req *runtimeapi.ImageFsInfoRequest) (*runtimeapi.ImageFsInfoResponse, error) {
	others := i.others(nil)
	if len(others) == 0 {
		return byImage(ctx, i.routes, nil, req, Backend.ImageFsInfo)
	}
	all, err := askStores(ctx, i, others, req, Backend.ImageFsInfo)
	if err != nil {
		return nil, err
	}
	merged := &runtimeapi.ImageFsInfoResponse{}
	for _, a := range all {
		merged.ImageFilesystems = appendFilesystems(merged.ImageFilesystems, a.GetImageFilesystems())
		merged.ContainerFilesystems = appendFilesystems(merged.ContainerFilesystems, a.GetContainerFilesystems())
	}
	return merged, nil
}

// appendFilesystems adds those whose mount point is not there yet.
func appendFilesystems(to, more []*runtimeapi.FilesystemUsage) []*runtimeapi.FilesystemUsage {
	seen := map[string]bool{}
	for _, f := range to {
		seen[f.GetFsId().GetMountpoint()] = true
	}
	for _, f := range more {
		if !seen[f.GetFsId().GetMountpoint()] {
			to = append(to, f)
		}
	}
	return to
}

// others are the stores beside the default handler's, if a call is about all of
// them because it names no handler.
func (i images) others(image *runtimeapi.ImageSpec) []Backend {
	if image.GetRuntimeHandler() != "" {
		return nil
	}
	all := i.owners.all()
	if len(all) < 2 {
		return nil
	}
	main := i.routes.standard().Backend.ID()
	others := make([]Backend, 0, len(all)-1)
	for _, b := range all {
		if b.ID() != main {
			others = append(others, b)
		}
	}
	return others
}

// storePatience is how long a call waits for stores that it can do without.
const storePatience = 2 * time.Second

// askOthers asks several stores at once. One that does not answer in time, or
// with an error, is left out: its images are of no use while it does.
func askOthers[Q, R any, P interface{ *R }](ctx context.Context, others []Backend, req Q,
	call func(Backend, context.Context, Q) (P, error),
) []P {
	ctx, cancel := context.WithTimeout(ctx, storePatience)
	defer cancel()
	others = slices.DeleteFunc(slices.Clone(others), func(b Backend) bool { return !prompt(b) })
	answers, _ := askAll(ctx, others, func(ctx context.Context, b Backend) (P, error) {
		answer, err := call(b, ctx, req)
		if err != nil {
			return nil, nil
		}
		return answer, nil
	})
	return slices.DeleteFunc(answers, func(p P) bool { return p == nil })
}

// askStores asks the default handler's store, which has to answer, and others.
func askStores[Q, R any, P interface{ *R }](ctx context.Context, i images, others []Backend, req Q,
	call func(Backend, context.Context, Q) (P, error),
) ([]P, error) {
	routed, to, err := i.routes.forImage(ctx, "")
	if err != nil {
		return nil, err
	}
	first, err := call(to.Backend, routed, req)
	if err != nil {
		return nil, err
	}
	return append([]P{first}, askOthers(routed, others, req, call)...), nil
}

// byImage gives a call to the backend that has the images of a handler. Errors
// name the handler only if the caller did.
func byImage[Q, R any](ctx context.Context, r routes, image *runtimeapi.ImageSpec, req Q,
	call func(Backend, context.Context, Q) (R, error),
) (R, error) {
	name := image.GetRuntimeHandler()
	ctx, to, err := r.forImage(ctx, name)
	if err != nil {
		return *new(R), err
	}
	resp, err := call(to.Backend, ctx, req)
	return resp, named(name, err)
}
