package router

import (
	"context"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// images routes calls about images: by the handler that the image names, else
// by the default one.
type images struct {
	routes routes
}

func (i images) ListImages(ctx context.Context, req *runtimeapi.ListImagesRequest) (*runtimeapi.ListImagesResponse, error) {
	return byImage(ctx, i.routes, req.GetFilter().GetImage(), req, Backend.ListImages)
}

func (i images) StreamImages(req *runtimeapi.StreamImagesRequest, to grpc.ServerStreamingServer[runtimeapi.StreamImagesResponse]) error {
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

func (i images) ImageStatus(ctx context.Context, req *runtimeapi.ImageStatusRequest) (*runtimeapi.ImageStatusResponse, error) {
	return byImage(ctx, i.routes, req.GetImage(), req, Backend.ImageStatus)
}

func (i images) PullImage(ctx context.Context, req *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, error) {
	return byImage(ctx, i.routes, req.GetImage(), req, Backend.PullImage)
}

func (i images) RemoveImage(ctx context.Context, req *runtimeapi.RemoveImageRequest) (*runtimeapi.RemoveImageResponse, error) {
	return byImage(ctx, i.routes, req.GetImage(), req, Backend.RemoveImage)
}

func (i images) ImageFsInfo(ctx context.Context, req *runtimeapi.ImageFsInfoRequest) (*runtimeapi.ImageFsInfoResponse, error) {
	return byImage(ctx, i.routes, nil, req, Backend.ImageFsInfo)
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
