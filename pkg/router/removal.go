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

// RemoveImage removes the image from all stores. What a name stands for may
// differ between stores: whatever it stands for in any goes from all. A store
// that does not answer and is known to have the image fails the call, because
// the image stays listed and its space is not free.
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
	found, silent := map[string]string{}, map[string]bool{}
	for _, b := range stores {
		silent[b.ID()] = true
	}
	for _, s := range askEach(ctx, nil, prompts(stores), &runtimeapi.ImageStatusRequest{Image: req.GetImage()}, Backend.ImageStatus) {
		if s.err == nil {
			found[s.backend.ID()] = imagestores.Understood(s.answer).GetImage().GetId()
		}
		silent[s.backend.ID()] = away(ctx, s.err)
	}
	answers, _ := askAll(ctx, stores, func(ctx context.Context, b Backend) (said[struct{}], error) {
		if silent[b.ID()] {
			return said[struct{}]{backend: b, err: left(ctx, b, name)}, nil
		}
		for _, called := range imagestores.Removals(name, b.ID(), found) {
			one := &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: called, Annotations: req.GetImage().GetAnnotations()}}
			one.ProtoReflect().SetUnknown(req.ProtoReflect().GetUnknown())
			_, err := b.RemoveImage(ctx, one)
			if away(ctx, err) && found[b.ID()] == "" {
				return said[struct{}]{}, nil // it has gone away meanwhile, and had nothing
			}
			if err := absent(err); err != nil {
				return said[struct{}]{backend: b, err: err}, nil
			}
		}
		return said[struct{}]{}, nil
	})
	for _, s := range answers {
		if s.err != nil {
			return prefixed(fmt.Sprintf("backend %q", s.backend.ID()), s.err)
		}
	}
	return nil
}

// left says whether a store that does not answer keeps an image.
func left(ctx context.Context, b Backend, name string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	last, err := b.ListImages(ctx, &runtimeapi.ListImagesRequest{})
	if err != nil || len(imagestores.WithName(imagestores.Understood(last).GetImages(), name)) == 0 {
		return nil // it is not listed either
	}
	return fmt.Errorf("it does not respond and still has the image; remove it after its daemon is back: %w", errdefs.ErrUnavailable)
}

// absent is err, unless it says that there is no such image.
func absent(err error) error {
	if err != nil && (status.Code(err) == codes.NotFound || errdefs.IsNotFound(err)) {
		return nil
	}
	return err
}
