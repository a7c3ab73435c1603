package router

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
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
			found[s.backend.ID()] = understood(s.answer).GetImage().GetId()
		}
		silent[s.backend.ID()] = away(ctx, s.err)
	}
	answers, _ := askAll(ctx, stores, func(ctx context.Context, b Backend) (said[struct{}], error) {
		if silent[b.ID()] {
			return said[struct{}]{backend: b, err: left(ctx, b, name)}, nil
		}
		for _, called := range removals(name, b.ID(), found) {
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

// removals are what one store is asked to remove, if found are the ids of what
// the name stands for in each store that has it. An id is written in two ways,
// which a kubelet takes for two images, one of which may be in use: a store that
// writes it in another way than an exact one is left alone. Pure.
func removals(name, store string, found map[string]string) []string {
	for _, id := range found {
		if id == name {
			if own := found[store]; own != "" && own != name {
				return nil
			}
			return []string{name}
		}
	}
	all := map[string]bool{}
	for _, id := range found {
		if id != "" && bareID(id) != bareID(found[store]) {
			all[id] = true
		}
	}
	return append([]string{name}, slices.Sorted(maps.Keys(all))...)
}

// left says whether a store that does not answer keeps an image.
func left(ctx context.Context, b Backend, name string) error {
	ctx, cancel := context.WithTimeout(ctx, storePatience)
	defer cancel()
	last, err := b.ListImages(ctx, &runtimeapi.ListImagesRequest{})
	if err != nil || len(withName(understood(last).GetImages(), name)) == 0 {
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
