package router

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/pkg/handler"
)

// Keys of limits that starts are refused by.
const (
	maxPods           = "max_pods"
	maxParallelStarts = "max_parallel_starts"
	startTimeout      = "start_timeout"
)

// line is where the starts of one handler queue up. Without limits a start does not
// wait. Limits may be others for each start.
type line struct {
	mu sync.Mutex
	// running counts the starts at work.
	running int
	// queue has the starts that wait, in the order of arrival. Each is closed when its
	// turn has come.
	queue []chan struct{}
	// refused counts by the key of the limit.
	refused map[string]uint64
}

func newLine() *line {
	return &line{refused: map[string]uint64{maxPods: 0, maxParallelStarts: 0, startTimeout: 0}}
}

// place is a start's own in its line, until it leaves.
type place struct {
	line *line
	// waited says that the start was not let in at once.
	waited bool
	empty  bool
}

// enter returns when a start may begin, or says why it must not: it would be
// over a limit (ResourceExhausted), or its context ended while it waited. pods
// counts the handler's live sandboxes: those that are settled, and those of
// starts that are in the line still.
func (l *line) enter(ctx context.Context, d *handler.Definition, pods func() (settled, unsettled int)) (*place, error) {
	turn, err := l.queueUp(d, pods)
	if err != nil {
		return nil, err
	}
	select {
	case <-turn: // let in at once
		return &place{line: l}, nil
	default:
	}
	select {
	case <-turn:
		return &place{line: l, waited: true}, nil
	case <-ctx.Done():
		l.giveUp(turn, d.Limits)
		return nil, fmt.Errorf("the call was cancelled while it waited for its turn (%s = %d): %w", maxParallelStarts, d.Limits.MaxParallelStarts, ctx.Err())
	}
}

// queueUp puts a start at the end of the line, and lets in whose turn it is.
func (l *line) queueUp(d *handler.Definition, pods func() (settled, unsettled int)) (chan struct{}, error) {
	limits := d.Limits
	l.mu.Lock()
	defer l.mu.Unlock()
	if most := limits.MaxPods; most > 0 {
		settled, unsettled := pods()
		if n := settled + max(unsettled, l.running+len(l.queue)); n >= most {
			l.refused[maxPods]++
			return nil, exhausted("pods running or being created: %d, but %s is %d; stop some, or raise it under [runtimes.%s]", n, maxPods, most, d.Name)
		}
	}
	turn := make(chan struct{})
	l.queue = append(l.queue, turn)
	l.letIn(limits.MaxParallelStarts)
	if last := len(l.queue) - 1; last >= limits.MaxQueuedStarts && l.queue[last] == turn {
		l.queue = l.queue[:last]
		l.refused[maxParallelStarts]++
		return nil, exhausted("pods being started: %d (%s is %d), waiting: %d (max_queued_starts is %d); try again later, or raise one of them under [runtimes.%s]",
			l.running, maxParallelStarts, limits.MaxParallelStarts, last, limits.MaxQueuedStarts, d.Name)
	}
	return turn, nil
}

func exhausted(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, errdefs.ErrResourceExhausted)...)
}

// letIn begins the starts whose turn it is; mu is held. most is how many may run.
func (l *line) letIn(most int) {
	for len(l.queue) > 0 && (most == 0 || l.running < most) {
		close(l.queue[0])
		l.queue = l.queue[1:]
		l.running++
	}
}

// giveUp ends the waiting of a start. Its turn may have come that very moment.
func (l *line) giveUp(turn chan struct{}, limits handler.Limits) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.queue, turn); i >= 0 {
		l.queue = slices.Delete(l.queue, i, i+1)
		return
	}
	l.running--
	l.letIn(limits.MaxParallelStarts)
}

// fill records the sandbox that was made, which from then on is counted as a pod.
// A count never has both the place and the sandbox that takes it, or neither.
func (p *place) fill(record func()) {
	p.line.mu.Lock()
	defer p.line.mu.Unlock()
	record()
	p.clear()
}

// leave ends a start, whatever came of it, and lets in those that wait.
func (p *place) leave(limits handler.Limits) {
	p.line.mu.Lock()
	defer p.line.mu.Unlock()
	p.clear()
	p.line.letIn(limits.MaxParallelStarts)
}

// clear takes the start out of those at work, once; mu is held.
func (p *place) clear() {
	if !p.empty {
		p.empty = true
		p.line.running--
	}
}

// timedOut counts a start that start_timeout ended.
func (l *line) timedOut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refused[startTimeout]++
}

func (l *line) report(name string) Starts {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Starts{Handler: name, Running: l.running, Queued: len(l.queue), Refused: maps.Clone(l.refused)}
}

// lines are those of handlers that were asked for a pod, by name: a *line outlives the
// table that its handler was in.
type lines struct{ byName sync.Map }

func (all *lines) of(name string) *line {
	l, there := all.byName.Load(name)
	if !there {
		l, _ = all.byName.LoadOrStore(name, newLine())
	}
	return l.(*line)
}

// Starts is how the starts of a handler stand.
type Starts struct {
	Handler string
	// Running are at work, and Queued wait for their turn.
	Running, Queued int
	// Refused counts what was refused since the daemon started, by the key of
	// the limit. All keys are there.
	Refused map[string]uint64
}

func (all *lines) report(names []string) []Starts {
	for _, name := range names {
		all.of(name)
	}
	var found []Starts
	all.byName.Range(func(name, l any) bool {
		found = append(found, l.(*line).report(name.(string)))
		return true
	})
	slices.SortFunc(found, func(a, b Starts) int { return cmp.Compare(a.Handler, b.Handler) })
	return found
}
