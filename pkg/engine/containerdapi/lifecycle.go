package containerdapi

import (
	"context"
	"time"

	events "github.com/containerd/containerd/api/events"
	core "github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/log"
	"google.golang.org/protobuf/types/known/timestamppb"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/pod"
)

// Told implements events.Listener: what the CRI's subscribers are told of a pod is told
// to this API's, too, in its words.
func (b *Broker) Told(s *pod.Sandbox, c *pod.Container, id string, t runtimeapi.ContainerEventType) {
	if !b.listened() {
		return
	}
	for _, e := range lifeEvents(s, c, id, t) {
		if err := b.Publish(context.Background(), e.topic, e.event); err != nil {
			log.L.WithError(err).WithField("container", id).Debug("Failed to publish event")
		}
	}
}

type topical struct {
	topic string
	event core.Event
}

// lifeEvents are those of containerd for one of the CRI, in their order. c is nil if the
// event is about the sandbox, or about a container that is gone.
func lifeEvents(s *pod.Sandbox, c *pod.Container, id string, t runtimeapi.ContainerEventType) []topical {
	pid, hasTask := s.Status().PID, s.Status().PID != 0
	imageName := sandboxImage
	var code uint32
	var at time.Time
	oom := false
	if id != s.ID() {
		hasTask = true
		if c != nil {
			st := c.Status()
			pid, code, at, oom = st.PID, uint32(st.ExitCode), time.Unix(0, st.FinishedAt), st.Reason == "OOMKilled"
			imageName = c.Spec().ImageTag
		}
	}
	if at.IsZero() {
		at = time.Now()
	}
	var all []topical
	task := func(topic string, event core.Event) {
		if hasTask {
			all = append(all, topical{topic, event})
		}
	}
	switch t {
	case runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT:
		all = append(all, topical{"/containers/create", &events.ContainerCreate{ID: id, Image: imageName, Runtime: &events.ContainerCreate_Runtime{Name: runtimeName(s.Spec().Definition)}}})
	case runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT:
		task("/tasks/create", &events.TaskCreate{ContainerID: id, Pid: uint32(pid)})
		task("/tasks/start", &events.TaskStart{ContainerID: id, Pid: uint32(pid)})
	case runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT:
		if oom {
			task("/tasks/oom", &events.TaskOOM{ContainerID: id})
		}
		task("/tasks/exit", &events.TaskExit{ContainerID: id, ID: id, Pid: uint32(pid), ExitStatus: code, ExitedAt: timestamppb.New(at)})
	case runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT:
		task("/tasks/delete", &events.TaskDelete{ContainerID: id, ID: id, Pid: uint32(pid), ExitStatus: code, ExitedAt: timestamppb.New(at)})
		all = append(all, topical{"/containers/delete", &events.ContainerDelete{ID: id}})
	}
	return all
}
