package admin

import (
	"context"
	"slices"
	"time"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/pkg/probe"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

func (s *service) Cordon(ctx context.Context, req *adminv1.CordonRequest) (*adminv1.CordonResponse, error) {
	h, err := s.changed(req.GetName(), s.o.Lifecycle.Cordon(ctx, req.GetName(), req.GetReason(), userOf(ctx)))
	return &adminv1.CordonResponse{Handler: h}, err
}

func (s *service) Uncordon(ctx context.Context, req *adminv1.UncordonRequest) (*adminv1.UncordonResponse, error) {
	h, err := s.changed(req.GetName(), s.o.Lifecycle.Uncordon(ctx, req.GetName()))
	return &adminv1.UncordonResponse{Handler: h}, err
}

func (s *service) Promote(ctx context.Context, req *adminv1.PromoteRequest) (*adminv1.PromoteResponse, error) {
	h, err := s.changed(req.GetName(), s.o.Rollouts.Promote(ctx, req.GetName()))
	return &adminv1.PromoteResponse{Handler: h}, err
}

func (s *service) Abort(ctx context.Context, req *adminv1.AbortRequest) (*adminv1.AbortResponse, error) {
	h, err := s.changed(req.GetName(), s.o.Rollouts.Abort(ctx, req.GetName(), req.GetReason()))
	return &adminv1.AbortResponse{Handler: h}, err
}

func (s *service) Probe(ctx context.Context, req *adminv1.ProbeRequest) (*adminv1.ProbeResponse, error) {
	depth := probe.Ask
	if req.GetSelfCheck() {
		depth = probe.WithSelfCheck
	}
	h, err := s.o.Lifecycle.Probe(ctx, req.GetName(), depth)
	if err != nil {
		return nil, err
	}
	return &adminv1.ProbeResponse{Handler: s.message(h)}, nil
}

// drainLook is the time between counts of the remaining pods. Their eviction takes seconds.
const drainLook = 200 * time.Millisecond

func (s *service) Drain(req *adminv1.DrainRequest, to adminv1.Admin_DrainServer) error {
	ctx, name := to.Context(), req.GetName()
	if err := s.o.Lifecycle.Drain(ctx, name, req.GetReason(), userOf(ctx)); err != nil {
		return err
	}
	tick := time.NewTicker(drainLook)
	defer tick.Stop()
	for last := -1; ; {
		left, err := s.remainingPods(name)
		if err != nil {
			return err
		}
		if left != last {
			last = left
			if err := to.Send(&adminv1.DrainResponse{Pods: count(left), Names: s.names(ctx, name, left)}); err != nil {
				return err
			}
		}
		if left == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// remainingPods counts the pods of a handler. A removed handler disappears with its last pod.
func (s *service) remainingPods(name string) (int, error) {
	h, err := s.o.Lifecycle.Handler(name)
	if errdefs.IsNotFound(err) {
		return 0, nil
	}
	return h.Pods, err
}

// maxNames bounds the pod names in a report.
const maxNames = 10

// names returns up to maxNames pods of a handler, oldest first. If the pods cannot be listed, the
// drain continues without names.
func (s *service) names(ctx context.Context, handler string, left int) []string {
	if left == 0 {
		return nil
	}
	all, err := s.o.Pods.List(ctx)
	if err != nil {
		return nil
	}
	all = slices.DeleteFunc(all, func(p Pod) bool { return p.Handler != handler })
	slices.SortFunc(all, byAge)
	var names []string
	for _, p := range all[:min(len(all), maxNames)] {
		names = append(names, p.Namespace+"/"+p.Name)
	}
	return names
}
