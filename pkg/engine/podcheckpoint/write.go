package podcheckpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/containerd/typeurl/v2"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/atomicfile"
	"github.com/berth-cri/berth/pkg/engine/binaries"
	"github.com/berth-cri/berth/pkg/engine/capabilities"
	"github.com/berth-cri/berth/pkg/engine/failpoint"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/podcheckpoint/manifest"
	"github.com/berth-cri/berth/pkg/engine/task"
	"github.com/berth-cri/berth/pkg/engine/validate"
	supervisorv1 "github.com/berth-cri/berth/proto/berth/supervisor/v1"
)

// writing writes pods.
type writing struct {
	pods         *pod.Registry
	binaries     *binaries.Binaries
	tasks        *task.Service
	capabilities *capabilities.Checker
	notes        *notes
}

// CheckpointPod writes a pod, with all containers that run in it, into a directory. All of
// them stand still meanwhile, and go on before it returns. After an error the directory
// is empty, as it was.
func (b *writing) CheckpointPod(ctx context.Context, r *runtimeapi.CheckpointPodRequest) (*runtimeapi.CheckpointPodResponse, error) {
	if err := validate.CheckpointPod(r); err != nil {
		return nil, err
	}
	if err := needDeadline(ctx); err != nil {
		return nil, err
	}
	s, err := b.pods.Index.Sandbox(r.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	rt, err := b.binaries.Prober.Probe(ctx, b.binaries.Runtimes.Of(s.Spec()))
	if err != nil {
		return nil, err
	}
	if err := need(ctx, b.capabilities, s.Spec().Definition, rt); err != nil {
		return nil, err
	}
	m := &manifest.Manifest{Sandbox: s.ID(), Compression: cmp.Or(r.GetOptions()[validate.Compression], validate.NoCompression), Handler: handlerOf(s.Spec().Definition, rt, s.Spec().Binaries())}
	if m.Node, err = thisNode(); err != nil {
		return nil, err
	}
	dir := filepath.Clean(r.GetOutputPath())
	if err := manifest.Empty(dir); err != nil {
		return nil, err
	}
	if err := s.Op.Lock(ctx); err != nil {
		return nil, err
	}
	defer s.Op.Unlock()
	if err := s.Open(); err != nil {
		return nil, err
	}
	containers, unlock, err := b.hold(ctx, s, r.GetContainerIds())
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := b.write(ctx, s, containers, m, dir); err != nil {
		return nil, fmt.Errorf("checkpoint pod: %w", errors.Join(err, manifest.Remove(dir)))
	}
	log.G(ctx).WithFields(log.Fields{"sandbox": s.ID(), "directory": dir}).Info("Checkpoint of pod written")
	return &runtimeapi.CheckpointPodResponse{}, nil
}

// hold keeps the containers of s that a caller named from being changed until unlock is
// called. They must be all that run.
func (b *writing) hold(ctx context.Context, s *pod.Sandbox, ids []string) (_ []*pod.Container, _ func(), err error) {
	var held []*pod.Container
	unlock := func() {
		for _, c := range held {
			c.Op.Unlock()
		}
	}
	defer func() {
		if err != nil {
			unlock()
		}
	}()
	var asked []*pod.Container
	for _, id := range ids {
		c, err := b.pods.Index.Container(id)
		if err != nil {
			return nil, nil, err
		}
		if c.Sandbox.ID() != s.ID() {
			return nil, nil, fmt.Errorf("container %s belongs to another pod than sandbox %s; name the containers of this one: %w", c.ID(), s.ID(), errdefs.ErrInvalidArgument)
		}
		asked = append(asked, c)
	}
	// In one order, so that two calls do not wait for each other.
	slices.SortFunc(asked, func(a, b *pod.Container) int { return strings.Compare(a.ID(), b.ID()) })
	for _, c := range asked {
		if err := c.Op.Lock(ctx); err != nil {
			return nil, nil, err
		}
		held = append(held, c)
		if p := c.Status().Phase; p != pod.PhaseRunning {
			return nil, nil, fmt.Errorf("container %s is %s; only running containers can be checkpointed: %w", c.ID(), p, errdefs.ErrFailedPrecondition)
		}
	}
	if err := b.alone(ctx, s, held); err != nil {
		return nil, nil, err
	}
	return held, unlock, nil
}

// alone fails if more runs in s than held, and waits until the runtime has forgotten what
// has ended: all that it knows is written.
func (b *writing) alone(ctx context.Context, s *pod.Sandbox, held []*pod.Container) error {
	for _, c := range b.pods.Index.ContainersOf(s.ID()) {
		switch {
		case slices.Contains(held, c):
		case c.Status().Phase == pod.PhaseRunning:
			return fmt.Errorf("container %s (%s) runs in the pod, too, on the same kernel; name it as well, or stop it: %w", c.ID(), c.Config().GetMetadata().GetName(), errdefs.ErrFailedPrecondition)
		case c.Status().Phase == pod.PhaseExited:
			select {
			case <-c.Erased:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	return nil
}

// write needs the locks of s and its containers. What it leaves after an error is for the
// caller to remove.
func (b *writing) write(ctx context.Context, s *pod.Sandbox, containers []*pod.Container, m *manifest.Manifest, dir string) (err error) {
	if err := describe(m, s, containers); err != nil {
		return err
	}
	if err := b.notes.begin(s.ID(), dir); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.notes.end(s.ID())) }()
	failpoint.Hit(failpoint.PodCheckpointNoted)
	images := filepath.Join(dir, manifest.ImagesDir)
	if err := rootOnly(images); err != nil {
		return err
	}
	client, err := b.tasks.Worker(ctx, s)
	if err != nil {
		return err
	}
	options, err := typeurl.MarshalAnyToProto(&supervisorv1.SandboxCheckpointOptions{Compression: m.Compression})
	if err != nil {
		return err
	}
	// A caller that leaves does not stop the pod's kernel in the middle of it, which goes
	// on by itself when it is done.
	_, err = client.Task.Checkpoint(context.WithoutCancel(ctx), &taskapi.CheckpointTaskRequest{ID: s.ID(), Path: images, Options: options})
	if err != nil {
		return explainFull(task.FromShim(err), dir)
	}
	failpoint.Hit(failpoint.PodCheckpointWritten)
	if err := b.alone(ctx, s, containers); err != nil {
		return fmt.Errorf("the pod changed meanwhile; try again: %w", err)
	}
	for _, c := range containers {
		if c.Status().Phase != pod.PhaseRunning {
			return fmt.Errorf("container %s ended meanwhile: %w", c.ID(), errdefs.ErrFailedPrecondition)
		}
	}
	if err := manifest.Seal(ctx, dir, m); err != nil {
		return err
	}
	return atomicfile.SyncDir(dir)
}

// full is how much of a disk runtimes leave when they have no room any more.
const full = 64 << 10

// explainFull says of an error that the disk of dir is full, if it is: what runtimes say then
// is about their own code.
func explainFull(err error, dir string) error {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil || int64(st.Bavail)*st.Bsize > full { //nolint:gosec // no disk is that large
		return err
	}
	return fmt.Errorf("no space left on the disk of %s; free some, or use another (%v): %w", dir, err, errdefs.ErrResourceExhausted)
}

// describe fills m with what is known of a pod.
func describe(m *manifest.Manifest, s *pod.Sandbox, containers []*pod.Container) (err error) {
	m.Created = time.Now().UTC()
	if m.Pod, err = manifest.Encode(s.Config()); err != nil {
		return err
	}
	for _, c := range containers {
		config, err := manifest.Encode(c.Config())
		if err != nil {
			return err
		}
		m.Containers = append(m.Containers, manifest.Container{
			Name: c.Config().GetMetadata().GetName(), ID: c.ID(), Config: config,
			Image: manifest.Image{ID: c.Spec().ImageID, Ref: c.Spec().ImageRef, Name: c.Spec().ImageName},
		})
	}
	return nil
}
