package router

import (
	"container/list"
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/pkg/handler"
)

// Keys of limits that starts are refused by.
const (
	maxPods           = "max_pods"
	maxParallelStarts = "max_parallel_starts"
	startTimeout      = "start_timeout"
)

// line is where the starts of one handler queue up. Without limits a start waits
// for nobody. Limits may be others for each start.
type line struct {
	// running are at work; begun are those, the ones that wait, and places that stay.
	running, begun atomic.Int64
	// waiting is the length of queue, for those who do not hold mu. It is raised
	// before a start that is about to wait looks at running for the last time,
	// and running is lowered before waiting is looked at: so one of the two sees
	// the other, and no start waits for nobody.
	waiting atomic.Int64

	overPods, overStarts, overTime atomic.Uint64

	mu sync.Mutex
	// queue holds chan struct{}, closed when its turn has come, in the order of
	// arrival. Those that are in it are begun, not running.
	queue list.List
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
	limits := d.Limits
	p := &place{line: l}
	if limits.MaxPods == 0 && limits.MaxParallelStarts == 0 && l.waiting.Load() == 0 {
		l.begun.Add(1)
		l.running.Add(1)
		return p, nil
	}
	turn, err := l.queueUp(d, pods)
	if err != nil {
		return nil, err
	}
	select {
	case <-turn: // let in at once
		return p, nil
	default:
	}
	p.waited = true
	select {
	case <-turn:
		return p, nil
	case <-ctx.Done():
		l.giveUp(turn, limits)
		return nil, fmt.Errorf("the call was cancelled while it waited for its turn (%s = %d): %w", maxParallelStarts, limits.MaxParallelStarts, ctx.Err())
	}
}

// queueUp puts a start at the end of the line, and lets in whose turn it is.
func (l *line) queueUp(d *handler.Definition, pods func() (settled, unsettled int)) (chan struct{}, error) {
	limits := d.Limits
	l.mu.Lock()
	defer l.mu.Unlock()
	if most := limits.MaxPods; most > 0 {
		settled, unsettled := pods()
		if n := settled + max(unsettled, int(l.begun.Load())); n >= most {
			l.overPods.Add(1)
			return nil, exhausted("pods running or being created: %d, but %s is %d; stop some, or raise it under [runtimes.%s]", n, maxPods, most, d.Name)
		}
	}
	turn := make(chan struct{})
	e := l.queue.PushBack(turn)
	l.begun.Add(1)
	l.waiting.Add(1)
	l.letIn(limits.MaxParallelStarts)
	if l.queue.Len() > limits.MaxQueuedStarts && l.queue.Back() == e {
		l.drop(e)
		l.overStarts.Add(1)
		return nil, exhausted("pods being started: %d (%s is %d), waiting: %d (max_queued_starts is %d); try again later, or raise one of them under [runtimes.%s]",
			l.running.Load(), maxParallelStarts, limits.MaxParallelStarts, l.queue.Len(), limits.MaxQueuedStarts, d.Name)
	}
	return turn, nil
}

func exhausted(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, errdefs.ErrResourceExhausted)...)
}

// letIn begins the starts whose turn it is; mu is held. most is how many may run.
func (l *line) letIn(most int) {
	for l.queue.Len() > 0 && (most == 0 || l.running.Load() < int64(most)) {
		turn := l.queue.Remove(l.queue.Front()).(chan struct{})
		l.waiting.Add(-1)
		l.running.Add(1)
		close(turn)
	}
}

// drop takes a start out of the queue; mu is held.
func (l *line) drop(e *list.Element) {
	l.queue.Remove(e)
	l.waiting.Add(-1)
	l.begun.Add(-1)
}

// giveUp ends the waiting of a start. Its turn may have come that very moment.
func (l *line) giveUp(turn chan struct{}, limits handler.Limits) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for e := l.queue.Front(); e != nil; e = e.Next() {
		if e.Value == turn {
			l.drop(e)
			return
		}
	}
	l.running.Add(-1)
	l.begun.Add(-1)
	l.letIn(limits.MaxParallelStarts)
}

// fill records the sandbox that was made, which from then on is counted as a pod.
// Nobody who counts sees both the place and the sandbox that takes it, or neither.
func (p *place) fill(record func()) {
	p.line.mu.Lock()
	defer p.line.mu.Unlock()
	record()
	p.clear()
}

// leave ends a start, whatever came of it, and lets in who waits.
func (p *place) leave(limits handler.Limits) {
	p.clear()
	p.line.next(limits)
}

// next lets in who waits.
func (l *line) next(limits handler.Limits) {
	if l.waiting.Load() > 0 {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.letIn(limits.MaxParallelStarts)
	}
}

func (p *place) clear() {
	if p.empty {
		return
	}
	p.empty = true
	p.line.running.Add(-1)
	p.line.begun.Add(-1)
}

func (l *line) report(name string) Starts {
	return Starts{
		Handler: name, Running: int(l.running.Load()), Queued: int(l.waiting.Load()),
		Refused: map[string]uint64{
			maxPods: l.overPods.Load(), maxParallelStarts: l.overStarts.Load(), startTimeout: l.overTime.Load(),
		},
	}
}
