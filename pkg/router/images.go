package router

import (
	"context"
	"slices"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/router/imagestores"
)

// images routes calls about images. Each backend has one image store. A call that names a handler
// goes to that handler's store. Without a handler, and with several stores, a pull goes to the
// store of its pod and every other call covers all stores.
type images struct {
	routes routes
	owners *owners
}

// ListImages lists the images of all stores, and the last known ones of stores that do not answer:
// a kubelet forgets which secrets an unlisted image requires. The filter is applied here, because
// some stores ignore it.
func (i images) ListImages(ctx context.Context, req *runtimeapi.ListImagesRequest) (*runtimeapi.ListImagesResponse, error) {
	wanted := req.GetFilter().GetImage()
	others := i.others(wanted)
	if len(others) == 0 {
		return byImage(ctx, i.routes, wanted, req, Backend.ListImages)
	}
	whole := &runtimeapi.ListImagesRequest{}
	addUnknown(whole, req)
	if f := req.GetFilter(); len(f.ProtoReflect().GetUnknown()) > 0 {
		whole.Filter = &runtimeapi.ImageFilter{}
		addUnknown(whole.GetFilter(), f)
	}
	all, err := askStores(ctx, i, others, whole, Backend.ListImages)
	if err != nil {
		return nil, err
	}
	resp := &runtimeapi.ListImagesResponse{}
	for at, a := range all {
		all[at] = imagestores.Decoded(a)
		addUnknown(resp, all[at])
	}
	resp.Images = imagestores.WithName(imagestores.Union(all), wanted.GetImage())
	return resp, nil
}

func (i images) StreamImages(req *runtimeapi.StreamImagesRequest, to grpc.ServerStreamingServer[runtimeapi.StreamImagesResponse]) error {
	list, err := i.ListImages(to.Context(), alike(&runtimeapi.ListImagesRequest{Filter: req.GetFilter()}, req))
	return stream(list, err, to)
}

// ImageStatus without a handler returns an image only if every store that pods run from has it:
// otherwise a kubelet would not pull it into the store of its pod. The pod's store is among them,
// because its sandbox exists before the call. A store that does not answer is left out, because it
// cannot run the image either. A verbose call, which people make, returns the image from the first
// store that has it, the default handler's before others.
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
	answers := askResponsive(ctx, others, req, Backend.ImageStatus)
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

// ownStatus asks the default handler's store, within optionalTimeout because pods of other stores
// wait for it.
func (i images) ownStatus(ctx context.Context, req *runtimeapi.ImageStatusRequest) (*runtimeapi.ImageStatusResponse, error) {
	ctx, to, err := i.routes.forImage(ctx, "")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, optionalTimeout)
	defer cancel()
	return to.Backend.ImageStatus(ctx, req)
}

// PullImage goes to the store of the pod that the image is for, under the handler of the pod: most
// kubelets do not name a handler.
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

// ImageFsInfo returns the filesystems of all stores, the default handler's first: a kubelet uses
// the first as the node's.
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
		addUnknown(merged, a)
		merged.ImageFilesystems = imagestores.AppendFilesystems(merged.ImageFilesystems, a.GetImageFilesystems())
		merged.ContainerFilesystems = imagestores.AppendFilesystems(merged.ContainerFilesystems, a.GetContainerFilesystems())
	}
	return merged, nil
}

// byImage routes a call to the image store of a handler. Errors name the handler only if the
// request did.
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
