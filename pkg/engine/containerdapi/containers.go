package containerdapi

import (
	"context"
	"fmt"
	"strings"

	containersapi "github.com/containerd/containerd/api/services/containers/v1"
	"github.com/containerd/containerd/v2/pkg/filters"
	"github.com/containerd/errdefs"
)

type containerService struct {
	containersapi.UnimplementedContainersServer
	view *view
}

func (s *containerService) Get(ctx context.Context, r *containersapi.GetContainerRequest) (*containersapi.GetContainerResponse, error) {
	own, err := ours(ctx)
	if err != nil {
		return nil, err
	}
	if !own {
		return nil, fmt.Errorf("container %.100q: %w", r.GetID(), errdefs.ErrNotFound)
	}
	m, err := s.view.message(r.GetID())
	if err != nil {
		return nil, err
	}
	return &containersapi.GetContainerResponse{Container: m}, nil
}

func (s *containerService) List(ctx context.Context, r *containersapi.ListContainersRequest) (*containersapi.ListContainersResponse, error) {
	resp := &containersapi.ListContainersResponse{}
	err := s.each(ctx, r.GetFilters(), func(c *containersapi.Container) error {
		resp.Containers = append(resp.Containers, c)
		return nil
	})
	return resp, err
}

func (s *containerService) ListStream(r *containersapi.ListContainersRequest, to containersapi.Containers_ListStreamServer) error {
	return s.each(to.Context(), r.GetFilters(), func(c *containersapi.Container) error {
		return to.Send(&containersapi.ListContainerMessage{Container: c})
	})
}

// each calls f for each matching container. Messages are built one at a time.
func (s *containerService) each(ctx context.Context, fs []string, f func(*containersapi.Container) error) error {
	wants, err := filters.ParseAll(fs...)
	if err != nil {
		return err
	}
	own, err := ours(ctx)
	if err != nil || !own {
		return err
	}
	for _, one := range s.view.all() {
		if err := ctx.Err(); err != nil {
			return err
		}
		m := s.view.messageOf(one)
		fields := map[string]string{"id": m.GetID(), "image": m.GetImage(), "runtime.name": m.GetRuntime().GetName()}
		if wants.Match(adapt(fields, m.GetLabels())) {
			if err := f(m); err != nil {
				return err
			}
		}
	}
	return nil
}

// adapt offers filters the same fields as containerd, by their paths.
func adapt(fields, labels map[string]string) filters.Adaptor {
	return filters.AdapterFunc(func(path []string) (string, bool) {
		if len(path) > 1 && path[0] == "labels" {
			value, ok := labels[strings.Join(path[1:], ".")] // a label may contain dots
			return value, ok
		}
		value := fields[strings.Join(path, ".")]
		return value, value != ""
	})
}
