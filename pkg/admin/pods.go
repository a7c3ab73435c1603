package admin

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"

	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

func byAge(a, b Pod) int { return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID)) }

func (s *service) ListPods(ctx context.Context, req *adminv1.ListPodsRequest) (*adminv1.ListPodsResponse, error) {
	wanted := req.GetHandler()
	all, err := s.o.Pods.List(ctx)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(all, byAge)
	if wanted != "" {
		all = slices.DeleteFunc(all, func(one Pod) bool { return one.Handler != wanted })
	}
	current := s.offers(ctx, all)
	resp := &adminv1.ListPodsResponse{}
	for _, one := range all {
		resp.Pods = append(resp.Pods, podMessage(one, current))
	}
	if len(resp.Pods) == 0 && wanted != "" {
		if _, err := s.o.Lifecycle.Handler(wanted); err != nil {
			return nil, err
		}
	}
	return resp, nil
}

func (s *service) WhereIs(ctx context.Context, req *adminv1.WhereIsRequest) (*adminv1.WhereIsResponse, error) {
	at, err := s.o.Pods.Find(req.GetId())
	if err != nil {
		return nil, err
	}
	resp := &adminv1.WhereIsResponse{Sandbox: at.Sandbox, Container: at.Container, Handler: at.Handler, Backend: at.Backend}
	all, err := s.o.Pods.List(ctx)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(all, func(one Pod) bool { return one.ID == at.Sandbox })
	if i < 0 {
		return nil, fmt.Errorf("sandbox %s is being created or removed; try again: %w", at.Sandbox, errdefs.ErrNotFound)
	}
	resp.Pod = podMessage(all[i], s.offers(ctx, all[i:i+1]))
	return resp, nil
}

func podMessage(p Pod, current offers) *adminv1.Pod {
	return &adminv1.Pod{
		Id: p.ID, Namespace: p.Namespace, Name: p.Name, Uid: p.UID, Handler: p.Handler, Ready: p.Ready,
		CreatedAt: stamp(p.Created), Containers: count(p.Containers), Pin: pinMessage(p.Pin, current),
	}
}

// pinMessage is nil for a pod of a backend that does not tell.
func pinMessage(p Pin, current offers) *adminv1.Pin {
	if p.Definition == nil {
		return nil
	}
	reason := current.lack(p)
	m := &adminv1.Pin{Digest: p.Definition.Digest(), Generation: p.Generation, Outdated: reason != "", OutdatedReason: reason, Snapshotter: p.Definition.Snapshotter}
	for _, b := range p.Binaries {
		m.Binaries = append(m.Binaries, &adminv1.Binary{Path: b.Path, Runs: b.Runs, Digest: b.SHA256, Version: b.Version})
	}
	return m
}
