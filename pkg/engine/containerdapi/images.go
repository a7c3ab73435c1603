package containerdapi

import (
	"context"

	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/pkg/oci"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

type imageService struct {
	imagesapi.UnimplementedImagesServer
	store images.Store
}

func (s *imageService) Get(ctx context.Context, r *imagesapi.GetImageRequest) (*imagesapi.GetImageResponse, error) {
	img, err := s.store.Get(ctx, r.GetName())
	if err != nil {
		return nil, err
	}
	return &imagesapi.GetImageResponse{Image: imageMessage(img)}, nil
}

func (s *imageService) List(ctx context.Context, r *imagesapi.ListImagesRequest) (*imagesapi.ListImagesResponse, error) {
	all, err := s.store.List(ctx, r.GetFilters()...)
	if err != nil {
		return nil, err
	}
	resp := &imagesapi.ListImagesResponse{}
	for _, img := range all {
		resp.Images = append(resp.Images, imageMessage(img))
	}
	return resp, nil
}

func (s *imageService) Create(ctx context.Context, r *imagesapi.CreateImageRequest) (*imagesapi.CreateImageResponse, error) {
	img, err := s.store.Create(ctx, imageOf(r.GetImage()))
	if err != nil {
		return nil, err
	}
	return &imagesapi.CreateImageResponse{Image: imageMessage(img)}, nil
}

func (s *imageService) Update(ctx context.Context, r *imagesapi.UpdateImageRequest) (*imagesapi.UpdateImageResponse, error) {
	img, err := s.store.Update(ctx, imageOf(r.GetImage()), r.GetUpdateMask().GetPaths()...)
	if err != nil {
		return nil, err
	}
	return &imagesapi.UpdateImageResponse{Image: imageMessage(img)}, nil
}

func (s *imageService) Delete(ctx context.Context, r *imagesapi.DeleteImageRequest) (*emptypb.Empty, error) {
	var opts []images.DeleteOpt
	if r.GetSync() {
		opts = append(opts, images.SynchronousDelete())
	}
	if r.GetTarget() != nil {
		target := oci.DescriptorFromProto(r.GetTarget())
		opts = append(opts, images.DeleteTarget(&target))
	}
	if err := s.store.Delete(ctx, r.GetName(), opts...); err != nil {
		return nil, err
	}
	return &emptypb.Empty{}, nil
}

func imageMessage(img images.Image) *imagesapi.Image {
	return &imagesapi.Image{
		Name: img.Name, Labels: img.Labels, Target: oci.DescriptorToProto(img.Target),
		CreatedAt: timestamppb.New(img.CreatedAt), UpdatedAt: timestamppb.New(img.UpdatedAt),
	}
}

func imageOf(m *imagesapi.Image) images.Image {
	return images.Image{Name: m.GetName(), Labels: m.GetLabels(), Target: oci.DescriptorFromProto(m.GetTarget())}
}
