package remote

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

var imageLists = listingOf(runtimeapi.ImageService_ListImages_FullMethodName, runtimeapi.ImageService_StreamImages_FullMethodName, &runtimeapi.ListImagesResponse{})

// imageNames is the path to the name of a handler in a list of images.
var imageNames = []protowire.Number{itemsField, 7, specHandlerField}

// images passes on calls about the daemon's images.
type images struct {
	*caller
	names *names
}

func (i images) ListImages(ctx context.Context, req *runtimeapi.ListImagesRequest) (*runtimeapi.ListImagesResponse, error) {
	f, err := i.whole(ctx, imageLists, i.list(req.GetFilter(), req))
	if err != nil {
		return nil, err
	}
	resp := &runtimeapi.ListImagesResponse{}
	i.names.rename(f, imageNames).carry(resp)
	return resp, nil
}

func (i images) StreamImages(req *runtimeapi.StreamImagesRequest, to grpc.ServerStreamingServer[runtimeapi.StreamImagesResponse]) error {
	return i.pieces(to.Context(), imageLists, i.list(req.GetFilter(), req), func(f frame) error {
		m := &runtimeapi.StreamImagesResponse{}
		i.names.rename(f, imageNames).carry(m)
		return to.Send(m)
	})
}

// list is a request with the daemon's name of a handler. A filter that this
// berth knows only in part goes on whole, and so does the rest of asked.
func (i images) list(f *runtimeapi.ImageFilter, asked proto.Message) *runtimeapi.ListImagesRequest {
	if image := f.GetImage(); i.names.spec(image) != image {
		f = proto.CloneOf(f)
		f.Image = i.names.spec(image)
	}
	return alike(&runtimeapi.ListImagesRequest{Filter: f}, asked)
}

// imageStatusNames is the path to the name of a handler in an image's status.
var imageStatusNames = [][]protowire.Number{{1, 7, specHandlerField}}

func (i images) ImageStatus(ctx context.Context, req *runtimeapi.ImageStatusRequest) (*runtimeapi.ImageStatusResponse, error) {
	if image := req.GetImage(); i.names.spec(image) != image {
		req = proto.CloneOf(req)
		req.Image = i.names.spec(image)
	}
	return passRenamed[runtimeapi.ImageStatusResponse](ctx, i.caller, i.names, imageStatusNames, runtimeapi.ImageService_ImageStatus_FullMethodName, req)
}

func (i images) PullImage(ctx context.Context, req *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, error) {
	if image := req.GetImage(); i.names.spec(image) != image {
		req = proto.CloneOf(req)
		req.Image = i.names.spec(image)
	}
	return read[runtimeapi.PullImageResponse](ctx, i.caller, runtimeapi.ImageService_PullImage_FullMethodName, req)
}

func (i images) RemoveImage(ctx context.Context, req *runtimeapi.RemoveImageRequest) (*runtimeapi.RemoveImageResponse, error) {
	if image := req.GetImage(); i.names.spec(image) != image {
		req = proto.CloneOf(req)
		req.Image = i.names.spec(image)
	}
	return pass[runtimeapi.RemoveImageResponse](ctx, i.caller, runtimeapi.ImageService_RemoveImage_FullMethodName, req)
}

func (i images) ImageFsInfo(ctx context.Context, req *runtimeapi.ImageFsInfoRequest) (*runtimeapi.ImageFsInfoResponse, error) {
	return read[runtimeapi.ImageFsInfoResponse](ctx, i.caller, runtimeapi.ImageService_ImageFsInfo_FullMethodName, req)
}
