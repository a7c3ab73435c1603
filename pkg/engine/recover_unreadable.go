package engine

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/containerd/log"
	"golang.org/x/sync/errgroup"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/store"
	"github.com/berth-cri/berth/pkg/handler"
)

// unreadable are the records that cannot be read.
type unreadable struct {
	background context.Context // ends with the engine
	log        *log.Entry
	clock      *clock
	broken     brokenRecords
	pods       *sandboxRecords
	ctrs       *containerRecords
	shims      foundlings
	silent     *silence
}

// foundlings are supervisors that are there, whoever needs them.
type foundlings interface {
	supervisors
	Keys() ([]string, error)
	SupervisorDir(key string) string
}

// showBroken lists sandboxes whose records cannot be read under a name of their
// own. Their definition is lost, so removal is all that can be done for them.
func (r *unreadable) showBroken() {
	g := errgroup.Group{}
	g.SetLimit(recoveryParallel)
	for _, b := range slices.Concat(r.broken.sandboxes, r.broken.containers) {
		if b.StatusOnly {
			r.log.WithError(b.Err).WithField("id", b.ID).Error("a status cannot be read; the object is taken back as if it had never been whole")
			continue
		}
		g.Go(func() error { r.endOrphan(b.ID); return nil })
	}
	_ = g.Wait()
	for _, b := range r.broken.sandboxes {
		if b.StatusOnly {
			continue
		}
		r.log.WithError(b.Err).WithField("sandbox", b.ID).Error("a sandbox's record cannot be read; it is listed as not ready")
		spec := sandboxSpec{Definition: &handler.Definition{Name: "unknown", Type: handler.OCI}, CreatedAt: r.clock.now(), Supervisor: "unknown"}
		spec.Config.msg = &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: "unreadable", Namespace: "unknown", Uid: b.ID}}
		r.replaceBroken(b, spec)
	}
	for _, b := range r.broken.containers {
		if b.StatusOnly {
			continue
		}
		r.log.WithError(b.Err).WithField("container", b.ID).Error("a container's record cannot be read; it is removed")
		if err := r.ctrs.Discard(b.ID); err != nil {
			r.log.WithError(err).WithField("container", b.ID).Error("remove an unreadable record")
		}
	}
}

// endOrphan ends a task of which nobody knows any more whose it was: what runs
// and is in no list would run for ever. A silent supervisor is not waited for.
func (r *unreadable) endOrphan(id string) {
	keys, err := r.shims.Keys()
	if err != nil {
		r.log.WithError(err).WithField("id", id).Error("end a task whose record cannot be read")
	}
	for _, key := range keys {
		if _, err := os.Stat(filepath.Join(r.shims.SupervisorDir(key), "tasks", id)); err != nil {
			continue
		}
		if r.silent.has(key) {
			go r.endOrphanOf(key, id, undoTimeout)
			continue
		}
		r.endOrphanOf(key, id, recoveryAnswer)
	}
}

func (r *unreadable) endOrphanOf(key, id string, patience time.Duration) {
	ctx, cancel := context.WithTimeout(r.background, patience)
	defer cancel()
	client, err := r.shims.Supervisor(ctx, key)
	if err == nil {
		err = endTask(ctx, client, id)
	}
	if err != nil {
		r.log.WithError(err).WithField("id", id).WithField("supervisor", key).Error("end a task whose record cannot be read")
	}
}

func (r *unreadable) replaceBroken(b store.Broken, spec sandboxSpec) {
	err := r.pods.Discard(b.ID)
	if err == nil {
		_, err = r.pods.Create(b.ID, spec, sandboxStatus{Phase: phaseStopped}, store.Durable)
	}
	if err != nil {
		r.log.WithError(err).WithField("sandbox", b.ID).Error("replace an unreadable record")
	}
}
