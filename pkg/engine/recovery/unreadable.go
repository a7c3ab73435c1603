package recovery

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/store"
	"github.com/berth-cri/berth/pkg/engine/task"
	"github.com/berth-cri/berth/pkg/handler"
)

// showBroken lists sandboxes with unreadable records under a generated name. Their definition is
// lost, so they can only be removed.
func (r *recovery) showBroken() {
	var orphans []string
	for _, b := range slices.Concat(r.Broken.Sandboxes, r.Broken.Containers) {
		if b.StatusOnly {
			r.log.WithError(b.Err).WithField("id", b.ID).Error("Failed to read status; rolling back the object as partially created")
			continue
		}
		orphans = append(orphans, b.ID)
		for _, o := range r.Pods.Containers.List() {
			if o.Spec().Sandbox == b.ID { // its supervisor is unknown, too
				orphans = append(orphans, o.ID())
			}
		}
	}
	each(orphans, r.killOrphan)
	for _, b := range r.Broken.Sandboxes {
		if b.StatusOnly {
			continue
		}
		r.log.WithError(b.Err).WithField("sandbox", b.ID).Error("Failed to read sandbox record; listed as NotReady")
		spec := pod.SandboxSpec{Definition: &handler.Definition{Name: "unknown", Type: handler.OCI}, CreatedAt: r.Pods.Clock.Now(), Supervisor: "unknown"}
		spec.Config.Msg = &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: "unreadable", Namespace: "unknown", Uid: b.ID}}
		err := r.Pods.Sandboxes.Discard(b.ID)
		if err == nil {
			// It may have been connected: its stop disconnects it before it releases the
			// namespaces.
			_, err = r.Pods.Sandboxes.Create(b.ID, spec, pod.SandboxStatus{Phase: pod.PhaseStopped, Tried: true}, store.Durable)
		}
		if err != nil {
			r.log.WithError(err).WithField("sandbox", b.ID).Error("Failed to replace unreadable record")
		}
	}
	for _, b := range r.Broken.Containers {
		if b.StatusOnly {
			continue
		}
		r.log.WithError(b.Err).WithField("container", b.ID).Error("Failed to read container record; removing it")
		if err := r.Pods.Containers.Discard(b.ID); err != nil {
			r.log.WithError(err).WithField("container", b.ID).Error("Failed to remove unreadable record")
		}
	}
}

// killOrphan kills a task without a readable record: it is in no list and would run for ever. It
// does not wait for an unresponsive supervisor.
func (r *recovery) killOrphan(id string) {
	keys, err := r.Shims.Keys()
	if err != nil {
		r.log.WithError(err).WithField("id", id).Error("Failed to kill task with unreadable record")
	}
	for _, key := range keys {
		if _, err := os.Stat(filepath.Join(r.Shims.SupervisorDir(key), "tasks", id)); err != nil {
			continue
		}
		if r.unresponsive.has(key) {
			go r.killOrphanOf(key, id, pod.UndoTimeout)
			continue
		}
		r.killOrphanOf(key, id, task.RecoveryAnswer)
	}
}

func (r *recovery) killOrphanOf(key, id string, patience time.Duration) {
	ctx, cancel := context.WithTimeout(r.Pods.Background, patience)
	defer cancel()
	client, err := r.Shims.Supervisor(ctx, key)
	if err == nil {
		err = task.EndTask(ctx, client, id)
	}
	if err != nil {
		r.log.WithError(err).WithField("id", id).WithField("supervisor", key).Error("Failed to kill task with unreadable record")
	}
}
