package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"math"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/berth-cri/berth/pkg/config/dropin"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/lifecycle"
	"github.com/berth-cri/berth/pkg/overhead"
	"github.com/berth-cri/berth/pkg/probe"
	"github.com/berth-cri/berth/pkg/probe/capability"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

func (s *service) ListHandlers(context.Context, *adminv1.ListHandlersRequest) (*adminv1.ListHandlersResponse, error) {
	return &adminv1.ListHandlersResponse{Handlers: each(s.o.Lifecycle.Handlers(), s.message), Generation: s.o.Lifecycle.Current().Generation}, nil
}

func (s *service) WatchHandlers(_ *adminv1.WatchHandlersRequest, to adminv1.Admin_WatchHandlersServer) error {
	events := s.o.Lifecycle.Watch(to.Context())
	for {
		// The generation is read first: the list may be newer than its generation, never older.
		generation := s.o.Lifecycle.Current().Generation
		if err := to.Send(&adminv1.WatchHandlersResponse{Handlers: each(s.o.Lifecycle.Handlers(), s.message), Generation: generation}); err != nil {
			return err
		}
		if _, more := <-events; !more {
			return to.Context().Err()
		}
	}
}

func (s *service) ListEvents(_ context.Context, req *adminv1.ListEventsRequest) (*adminv1.ListEventsResponse, error) {
	all, err := s.o.Lifecycle.Changes(req.GetHandler())
	if err != nil {
		return nil, err
	}
	return &adminv1.ListEventsResponse{Events: each(all, func(c lifecycle.Change) *adminv1.HistoryEvent {
		return &adminv1.HistoryEvent{At: stamp(c.At), Handler: c.Handler, What: c.What, From: c.From, To: c.To, By: c.By, Reason: c.Reason}
	})}, nil
}

func (s *service) GetHandler(ctx context.Context, req *adminv1.GetHandlerRequest) (*adminv1.GetHandlerResponse, error) {
	current := s.o.Lifecycle.Current()
	known, err := s.o.Lifecycle.Handler(cmp.Or(req.GetName(), current.Default))
	if err != nil {
		return nil, err
	}
	resp := &adminv1.GetHandlerResponse{
		Handler: s.message(known), FeaturesJson: document(known.Runtime),
		Binary: binaryOf(known.Definition.Path, known.Runtime),
	}
	resp.LastFailure = strings.ToValidUTF8(s.o.Failures(known.Definition.Name), "?")
	resp.Overhead = overheadMessage(s.o.Overheads.Of(ctx, known.Definition))
	settings, err := current.Config.HandlerSettings(known.Definition.Name)
	if err != nil {
		return nil, err
	}
	resp.Settings = each(settings, settingMessage)
	if resp.Handler.Managed {
		written, err := s.dropIns.settings(known.Definition.Name)
		if err != nil {
			return nil, err
		}
		resp.Written = each(written, settingMessage)
	}
	return resp, nil
}

// changed returns the message of a handler after a change that returned err.
func (s *service) changed(name string, err error) (*adminv1.Handler, error) {
	if err != nil {
		return nil, err
	}
	h, err := s.o.Lifecycle.Handler(name)
	if err != nil {
		return nil, err
	}
	return s.message(h), nil
}

func (s *service) message(h lifecycle.Handler) *adminv1.Handler {
	d := h.Definition
	m := &adminv1.Handler{
		Name: d.Name, State: stateOf(h.State.Phase), Reason: h.State.Reason, IsDefault: h.Default,
		Type: string(d.Type), Path: d.Path, Pods: count(h.Pods), Generation: h.Since, Digest: h.Digest,
		Origin: d.Origin, Managed: h.Configured && s.dropIns.owns(d.Name, d.Origin),
		ProbedAt: stamp(h.Probed), ProbeError: h.ProbeError, Capabilities: capabilities(h.Capabilities),
		Platform: d.Platform, MaxPods: count(d.Limits.MaxPods),
	}
	if t := h.Rollout; t != nil {
		m.Rollout = &adminv1.Rollout{Path: t.Path, Percent: count(t.Percent), State: string(t.State), Reason: t.Reason}
	}
	m.StateSince = stamp(h.State.Since)
	if h.Intent != nil {
		m.StateSince, m.StateBy = stamp(h.Intent.Since), h.Intent.By
	}
	if last := h.Starts; last.Recent > 0 {
		m.Starts = &adminv1.Starts{
			Recent: count(last.Recent), Failed: count(last.Failed), InARow: count(last.InARow), Error: last.Error, FailedAt: stamp(last.At),
		}
	}
	if h.Runtime != nil {
		m.RuntimeName, m.RuntimeVersion = h.Runtime.Name, h.Runtime.Version
	}
	return m
}

func stateOf(p handler.Phase) adminv1.State {
	switch p {
	case handler.Ready:
		return adminv1.State_STATE_READY
	case handler.NotReady:
		return adminv1.State_STATE_NOT_READY
	case handler.Cordoned:
		return adminv1.State_STATE_CORDONED
	case handler.Draining:
		return adminv1.State_STATE_DRAINING
	}
	return adminv1.State_STATE_UNSPECIFIED
}

// stamp returns nil for the zero time.
func stamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

func count(n int) int32 { return int32(min(n, math.MaxInt32)) } //nolint:gosec // bounded here

// each applies f to all items, in their order.
func each[A, B any](items []A, f func(A) B) []B {
	all := make([]B, len(items))
	for i, item := range items {
		all[i] = f(item)
	}
	return all
}

func settingMessage(s dropin.Setting) *adminv1.Setting {
	return &adminv1.Setting{Key: s.Key, Value: s.Value, Origin: s.Origin}
}

func binaryOf(path string, rt *probe.Runtime) *adminv1.Binary {
	b := &adminv1.Binary{Path: path, Runs: path}
	if rt != nil {
		b.SizeBytes, b.ModifiedAt, b.Version = rt.Identity.Size, stamp(rt.Identity.ModTime), rt.Version
	}
	return b
}

// document returns the output of the runtime's "features" command, or "".
func document(rt *probe.Runtime) string {
	if rt == nil || rt.Features == nil {
		return ""
	}
	text, _ := json.Marshal(rt.Features) // it was read from JSON
	return string(text)
}

// capabilities returns a handler's capabilities; nil if none are known.
func capabilities(t capability.Table) *adminv1.Capabilities {
	if t.Empty() {
		return nil
	}
	m := &adminv1.Capabilities{Isolation: string(t.Isolation), IsolationSource: string(t.IsolationSource), SeccompActions: t.SeccompActions, Conforms: t.Conforms}
	for _, n := range t.Sorted() {
		k := t.Of(n)
		m.Capabilities = append(m.Capabilities, &adminv1.Capability{Name: string(n), Answer: string(k.Answer), Source: string(k.Source), Note: k.Note})
	}
	return m
}

func overheadMessage(r overhead.Report) *adminv1.Overhead {
	return &adminv1.Overhead{
		Live: estimateMessage(r.Live), NoLiveReason: r.NoLive,
		DeclaredMemoryBytes: r.Declared.Memory, DeclaredCpuMillicores: r.Declared.CPU, Warning: r.Above(),
	}
}

func estimateMessage(e *overhead.Estimate) *adminv1.OverheadEstimate {
	if e == nil {
		return nil
	}
	m := &adminv1.OverheadEstimate{Pods: count(e.Pods), MemoryBytes: distributionMessage(e.Memory), MeasuredAt: stamp(e.At)}
	if e.CPUPods > 0 {
		m.CpuNanocores, m.Window = distributionMessage(e.CPU), durationpb.New(e.Window)
		m.CpuPods = count(e.CPUPods)
	}
	return m
}

func distributionMessage(d overhead.Distribution) *adminv1.OverheadDistribution {
	return &adminv1.OverheadDistribution{P50: d.P50, P95: d.P95, Max: d.Max}
}
