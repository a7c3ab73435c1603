package router

import (
	"context"
	"slices"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/router/imagestores"
)

// images routes calls about images. A backend has one store of images. Where a
// call names a handler it goes to that handler's store; where it does not, and
// there are several, a pull goes to the store of its pod and everything else is
// about all of them.
type images struct {
	routes routes
	owners *owners
}

// ListImages lists what is on the node's disks, also in stores that do not answer
// as far as they are known: a kubelet forgets about an image that is not listed
// which secrets it takes to use it. A filter is applied here, because there are
// stores that take no notice of it.
func (i images) ListImages(ctx context.Context, req *runtimeapi.ListImagesRequest) (*runtimeapi.ListImagesResponse, error) {
	wanted := req.GetFilter().GetImage()
	others := i.others(wanted)
	if len(others) == 0 {
		return byImage(ctx, i.routes, wanted, req, Backend.ListImages)
	}
	whole := &runtimeapi.ListImagesRequest{}
	addUnread(whole, req)
	if f := req.GetFilter(); len(f.ProtoReflect().GetUnknown()) > 0 {
		whole.Filter = &runtimeapi.ImageFilter{}
		addUnread(whole.GetFilter(), f)
	}
	all, err := askStores(ctx, i, others, whole, Backend.ListImages)
	if err != nil {
		return nil, err
	}
	resp := &runtimeapi.ListImagesResponse{}
	for at, a := range all {
		all[at] = imagestores.Understood(a)
		addUnread(resp, all[at])
	}
	resp.Images = imagestores.WithName(imagestores.Union(all), wanted.GetImage())
	return resp, nil
}

func (i images) StreamImages(req *runtimeapi.StreamImagesRequest, to grpc.ServerStreamingServer[runtimeapi.StreamImagesResponse]) error {
	list, err := i.ListImages(to.Context(), alike(&runtimeapi.ListImagesRequest{Filter: req.GetFilter()}, req))
	return stream(list, err, to)
}

// ImageStatus of a call without a handler has an image only if every store has it that pods run from: a
// kubelet makes a pod's sandbox first, and then pulls what is not there into the store of the pod. A store
// that does not answer is left out, because it cannot run the image either. A verbose call, which people
// make, gets the image of the first store that has it, the default handler's before others.
func (i images) ImageStatus(ctx context.Context, req *runtimeapi.ImageStatusRequest) (*runtimeapi.ImageStatusResponse, error) {
	others := i.others(req.GetImage())
	if len(others) == 0 {
		return byImage(ctx, i.routes, req.GetImage(), req, Backend.ImageStatus)
	}
	own, err := i.ownStatus(ctx, req)
	if err != nil && !away(ctx, err) {
		return nil, err
	}
	ownCounts := req.GetVerbose() || i.used(i.routes.standard().Backend)
	if !req.GetVerbose() {
		others = slices.DeleteFunc(others, func(b Backend) bool { return !i.used(b) })
	}
	answers := askPrompt(ctx, others, req, Backend.ImageStatus)
	var all []*runtimeapi.ImageStatusResponse
	if err == nil && (ownCounts || len(answers) == 0) {
		all = append(all, own)
	}
	for _, s := range answers {
		all = append(all, s.answer)
	}
	if len(all) == 0 {
		return nil, err
	}
	return imagestores.Status(all, req.GetVerbose()), nil
}

// ownStatus asks the default handler's store, for as long as pods of others can
// wait for it.
func (i images) ownStatus(ctx context.Context, req *runtimeapi.ImageStatusRequest) (*runtimeapi.ImageStatusResponse, error) {
	ctx, to, err := i.routes.forImage(ctx, "")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return to.Backend.ImageStatus(ctx, req)
}

// PullImage goes to the store of the pod that the image is for, and for its handler: most
// kubelets do not name that.
func (i images) PullImage(ctx context.Context, req *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, error) {
	name, uid := req.GetImage().GetRuntimeHandler(), req.GetSandboxConfig().GetMetadata().GetUid()
	var owner *Owner
	if name == "" && uid != "" {
		owner = i.owners.ofPod(uid)
	}
	if owner == nil {
		return byImage(ctx, i.routes, req.GetImage(), req, Backend.PullImage)
	}
	ctx, err := i.routes.asImage(ctx, owner.Handler)
	if err != nil {
		return nil, err
	}
	resp, err := owner.Backend.PullImage(ctx, req)
	return resp, named(owner.Handler, err)
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
		addUnread(merged, a)
		merged.ImageFilesystems = imagestores.AppendFilesystems(merged.ImageFilesystems, a.GetImageFilesystems())
		merged.ContainerFilesystems = imagestores.AppendFilesystems(merged.ContainerFilesystems, a.GetContainerFilesystems())
	}
	return merged, nil
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
