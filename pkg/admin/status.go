package admin

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/berth-cri/berth/pkg/config"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/lifecycle"
	"github.com/berth-cri/berth/pkg/observe"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

func (s *service) GetStatus(ctx context.Context, _ *adminv1.GetStatusRequest) (*adminv1.GetStatusResponse, error) {
	c, all := s.o.Lifecycle.Current(), s.o.Lifecycle.Handlers()
	resp := &adminv1.GetStatusResponse{
		Version: s.o.Version, Revision: s.o.Revision, StartedAt: timestamppb.New(s.started),
		Generation: c.Generation, Digest: c.Digest, CriSocket: s.o.CRISocket, AdminSocket: s.o.AdminSocket,
		ReloadedAt: stamp(c.Loaded), Recovering: s.o.Recovering(), NeedsRestart: each(c.NeedRestart, config.Change.String),
		Problems: each(c.Problems, plainProblem), Degraded: degraded(c, all, s.o.Recovering(), slices.Concat(s.o.Faults(), s.overheads(ctx, all))), Handlers: count(len(all)),
	}
	for _, h := range all {
		if h.State.AcceptsPods() {
			resp.HandlersReady++
		} else {
			resp.NotAccepting = append(resp.NotAccepting, s.message(h))
		}
		resp.Pods += count(h.Pods)
	}
	if c.Last != nil && c.Last.Error != nil {
		resp.Problems = append(resp.Problems, problemsOf(c.Last.Error)...)
	}
	resp.Unresponsive = s.o.Unresponsive(ctx)
	resp.Degraded = append(resp.Degraded, resp.Unresponsive...)
	resp.PodCheckpoints = &adminv1.PodCheckpoints{Directory: s.o.CheckpointsDir, InUse: s.o.CheckpointsInUse()}
	return resp, nil
}

// overheads returns a line for each handler with pods that use more than their declared overhead.
func (s *service) overheads(ctx context.Context, all []lifecycle.Handler) []string {
	var lines []string
	for _, h := range all {
		if above := s.o.Overheads.Of(ctx, h.Definition).Above(); above != "" {
			lines = append(lines, above)
		}
	}
	return lines
}

// degraded returns the problems for an operator to fix. It excludes the operators' own actions,
// such as a cordon. Pure.
func degraded(c lifecycle.Current, all []lifecycle.Handler, recovering bool, faults []string) []string {
	var lines []string
	if recovering {
		lines = append(lines, "recovering the pods of this node; calls are rejected until that is done")
	}
	for _, h := range all {
		if h.State.Phase == handler.NotReady {
			lines = append(lines, fmt.Sprintf("handler %s is not ready: %s", h.Definition.Name, h.State.Reason))
		}
		// Starts under a ready handler can fail for reasons that a self-check pod does not cover:
		// an image, a network or volumes.
		if last := h.Starts; h.State.Phase == handler.Ready && last.InARow >= lifecycle.FailuresInARow {
			lines = append(lines, fmt.Sprintf("handler %s: %d starts in a row failed, the last at %s: %s",
				h.Definition.Name, last.InARow, last.At.UTC().Format(time.RFC3339), last.Error))
		}
		if fault := h.Rollout.Fault(); fault != "" {
			lines = append(lines, fmt.Sprintf("rollout of %s under handler %s is stopped: %s; fix that binary, or remove candidate from the handler",
				h.Rollout.Path, h.Definition.Name, fault))
		}
	}
	lines = append(lines, faults...)
	if c.Last != nil && c.Last.Error != nil {
		lines = append(lines, fmt.Sprintf("the configuration was rejected at %s; the one read at %s stays in use: correct the files, then run \"berth reload --wait\"",
			c.Last.At.UTC().Format(time.RFC3339), c.Loaded.UTC().Format(time.RFC3339)))
	}
	if n := len(c.Problems); n > 0 {
		lines = append(lines, fmt.Sprintf("parts of the configuration are not in use because of problems; number of problems: %d", n))
	}
	return lines
}

func (s *service) ListStarts(_ context.Context, req *adminv1.ListStartsRequest) (*adminv1.ListStartsResponse, error) {
	resp := &adminv1.ListStartsResponse{}
	wanted := req.GetHandler()
	for _, p := range s.o.Starts.Recent() {
		if wanted == "" || p.Handler == wanted {
			resp.Starts = append(resp.Starts, startMessage(p))
		}
	}
	if len(resp.Starts) == 0 && wanted != "" {
		if _, err := s.o.Lifecycle.Handler(wanted); err != nil {
			return nil, err
		}
	}
	return resp, nil
}

func startMessage(p observe.PodStart) *adminv1.PodStart {
	m := &adminv1.PodStart{
		Namespace: p.Namespace, Name: p.Name, Uid: p.UID, Sandbox: p.Sandbox, Handler: p.Handler,
		BeganAt: stamp(p.Began), Took: durationpb.New(p.Took()),
	}
	for _, c := range p.Calls {
		call := &adminv1.StartCall{Rpc: c.RPC, Of: c.Of, BeganAt: stamp(c.Began), Took: durationpb.New(c.Took), Code: c.Code.String()}
		for _, s := range c.Steps {
			call.Steps = append(call.Steps, &adminv1.StartStep{Name: s.Name, Took: durationpb.New(s.Took)})
		}
		m.Calls = append(m.Calls, call)
	}
	return m
}
