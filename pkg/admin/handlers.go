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

// view turns what the life cycle knows into messages.
type view struct {
	life    Lifecycle
	dropIns dropIns
}

type handlers struct {
	view
	overheads *overhead.Meter
	failures  func(handler string) string
}

func (h handlers) ListHandlers(context.Context, *adminv1.ListHandlersRequest) (*adminv1.ListHandlersResponse, error) {
	return &adminv1.ListHandlersResponse{Handlers: h.all(), Generation: h.life.Current().Generation}, nil
}

func (h handlers) WatchHandlers(_ *adminv1.WatchHandlersRequest, to adminv1.Admin_WatchHandlersServer) error {
	events := h.life.Watch(to.Context())
	for {
		// The generation is read first: a list may be newer than it says, never older.
		generation := h.life.Current().Generation
		if err := to.Send(&adminv1.WatchHandlersResponse{Handlers: h.all(), Generation: generation}); err != nil {
			return err
		}
		if _, more := <-events; !more {
			return to.Context().Err()
		}
	}
}

func (h handlers) ListEvents(_ context.Context, req *adminv1.ListEventsRequest) (*adminv1.ListEventsResponse, error) {
	all, err := h.life.Changes(req.GetHandler())
	if err != nil {
		return nil, err
	}
	resp := &adminv1.ListEventsResponse{}
	for _, c := range all {
		resp.Events = append(resp.Events, &adminv1.HistoryEvent{
			At: stamp(c.At), Handler: c.Handler, What: c.What, From: c.From, To: c.To, By: c.By, Reason: c.Reason,
		})
	}
	return resp, nil
}

func (h handlers) GetHandler(ctx context.Context, req *adminv1.GetHandlerRequest) (*adminv1.GetHandlerResponse, error) {
	current := h.life.Current()
	known, err := h.life.Handler(cmp.Or(req.GetName(), current.Default))
	if err != nil {
		return nil, err
	}
	resp := &adminv1.GetHandlerResponse{
		Handler: h.message(known), FeaturesJson: document(known.Runtime),
		Binary: binaryOf(known.Definition.Path, known.Runtime),
	}
	resp.LastFailure = strings.ToValidUTF8(h.failures(known.Definition.Name), "?")
	resp.Overhead = overheadMessage(h.overheads.Of(ctx, known.Definition))
	settings, err := current.Config.HandlerSettings(known.Definition.Name)
	if err != nil {
		return nil, err
	}
	resp.Settings = settingMessages(settings)
	if resp.Handler.Managed {
		written, err := h.dropIns.settings(known.Definition.Name)
		if err != nil {
			return nil, err
		}
		resp.Written = settingMessages(written)
	}
	return resp, nil
}

// all are the messages of all handlers.
func (v view) all() []*adminv1.Handler {
	known := v.life.Handlers()
	all := make([]*adminv1.Handler, len(known))
	for i, h := range known {
		all[i] = v.message(h)
	}
	return all
}

// one is the message of one handler.
func (v view) one(name string) (*adminv1.Handler, error) {
	h, err := v.life.Handler(name)
	if err != nil {
		return nil, err
	}
	return v.message(h), nil
}

func (v view) message(h lifecycle.Handler) *adminv1.Handler {
	d := h.Definition
	m := &adminv1.Handler{
		Name: d.Name, State: stateOf(h.State.Phase), Reason: h.State.Reason, IsDefault: h.Default,
		Type: string(d.Type), Path: d.Path, Pods: count(h.LivePods), Generation: h.Since, Digest: h.Digest,
		Origin: d.Origin, Managed: h.Configured && v.dropIns.wrote(d.Name, d.Origin),
		ProbedAt: stamp(h.Probed), ProbeError: h.ProbeError, Capabilities: capabilities(h.Capabilities),
		Platform: d.Platform, MaxPods: count(d.Limits.MaxPods),
	}
	if t := h.Rollout; t != nil {
		m.Trial = &adminv1.Trial{Path: t.Path, Percent: count(t.Percent), State: string(t.State), Reason: t.Reason}
	}
	m.StateSince = stamp(h.State.Since)
	if h.Intent != nil {
		m.StateSince, m.StateBy = stamp(h.Intent.Since), h.Intent.By
	}
	if s := h.Starts; s.Recent > 0 {
		m.Starts = &adminv1.Starts{
			Recent: count(s.Recent), Failed: count(s.Failed), InARow: count(s.InARow), Error: s.Error, FailedAt: stamp(s.At),
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

// stamp is nil for the zero time.
func stamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

func count(n int) int32 { return int32(min(n, math.MaxInt32)) } //nolint:gosec // it is bounded here

func settingMessages(settings []dropin.Setting) []*adminv1.Setting {
	all := make([]*adminv1.Setting, len(settings))
	for i, s := range settings {
		all[i] = &adminv1.Setting{Key: s.Key, Value: s.Value, Origin: s.Origin}
	}
	return all
}

func binaryOf(path string, rt *probe.Runtime) *adminv1.Binary {
	b := &adminv1.Binary{Path: path, Runs: path}
	if rt != nil {
		b.SizeBytes, b.ModifiedAt, b.Version = rt.Identity.Size, stamp(rt.Identity.ModTime), rt.Version
	}
	return b
}

// document is what the runtime's "features" printed, or empty.
func document(rt *probe.Runtime) string {
	if rt == nil || rt.Features == nil {
		return ""
	}
	text, err := json.Marshal(rt.Features)
	if err != nil { // it was read from JSON
		return ""
	}
	return string(text)
}

// capabilities are what a handler can do; nil if nothing is known.
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
