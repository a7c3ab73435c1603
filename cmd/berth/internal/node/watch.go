package node

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/berth-cri/berth/cmd/berth/internal/cli"
	"github.com/berth-cri/berth/internal/output"
	"github.com/berth-cri/berth/internal/screen"
	"github.com/berth-cri/berth/pkg/admin/client"
	"github.com/berth-cri/berth/pkg/observe"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

const (
	// defaultEvery is the time between samples, and watchEvery its minimum.
	defaultEvery, watchEvery = 2 * time.Second, 200 * time.Millisecond
	// watchTimeout bounds one sample.
	watchTimeout = 5 * time.Second
	// startsWindow is the largest age of starts in the statistics, lastStarts the limit of the
	// list.
	startsWindow, lastStarts = 10 * time.Minute, 10
)

// nodeSample is one sample of the daemon's reports.
type nodeSample struct {
	status   *adminv1.GetStatusResponse
	handlers []*adminv1.Handler
	starts   []*adminv1.PodStart // newest first
}

func nodeSource(daemon *client.Client, every time.Duration) screen.Source {
	return screen.Source{
		Name: "berth", Every: every, Timeout: watchTimeout,
		Sample: func(ctx context.Context) (screen.View, error) {
			s, err := sampleNode(ctx, daemon)
			return s.page, daemon.Explain(err)
		},
		Final: func(err error) bool {
			var e *client.Error
			return errors.As(err, &e) && (e.Code == codes.PermissionDenied || e.Code == codes.Unimplemented)
		},
	}
}

func sampleNode(ctx context.Context, daemon *client.Client) (nodeSample, error) {
	status, err := daemon.GetStatus(ctx, &adminv1.GetStatusRequest{})
	if err != nil {
		return nodeSample{}, err
	}
	handlers, err := daemon.ListHandlers(ctx, &adminv1.ListHandlersRequest{})
	if err != nil {
		return nodeSample{}, err
	}
	starts, err := daemon.ListStarts(ctx, &adminv1.ListStartsRequest{})
	if err != nil {
		return nodeSample{}, err
	}
	return nodeSample{status, handlers.GetHandlers(), starts.GetStarts()}, nil
}

// page returns the page of a node. Pure.
func (s nodeSample) page(now time.Time, width int) screen.Page {
	st := s.status
	summary := fmt.Sprintf("%d of %d handlers accept pods, %s, %s per minute", st.GetHandlersReady(), st.GetHandlers(), output.Pods(st.GetPods()),
		output.Count(perMinute(s.starts, "", now), "start", "starts"))
	if st.GetRecovering() {
		summary += ", taking over the pods of an earlier daemon"
	}
	p := screen.Page{Top: []screen.Line{
		{Text: fmt.Sprintf("berth %s, up %s, at %s", st.GetVersion(), cli.Age(now.Sub(st.GetStartedAt().AsTime())), now.Format(time.TimeOnly)), Kind: screen.Title},
		{Text: summary},
	}}
	for _, line := range st.GetDegraded() {
		p.Body = append(p.Body, screen.Line{Text: "degraded: " + line, Kind: screen.Bad})
	}
	for _, problem := range st.GetProblems() {
		p.Body = append(p.Body, screen.Line{Text: "problem: " + client.Line(problem), Kind: screen.Warn})
	}
	for _, line := range st.GetNeedsRestart() {
		p.Body = append(p.Body, screen.Line{Text: "needs a restart: " + line, Kind: screen.Warn})
	}
	recent := since(s.starts, now.Add(-startsWindow))
	p.Body = append(p.Body, screen.Line{})
	p.Body = append(p.Body, watchedHandlers(s.handlers, recent, now, width)...)
	p.Body = append(p.Body, screen.Line{}, screen.Line{Text: "p95 of the parts of a pod's start, by handler, " + covered(s.starts, now), Kind: screen.Dim})
	p.Body = append(p.Body, watchedPhases(s.handlers, recent, width)...)
	if len(recent) > 0 {
		p.Body = append(p.Body, screen.Line{}, screen.Line{Text: "the last starts", Kind: screen.Dim})
		p.Body = append(p.Body, watchedStarts(recent, now, width)...)
	}
	return p
}

func watchedHandlers(handlers []*adminv1.Handler, recent []*adminv1.PodStart, now time.Time, width int) []screen.Line {
	t := &output.Table{Header: []string{"HANDLER", "STATE", "PODS", "STARTS/MIN", "FAILED", "P95", "RUNTIME", "REASON"}}
	var kinds []screen.Kind
	for _, h := range handlers {
		name := h.GetName()
		if h.GetIsDefault() {
			name += " (default)"
		}
		failed := 0
		for _, s := range recent {
			if s.GetHandler() == h.GetName() && failedStart(s) {
				failed++
			}
		}
		all := p95(recent, h.GetName(), func(s *adminv1.PodStart) (time.Duration, bool) { return s.GetTook().AsDuration(), true })
		t.Add(name, cli.StateWord(h.GetState()), fmt.Sprint(h.GetPods()), fmt.Sprint(perMinute(recent, h.GetName(), now)), fmt.Sprint(failed), all, cli.RuntimeOf(h), h.GetReason())
		kind := screen.Plain
		switch h.GetState() {
		case adminv1.State_STATE_NOT_READY:
			kind = screen.Bad
		case adminv1.State_STATE_CORDONED, adminv1.State_STATE_DRAINING:
			kind = screen.Warn
		case adminv1.State_STATE_READY, adminv1.State_STATE_UNSPECIFIED:
		}
		kinds = append(kinds, kind)
	}
	return screen.Rows(t, width, kinds)
}

// phases are the parts of a pod's start, by column: the wait for max_parallel_starts (QUEUE), the
// durations of the pod's calls without this wait, and steps of these calls.
var phases = []struct {
	name string
	of   func(*adminv1.PodStart) (time.Duration, bool)
}{
	{"QUEUE", inStep("queue")},
	{"SANDBOX", func(s *adminv1.PodStart) (time.Duration, bool) {
		all, is := inCalls("RunPodSandbox")(s)
		queued, _ := inStep("queue")(s)
		return max(0, all-queued), is
	}},
	{"PULL", inCalls("PullImage")},
	{"CREATE", inCalls("CreateContainer")},
	{"START", inCalls("StartContainer")},
	{"NETWORK", inStep("network")},
	{"ROOTFS", inStep("rootfs")},
	{"PLUGINS", inStep("plugins")},
	{"RUNTIME", inStep("runtime")},
}

// inCalls returns the total duration of a pod's calls of one kind, if it has any.
func inCalls(rpc string) func(*adminv1.PodStart) (time.Duration, bool) {
	return func(s *adminv1.PodStart) (all time.Duration, is bool) {
		for _, c := range s.GetCalls() {
			if c.GetRpc() == rpc {
				all, is = all+c.GetTook().AsDuration(), true
			}
		}
		return all, is
	}
}

// inStep returns the total duration of a step in a pod's calls.
func inStep(name string) func(*adminv1.PodStart) (time.Duration, bool) {
	return func(s *adminv1.PodStart) (all time.Duration, is bool) {
		for _, c := range s.GetCalls() {
			for _, p := range c.GetSteps() {
				if p.GetName() == name {
					all, is = all+p.GetTook().AsDuration(), true
				}
			}
		}
		return all, is
	}
}

func watchedPhases(handlers []*adminv1.Handler, recent []*adminv1.PodStart, width int) []screen.Line {
	t := &output.Table{Header: []string{"HANDLER"}}
	for _, phase := range phases {
		t.Header = append(t.Header, phase.name)
	}
	for _, h := range handlers {
		row := []string{h.GetName()}
		for _, phase := range phases {
			row = append(row, p95(recent, h.GetName(), phase.of))
		}
		t.Add(row...)
	}
	return screen.Rows(t, width, nil)
}

func watchedStarts(recent []*adminv1.PodStart, now time.Time, width int) []screen.Line {
	t := &output.Table{Header: []string{"POD", "HANDLER", "AGE", "TOOK", "SPENT IN"}}
	var kinds []screen.Kind
	for _, s := range recent[:min(len(recent), lastStarts)] {
		t.Add(s.GetNamespace()+"/"+s.GetName(), s.GetHandler(), cli.Age(now.Sub(s.GetBeganAt().AsTime())), cli.Took(s.GetTook().AsDuration()), spentIn(s, false))
		kind := screen.Plain
		if failedStart(s) {
			kind = screen.Bad
		}
		kinds = append(kinds, kind)
	}
	return screen.Rows(t, width, kinds)
}

// since returns the starts that began after a time. Pure.
func since(starts []*adminv1.PodStart, from time.Time) []*adminv1.PodStart {
	return slices.DeleteFunc(slices.Clone(starts), func(s *adminv1.PodStart) bool { return s.GetBeganAt().AsTime().Before(from) })
}

// failedStart reports whether a call for the pod failed. Later calls may have succeeded.
func failedStart(s *adminv1.PodStart) bool {
	return slices.ContainsFunc(s.GetCalls(), func(c *adminv1.StartCall) bool { return c.GetCode() != "OK" })
}

const remembered = observe.MaxStarts

// covered describes the time with complete data: startsWindow, or less if the daemon no longer has
// all of its starts. Pure.
func covered(starts []*adminv1.PodStart, now time.Time) string {
	if len(starts) >= remembered {
		if span := now.Sub(starts[len(starts)-1].GetBeganAt().AsTime()); span < startsWindow {
			return fmt.Sprintf("in the last %s: the daemon remembers %d starts", cli.Age(max(span, time.Second)), remembered)
		}
	}
	return fmt.Sprintf("in the last %d minutes", int(startsWindow.Minutes()))
}

// perMinute returns the number of a handler's pods that began in the last minute; of all handlers
// if handler is empty. If the daemon's data covers less than a minute, the number is extrapolated.
// Pure.
func perMinute(starts []*adminv1.PodStart, handler string, now time.Time) int {
	last := since(starts, now.Add(-time.Minute))
	n := 0
	for _, s := range last {
		if handler == "" || s.GetHandler() == handler {
			n++
		}
	}
	if len(last) < remembered {
		return n
	}
	span := now.Sub(last[len(last)-1].GetBeganAt().AsTime())
	return int(math.Round(float64(n) * float64(time.Minute) / float64(max(span, time.Second))))
}

// p95 returns the 95th percentile of a part's duration in a handler's successful starts; "-"
// without any. Pure.
func p95(starts []*adminv1.PodStart, handler string, part func(*adminv1.PodStart) (time.Duration, bool)) string {
	var all []time.Duration
	for _, s := range starts {
		if d, is := part(s); is && s.GetHandler() == handler && !failedStart(s) {
			all = append(all, d)
		}
	}
	if len(all) == 0 {
		return "-"
	}
	slices.Sort(all)
	return cli.Took(all[(len(all)*95+99)/100-1])
}
