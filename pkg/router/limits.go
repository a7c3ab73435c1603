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

// Keys of the limits that refuse starts.
const (
	maxPods           = "max_pods"
	maxParallelStarts = "max_parallel_starts"
	startTimeout      = "start_timeout"
)

// startQueue queues the starts of one handler; without limits no start waits. Each start brings the
// limits of its own Definition, so they may change between starts.
type startQueue struct {
	mu sync.Mutex
	// running counts the starts in progress.
	running int
	// waiting are the queued starts in the order of arrival. Each channel is closed when its start
	// may begin.
	waiting []chan struct{}
	// refused counts refused starts by the key of the limit.
	refused map[string]uint64
}

func newStartQueue() *startQueue {
	return &startQueue{refused: map[string]uint64{maxPods: 0, maxParallelStarts: 0, startTimeout: 0}}
}

// slot is an admitted start of a queue, until release.
type slot struct {
	queue *startQueue
	// waited is set if the start was not admitted at once.
	waited bool
	freed  bool
}

// acquire returns once a start may begin. It fails with ResourceExhausted if the start would exceed
// a limit, and with the context's error if ctx ends while it waits. pods counts the handler's live
// sandboxes: settled ones, and those of starts that still hold a slot.
func (l *startQueue) acquire(ctx context.Context, d *handler.Definition, pods func() (settled, unsettled int)) (*slot, error) {
	turn, err := l.enqueue(d, pods)
	if err != nil {
		return nil, err
	}
	select {
	case <-turn: // admitted at once
		return &slot{queue: l}, nil
	default:
	}
	select {
	case <-turn:
		return &slot{queue: l, waited: true}, nil
	case <-ctx.Done():
		l.giveUp(turn, d.Limits)
		return nil, fmt.Errorf("the call ended while its start was queued (%s = %d): %w", maxParallelStarts, d.Limits.MaxParallelStarts, ctx.Err())
	}
}

// enqueue appends a start to the queue, and admits the starts that may begin.
func (l *startQueue) enqueue(d *handler.Definition, pods func() (settled, unsettled int)) (chan struct{}, error) {
	limits := d.Limits
	l.mu.Lock()
	defer l.mu.Unlock()
	if most := limits.MaxPods; most > 0 {
		settled, unsettled := pods()
		if n := settled + max(unsettled, l.running+len(l.waiting)); n >= most {
			l.refused[maxPods]++
			return nil, exhausted("pods running or being created: %d, but %s is %d; stop some, or raise it under [runtimes.%s]", n, maxPods, most, d.Name)
		}
	}
	turn := make(chan struct{})
	l.waiting = append(l.waiting, turn)
	l.admit(limits.MaxParallelStarts)
	if last := len(l.waiting) - 1; last >= limits.MaxQueuedStarts && l.waiting[last] == turn {
		l.waiting = l.waiting[:last]
		l.refused[maxParallelStarts]++
		return nil, exhausted("pods being started: %d (%s is %d), waiting: %d (max_queued_starts is %d); try again later, or raise one of them under [runtimes.%s]",
			l.running, maxParallelStarts, limits.MaxParallelStarts, last, limits.MaxQueuedStarts, d.Name)
	}
	return turn, nil
}

func exhausted(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, errdefs.ErrResourceExhausted)...)
}

// admit begins waiting starts in order while fewer than limit run; 0 is unlimited. mu is held.
func (l *startQueue) admit(limit int) {
	for len(l.waiting) > 0 && (limit == 0 || l.running < limit) {
		close(l.waiting[0])
		l.waiting = l.waiting[1:]
		l.running++
	}
}

// giveUp ends the wait of a start. If it was admitted in the same moment, the next start is
// admitted instead.
func (l *startQueue) giveUp(turn chan struct{}, limits handler.Limits) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.waiting, turn); i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
		return
	}
	l.running--
	l.admit(limits.MaxParallelStarts)
}

// fill records the created sandbox and frees the slot, both under mu: each count contains the start
// exactly once, as a start or as a pod.
func (p *slot) fill(record func()) {
	p.queue.mu.Lock()
	defer p.queue.mu.Unlock()
	record()
	p.free()
}

// release ends a start, successful or not, and admits waiting ones.
func (p *slot) release(limits handler.Limits) {
	p.queue.mu.Lock()
	defer p.queue.mu.Unlock()
	p.free()
	p.queue.admit(limits.MaxParallelStarts)
}

// free removes the start from the running ones, once; mu is held.
func (p *slot) free() {
	if !p.freed {
		p.freed = true
		p.queue.running--
	}
}

// timedOut counts a start that exceeded start_timeout.
func (l *startQueue) timedOut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refused[startTimeout]++
}

func (l *startQueue) report(name string) Starts {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Starts{Handler: name, Running: l.running, Queued: len(l.waiting), Refused: maps.Clone(l.refused)}
}

// startQueues are the queues of all handlers that were requested for a pod, by name. A queue
// outlives the table of its handler.
type startQueues struct{ byName sync.Map }

func (all *startQueues) of(name string) *startQueue {
	l, there := all.byName.Load(name)
	if !there {
		l, _ = all.byName.LoadOrStore(name, newStartQueue())
	}
	return l.(*startQueue)
}

// Starts counts the starts of a handler.
type Starts struct {
	Handler string
	// Running starts are in progress, Queued ones wait.
	Running, Queued int
	// Refused counts refused starts since the daemon started, by the key of the limit. It has an
	// entry for every key.
	Refused map[string]uint64
}

func (all *startQueues) report(names []string) []Starts {
	for _, name := range names {
		all.of(name)
	}
	var found []Starts
	all.byName.Range(func(name, l any) bool {
		found = append(found, l.(*startQueue).report(name.(string)))
		return true
	})
	slices.SortFunc(found, func(a, b Starts) int { return cmp.Compare(a.Handler, b.Handler) })
	return found
}
