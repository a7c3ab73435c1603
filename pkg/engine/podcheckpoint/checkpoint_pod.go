package podcheckpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
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

	"github.com/berth-cri/berth/pkg/engine/failpoint"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/podcheckpoint/manifest"
	"github.com/berth-cri/berth/pkg/engine/task"
	"github.com/berth-cri/berth/pkg/engine/validate"
	supervisorv1 "github.com/berth-cri/berth/proto/berth/supervisor/v1"
)

// CheckpointPod writes a pod, with all its running containers, to a directory. The containers are
// frozen meanwhile, and resumed before it returns. After an error it removes the written files.
func (b *Service) CheckpointPod(ctx context.Context, r *runtimeapi.CheckpointPodRequest) (_ *runtimeapi.CheckpointPodResponse, err error) {
	defer b.observe("checkpoint", time.Now(), &err)
	if err := validate.CheckpointPod(r); err != nil {
		return nil, err
	}
	dir, release, err := use(ctx, r.GetOutputPath())
	if err != nil {
		return nil, err
	}
	defer release()
	s, err := b.Pods.Index.Sandbox(r.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	rt, err := b.Binaries.Prober.Probe(ctx, b.Binaries.Runtimes.Of(s.Spec()))
	if err != nil {
		return nil, err
	}
	if err := checkCapability(ctx, b.Capabilities, s.Spec().Definition, rt); err != nil {
		return nil, err
	}
	m := &manifest.Manifest{Sandbox: s.ID(), Compression: cmp.Or(r.GetOptions()[validate.Compression], validate.NoCompression), Handler: handlerOf(s.Spec().Definition, rt, s.Spec().Pinned.Binaries)}
	if m.Node, err = thisNode(); err != nil {
		return nil, err
	}
	if err := b.write(ctx, s, r.GetContainerIds(), m, dir); err != nil {
		return nil, fmt.Errorf("checkpoint pod: %w", err)
	}
	log.G(ctx).WithFields(log.Fields{"sandbox": s.ID(), "directory": dir}).Info("Checkpoint of pod written")
	return &runtimeapi.CheckpointPodResponse{}, nil
}

// write writes the pod to a directory. After an error it removes the files. If the removal fails, a
// note stays, and the next start of the daemon retries.
func (b *Service) write(ctx context.Context, s *pod.Sandbox, ids []string, m *manifest.Manifest, dir string) (err error) {
	if err := manifest.Empty(dir); err != nil {
		return err
	}
	of := note{s.ID(), dir}
	if err := b.notes.begin(of); err != nil {
		return err
	}
	claimed := false
	defer func() {
		if err != nil && claimed {
			if rerr := manifest.Remove(dir); rerr != nil {
				err = errors.Join(err, rerr)
				return
			}
		}
		if nerr := b.notes.end(of); nerr != nil {
			// The daemon's next start finds the note, and keeps a complete checkpoint.
			log.G(ctx).WithError(nerr).WithFields(log.Fields{"sandbox": s.ID(), "directory": dir}).Warn("Failed to remove note of checkpoint; the next start of berth retries")
		}
	}()
	failpoint.Hit(failpoint.PodCheckpointNoted)
	// This Mkdir claims the directory: a concurrent call fails.
	if err := os.Mkdir(filepath.Join(dir, manifest.ImagesDir), 0o700); err != nil {
		return err
	}
	claimed = true
	if err := b.dump(ctx, s, ids, m, dir); err != nil {
		return err
	}
	failpoint.Hit(failpoint.PodCheckpointWritten)
	return manifest.Seal(ctx, dir, m)
}

// dump makes the runtime write the pod. It holds the pod's lock while the pod is frozen.
func (b *Service) dump(ctx context.Context, s *pod.Sandbox, ids []string, m *manifest.Manifest, dir string) error {
	if err := s.Op.Lock(ctx); err != nil {
		return err
	}
	defer s.Op.Unlock()
	if err := s.Open(); err != nil {
		return err
	}
	containers, unlock, err := b.hold(ctx, s, ids)
	if err != nil {
		return err
	}
	defer unlock()
	if err := describe(m, s, containers); err != nil {
		return err
	}
	before := b.started(s)
	if err := b.call(ctx, s, m.Compression, dir); err != nil {
		return explainFull(err, dir)
	}
	switch now := b.started(s); {
	case maps.Equal(now, before):
		return nil
	case s.Ending.Load() > 0:
		return errStopped
	}
	return fmt.Errorf("a container of the pod started or exited meanwhile; try again: %w", errdefs.ErrUnavailable)
}

var errStopped = fmt.Errorf("the pod was stopped meanwhile: %w", errdefs.ErrFailedPrecondition)

// call makes the runtime write the pod. If ctx ends, the pod's kernel completes the checkpoint and
// then resumes by itself. If the pod is stopped, the frozen kernel is killed and writes nothing
// more.
func (b *Service) call(ctx context.Context, s *pod.Sandbox, compression, dir string) error {
	client, err := b.Tasks.Worker(ctx, s)
	if err != nil {
		return err
	}
	options, err := typeurl.MarshalAnyToProto(&supervisorv1.SandboxCheckpointOptions{Compression: compression})
	if err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx)
	stopped, giveUp := context.WithCancel(ctx)
	defer giveUp()
	s.Writing.Store(&giveUp)
	defer s.Writing.Store(nil)
	if s.Ending.Load() > 0 {
		giveUp() // the stop began before Writing was set
	}
	var answer error
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		_, err := client.Task.Checkpoint(ctx, &taskapi.CheckpointTaskRequest{ID: s.ID(), Path: filepath.Join(dir, manifest.ImagesDir), Options: options})
		answer = task.FromShim(err)
	}()
	select {
	case <-answered:
		return answer
	case <-stopped.Done():
	}
	err = errStopped
	bounded, cancel := context.WithTimeout(ctx, pod.KillGrace)
	defer cancel()
	if _, kerr := client.Task.Kill(bounded, &taskapi.KillRequest{ID: s.ID(), Signal: uint32(unix.SIGKILL)}); kerr != nil && !errdefs.IsNotFound(task.FromShim(kerr)) {
		err = errors.Join(err, task.FromShim(kerr))
	}
	select {
	case <-answered: // the runtime creates no more files
	case <-bounded.Done():
	}
	return err
}

// started returns the containers of s that were ever started, by id, with their start times and
// phases.
func (b *Service) started(s *pod.Sandbox) map[string]string {
	all := map[string]string{}
	for _, c := range b.Pods.Index.ContainersOf(s.ID()) {
		if st := c.Status(); st.StartedAt != 0 {
			all[c.ID()] = fmt.Sprint(st.StartedAt, st.Phase)
		}
	}
	return all
}

// hold prevents the start and stop of the containers of s until unlock is called. It returns the
// containers with the given ids, and fails unless these are exactly the running containers of s.
func (b *Service) hold(ctx context.Context, s *pod.Sandbox, ids []string) (_ []*pod.Container, _ func(), err error) {
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
	named, err := b.named(s, ids)
	if err != nil {
		return nil, nil, err
	}
	all := b.Pods.Index.ContainersOf(s.ID())
	// A fixed order prevents a deadlock of two calls.
	slices.SortFunc(all, func(a, b *pod.Container) int { return strings.Compare(a.ID(), b.ID()) })
	for _, c := range all {
		if err := c.Op.Lock(ctx); err != nil {
			return nil, nil, err
		}
		held = append(held, c)
		if err := fit(ctx, c, slices.Contains(named, c)); err != nil {
			return nil, nil, err
		}
	}
	if b.Pods.Index.Waits(s) {
		return nil, nil, fmt.Errorf("sandbox %s is being restored itself; start all of its containers first: %w", s.ID(), errdefs.ErrFailedPrecondition)
	}
	return named, unlock, nil
}

func (b *Service) named(s *pod.Sandbox, ids []string) ([]*pod.Container, error) {
	var all []*pod.Container
	for _, id := range ids {
		c, err := b.Pods.Index.Container(id)
		if err != nil {
			return nil, err
		}
		if c.Sandbox.ID() != s.ID() {
			return nil, fmt.Errorf("container %s belongs to another pod than sandbox %s; name the containers of this one: %w", c.ID(), s.ID(), errdefs.ErrInvalidArgument)
		}
		if slices.Contains(all, c) { // by another prefix of its id
			return nil, fmt.Errorf("container %s is named twice; name each once: %w", c.ID(), errdefs.ErrInvalidArgument)
		}
		all = append(all, c)
	}
	return all, nil
}

// fit fails unless the checkpoint can contain c (if named) or omit it: the runtime writes all
// containers that it has, so it must have deleted those that have exited.
func fit(ctx context.Context, c *pod.Container, named bool) error {
	name := fmt.Sprintf("container %s (%s)", c.ID(), c.Config().GetMetadata().GetName())
	switch p := c.Status().Phase; {
	case named && p != pod.PhaseRunning:
		return fmt.Errorf("%s is %s; only running containers can be checkpointed: %w", name, p, errdefs.ErrFailedPrecondition)
	case !named && p == pod.PhaseRunning:
		return fmt.Errorf("%s runs in the pod, too; name it as well, or stop it: %w", name, errdefs.ErrFailedPrecondition)
	case p != pod.PhaseExited:
		return nil
	}
	select {
	case <-c.Erased:
	case <-ctx.Done():
		return ctx.Err()
	}
	if !c.Status().Erased {
		return fmt.Errorf("%s has exited, and its runtime did not clean up after it; remove it: %w", name, errdefs.ErrFailedPrecondition)
	}
	return nil
}

// fullThreshold is the free space in bytes up to which a disk counts as full.
const fullThreshold = 64 << 10

// explainFull replaces the error if the disk of dir is full, because the runtime's own error then
// refers to its source code.
func explainFull(err error, dir string) error {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil || int64(st.Bavail)*st.Bsize > fullThreshold { //nolint:gosec // no disk is that large
		return err
	}
	return fmt.Errorf("no space left on the disk of %s; free some, or use another (%v): %w", dir, err, errdefs.ErrResourceExhausted)
}

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

// Waiting returns the directories of checkpoints that restored pods still read: each is read until
// the last of the pod's containers is started.
func (b *Service) Waiting() (all []string) {
	for _, one := range b.Pods.Index.AllSandboxes() {
		if one.Status().Phase == pod.PhaseReady && b.Pods.Index.NeedsCheckpoint(one) {
			all = append(all, filepath.Dir(one.Spec().Checkpoint)) // the images are beside the manifest
		}
	}
	return all
}
