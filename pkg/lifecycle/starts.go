package lifecycle

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/printable"
	"github.com/berth-cri/berth/pkg/probe"
)

const (
	// startsKept bounds the starts that are remembered per handler.
	startsKept = 20
	// rowEnds is how long a row of failed starts is reported after its last failure.
	rowEnds = 10 * time.Minute
	// FailuresInARow is the number of failed starts in a row after which a self-check pod decides
	// whether the handler is ready.
	FailuresInARow = 2
	// selfCheckPatience is how long a self-check pod may run before it counts as failed.
	selfCheckPatience = 5 * time.Second
	// checkInterval is the least time between the first two of these self-check pods. The time
	// doubles with each, up to longestCheckInterval, until a start succeeds.
	checkInterval        = 5 * time.Second
	longestCheckInterval = 5 * time.Minute
)

type startLog struct {
	failed []bool // of the last starts, the oldest first
	inARow int
	err    string
	at     time.Time
	// next is the earliest time for another self-check pod; wait is its delay after the last one.
	next time.Time
	wait time.Duration
}

// add records a start.
func (l *startLog) add(err string, now time.Time) {
	l.failed = append(l.failed, err != "")
	l.failed = l.failed[max(0, len(l.failed)-startsKept):]
	if err == "" {
		l.inARow, l.wait, l.next = 0, 0, time.Time{}
		return
	}
	l.inARow++
	l.err, l.at = err, now
}

// depth returns how deeply to probe the handler after a failed start: its binary, or also with a
// self-check pod after several failures in a row. It records when the next such pod may run.
func (l *startLog) depth(now time.Time) probe.Depth {
	if l.inARow < FailuresInARow || now.Before(l.next) {
		return probe.Ask
	}
	l.wait = min(max(checkInterval, 2*l.wait), longestCheckInterval)
	l.next = now.Add(l.wait)
	return probe.RunPod
}

// report summarizes the remembered starts. A row of failures ends after a while without a new one:
// the handler may have been repaired while no pod started.
func (l *startLog) report(now time.Time) Starts {
	s := Starts{Recent: len(l.failed), InARow: l.inARow, Error: l.err, At: l.at}
	for _, failed := range l.failed {
		if failed {
			s.Failed++
		}
	}
	if now.Sub(l.at) > rowEnds {
		s.InARow = 0
	}
	return s
}

// starts records the results of starts, and probes handlers after failed starts.
type starts struct {
	probes *probes

	guard sync.Mutex
	logs  map[string]*startLog // by the handler's name
}

// unfinished returns the reason why a handler is not ready while its self-check pod runs.
func unfinished(last Starts) error {
	return fmt.Errorf("%d starts in a row failed, and the self-check pod has not finished within %v; the last start: %s", last.InARow, selfCheckPatience, last.Error)
}

// of returns a handler's log, created if missing; guard is held.
func (s *starts) of(name string) *startLog {
	if s.logs[name] == nil {
		s.logs[name] = &startLog{}
	}
	return s.logs[name]
}

// Starts returns the last starts of a handler.
func (s *starts) Starts(name string) Starts {
	s.guard.Lock()
	defer s.guard.Unlock()
	if l := s.logs[name]; l != nil {
		return l.report(time.Now())
	}
	return Starts{}
}

// onCandidate reports whether a pod runs on an unpromoted candidate: its rollout counts the start.
func (s *starts) onCandidate(name string, a handler.Attempt) bool {
	if a.Definition == nil || a.Definition.Binary == "" {
		return false
	}
	main, _ := s.probes.snapshot().view(name).Routes()
	return main == nil || main.Binary == ""
}

// Started implements router.Outcomes.
func (s *starts) Started(name string, a handler.Attempt) {
	if s.onCandidate(name, a) {
		return
	}
	s.guard.Lock()
	defer s.guard.Unlock()
	s.of(name).add("", time.Now())
}

// NotStarted implements router.Outcomes. It records the failure and probes the handler.
func (s *starts) NotStarted(name string, a handler.Attempt, err error) {
	if a.Definition == nil {
		return
	}
	now, digest := time.Now(), a.Definition.Digest()
	depth, last := probe.Ask, Starts{}
	if !s.onCandidate(name, a) {
		s.guard.Lock()
		l := s.of(name)
		l.add(printable.Line(err.Error()), now)
		depth, last = l.depth(now), l.report(now)
		s.guard.Unlock()
	}
	all := Candidates(s.probes.snapshot().config)
	i := slices.IndexFunc(all, func(d *handler.Definition) bool { return d.Digest() == digest })
	if i < 0 {
		return // new pods do not get this pod's Definition
	}
	if d := all[i]; d.Type == handler.CRI {
		s.probes.look([]*handler.Definition{d}, probe.Ask)
	} else {
		s.probes.decide(d, depth, last)
	}
}

// decide probes a handler after failed starts. A self-check pod that exceeds selfCheckPatience
// counts as failed until it finishes.
func (p *probes) decide(d *handler.Definition, depth probe.Depth, last Starts) {
	if len(p.idle([]*handler.Definition{d})) == 0 && depth < probe.RunPod {
		return
	}
	p.spawn(func(ctx context.Context) {
		if !p.probeAll(ctx, []*handler.Definition{d}, depth, selfCheckPatience) && depth == probe.RunPod {
			log.G(ctx).WithField("handler", d.Name).Warn("Self-check pod has not finished; the handler accepts no pods until the self-check pod has finished")
			p.mu.Lock()
			defer p.mu.Unlock()
			p.note(result{definition: d, at: time.Now(), depth: depth, err: unfinished(last)}, true)
			return
		}
		p.refresh()
	})
}
