package containerdapi

import (
	"cmp"
	"context"
	"time"

	events "github.com/containerd/containerd/api/events"
	core "github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/log"
	"google.golang.org/protobuf/types/known/timestamppb"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/pod"
)

type task struct {
	pid  uint32
	code uint32
	at   time.Time
	oom  bool
}

// next takes in what has happened, and returns the task as it was before a removal. False
// is a container that has none.
func (b *Broker) next(id string, t runtimeapi.ContainerEventType, now task, has bool) (task, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	known, ok := b.tasks[id]
	switch t {
	case runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT:
		if !has {
			return task{}, false
		}
		known = now
	case runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT:
		if !ok && !has {
			return task{}, false
		}
		now.pid = known.pid
		known = now
	case runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT:
		delete(b.tasks, id)
		return known, ok
	default:
		return task{}, false
	}
	if b.tasks == nil {
		b.tasks = map[string]task{}
	}
	b.tasks[id] = known
	return known, true
}

// Told implements events.Listener: what the CRI's subscribers are told of a pod is told
// to this API's, too, in its words.
func (b *Broker) Told(s *pod.Sandbox, c *pod.Container, id string, t runtimeapi.ContainerEventType) {
	now, has := taskOf(s, c, id)
	known, has := b.next(id, t, now, has)
	if !b.listened() {
		return
	}
	for _, e := range lifeEvents(s, c, id, t, known, has) {
		if err := b.Publish(context.Background(), e.topic, e.event); err != nil {
			log.L.WithError(err).WithField("container", id).Debug("Failed to publish event")
		}
	}
}

// taskOf is the task of a sandbox or container by its record; false if it has none.
func taskOf(s *pod.Sandbox, c *pod.Container, id string) (task, bool) {
	if id == s.ID() {
		return task{pid: uint32(s.Status().PID), at: time.Now()}, s.Spec().Plan.Process
	}
	if c == nil {
		return task{}, false
	}
	st := c.Status()
	return task{pid: uint32(st.PID), code: uint32(st.ExitCode), at: time.Unix(0, st.FinishedAt), oom: st.Reason == "OOMKilled"}, st.StartedAt != 0
}

type topical struct {
	topic string
	event core.Event
}

// lifeEvents are those of containerd for one of the CRI, in their order. c is nil if the
// event is about the sandbox, or about a container that is gone. Pure.
func lifeEvents(s *pod.Sandbox, c *pod.Container, id string, t runtimeapi.ContainerEventType, known task, has bool) []topical {
	var all []topical
	ofTask := func(topic string, event core.Event) {
		if has {
			all = append(all, topical{topic, event})
		}
	}
	switch t {
	case runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT:
		imageName := sandboxImage
		if c != nil {
			imageName = cmp.Or(c.Spec().ImageTag, c.Spec().ImageRef, c.Spec().ImageName)
		}
		all = append(all, topical{"/containers/create", &events.ContainerCreate{ID: id, Image: imageName, Runtime: &events.ContainerCreate_Runtime{Name: runtimeName(s.Spec().Definition)}}})
	case runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT:
		ofTask("/tasks/create", &events.TaskCreate{ContainerID: id, Pid: known.pid})
		ofTask("/tasks/start", &events.TaskStart{ContainerID: id, Pid: known.pid})
	case runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT:
		if known.oom {
			ofTask("/tasks/oom", &events.TaskOOM{ContainerID: id})
		}
		ofTask("/tasks/exit", &events.TaskExit{ContainerID: id, ID: id, Pid: known.pid, ExitStatus: known.code, ExitedAt: timestamppb.New(known.at)})
	case runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT:
		ofTask("/tasks/delete", &events.TaskDelete{ContainerID: id, ID: id, Pid: known.pid, ExitStatus: known.code, ExitedAt: timestamppb.New(known.at)})
		all = append(all, topical{"/containers/delete", &events.ContainerDelete{ID: id}})
	}
	return all
}
