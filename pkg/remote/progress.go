package remote

import (
	"cmp"
	"slices"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// step is how far a sandbox or container has come. Steps only go up.
type step int

const (
	created step = iota
	started
	stopped
	deleted
)

// subject is a sandbox or container that events are about.
type subject struct {
	id, sandbox string
	step        step
	// madeAt orders what was made.
	madeAt int64
}

// progress is how far everything of a daemon has come, by id.
type progress map[string]subject

// progressOf is that of a state. Pure.
func progressOf(s *state) progress {
	p := progress{}
	for id, sandbox := range s.sandboxes {
		at := started
		if sandbox.GetState() != runtimeapi.PodSandboxState_SANDBOX_READY {
			at = stopped
		}
		p[id] = subject{id: id, sandbox: id, step: at, madeAt: sandbox.GetCreatedAt()}
	}
	for id, c := range s.containers {
		at := created
		switch c.GetState() {
		case runtimeapi.ContainerState_CONTAINER_RUNNING:
			at = started
		case runtimeapi.ContainerState_CONTAINER_EXITED:
			at = stopped
		}
		p[id] = subject{id: id, sandbox: c.GetPodSandboxId(), step: at, madeAt: c.GetCreatedAt()}
	}
	return p
}

// transition is one step of one subject.
type transition struct {
	subject
	to runtimeapi.ContainerEventType
}

// missed are the transitions from before to after, in an order in which they may
// have happened: what was made in the order in which it was made, sandboxes
// before their containers; then what ended, containers before their sandboxes. Pure.
func missed(before, after progress) []transition {
	var made, ended []transition
	for id, now := range after {
		from := created - 1
		if was, there := before[id]; there {
			from = was.step
		}
		for s := from + 1; s <= now.step; s++ {
			if t := (transition{now, eventOf(s)}); s < stopped {
				made = append(made, t)
			} else {
				ended = append(ended, t)
			}
		}
	}
	for id, was := range before {
		if _, there := after[id]; there {
			continue
		}
		for s := max(was.step+1, stopped); s <= deleted; s++ {
			ended = append(ended, transition{was, eventOf(s)})
		}
	}
	container := func(t transition) int {
		if t.id == t.sandbox {
			return 0
		}
		return 1
	}
	slices.SortFunc(made, func(a, b transition) int {
		return cmp.Or(cmp.Compare(container(a), container(b)), cmp.Compare(a.madeAt, b.madeAt), cmp.Compare(a.id, b.id), cmp.Compare(a.to, b.to))
	})
	slices.SortFunc(ended, func(a, b transition) int {
		return cmp.Or(cmp.Compare(container(b), container(a)), cmp.Compare(a.madeAt, b.madeAt), cmp.Compare(a.id, b.id), cmp.Compare(a.to, b.to))
	})
	return append(made, ended...)
}

func eventOf(s step) runtimeapi.ContainerEventType {
	return map[step]runtimeapi.ContainerEventType{
		created: runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT,
		started: runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT,
		stopped: runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT,
		deleted: runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT,
	}[s]
}

// stepOf is how far something has come by an event, if this CRI knows the event.
func stepOf(e runtimeapi.ContainerEventType) (step, bool) {
	switch e {
	case runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT:
		return created, true
	case runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT:
		return started, true
	case runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT:
		return stopped, true
	case runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT:
		return deleted, true
	}
	return 0, false
}

// heard takes an event into account, and says whether it tells anything new.
// What is deleted stays known as that, because events of it may be late.
func (p progress) heard(id, sandbox string, to runtimeapi.ContainerEventType, at int64) bool {
	was, there := p[id]
	now, _ := stepOf(to)
	if there && now <= was.step || !there && now == deleted {
		return false
	}
	if !there {
		was = subject{id: id, sandbox: cmp.Or(sandbox, id), madeAt: at}
	}
	was.step = now
	p[id] = was
	return true
}

// renewed is after, with what was deleted since before. What was deleted by then
// already is forgotten: no event is that late. What a list is behind with was
// told by an event before, and is not told again. Pure.
func renewed(before, after progress) progress {
	for id, was := range before {
		now, there := after[id]
		switch {
		case there && now.step < was.step:
			now.step = was.step
			after[id] = now
		case !there && was.step != deleted:
			was.step = deleted
			after[id] = was
		}
	}
	return after
}
