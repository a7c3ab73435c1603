package router

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/router/imagestores"
)

// RemoveImage removes the image from all stores. A name may stand for different images in different
// stores: each of them is removed from all stores. An unresponsive store that is known to have the
// image fails the call, because the image stays listed and its space stays in use.
func (i images) RemoveImage(ctx context.Context, req *runtimeapi.RemoveImageRequest) (*runtimeapi.RemoveImageResponse, error) {
	others := i.others(req.GetImage())
	if len(others) == 0 {
		return byImage(ctx, i.routes, req.GetImage(), req, Backend.RemoveImage)
	}
	ctx, to, err := i.routes.forImage(ctx, "")
	if err != nil {
		return nil, err
	}
	if err := removeFrom(ctx, append([]Backend{to.Backend}, others...), req); err != nil {
		return nil, err
	}
	return &runtimeapi.RemoveImageResponse{}, nil
}

func removeFrom(ctx context.Context, stores []Backend, req *runtimeapi.RemoveImageRequest) error {
	name := req.GetImage().GetImage()
	found, unresponsive := map[string]string{}, map[string]bool{}
	for _, b := range stores {
		unresponsive[b.ID()] = true
	}
	for _, s := range askEach(ctx, nil, responsiveOf(stores), &runtimeapi.ImageStatusRequest{Image: req.GetImage()}, Backend.ImageStatus) {
		if s.err == nil {
			found[s.backend.ID()] = imagestores.Decoded(s.answer).GetImage().GetId()
		}
		unresponsive[s.backend.ID()] = away(ctx, s.err)
	}
	answers, _ := askAll(ctx, stores, func(ctx context.Context, b Backend) (reply[struct{}], error) {
		if unresponsive[b.ID()] {
			return reply[struct{}]{backend: b, err: stillListed(ctx, b, name)}, nil
		}
		for _, called := range imagestores.Removals(name, b.ID(), found) {
			one := &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: called, Annotations: req.GetImage().GetAnnotations()}}
			one.ProtoReflect().SetUnknown(req.ProtoReflect().GetUnknown())
			_, err := b.RemoveImage(ctx, one)
			if away(ctx, err) && found[b.ID()] == "" {
				return reply[struct{}]{}, nil // it became unresponsive meanwhile, and did not have the image
			}
			if err := absent(err); err != nil {
				return reply[struct{}]{backend: b, err: err}, nil
			}
		}
		return reply[struct{}]{}, nil
	})
	for _, s := range answers {
		if s.err != nil {
			return prefixed(fmt.Sprintf("backend %q", s.backend.ID()), s.err)
		}
	}
	return nil
}

// stillListed returns an error if an unresponsive store still lists an image.
func stillListed(ctx context.Context, b Backend, name string) error {
	ctx, cancel := context.WithTimeout(ctx, optionalTimeout)
	defer cancel()
	last, err := b.ListImages(ctx, &runtimeapi.ListImagesRequest{})
	if err != nil || len(imagestores.WithName(imagestores.Decoded(last).GetImages(), name)) == 0 {
		return nil // the client's list omits the image, too
	}
	return fmt.Errorf("it does not respond and still has the image; remove the image after its daemon is back: %w", errdefs.ErrUnavailable)
}

// absent returns err, or nil if it is a NotFound.
func absent(err error) error {
	if err != nil && (status.Code(err) == codes.NotFound || errdefs.IsNotFound(err)) {
		return nil
	}
	return err
}
