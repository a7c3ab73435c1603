package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/engine/checkpoint"
	"github.com/berth-cri/berth/pkg/engine/failpoint"
	"github.com/berth-cri/berth/pkg/engine/image/catalog"
	"github.com/berth-cri/berth/pkg/engine/namespaces"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/engine/task"
)

// makeOrRestore is make, also for an image that contains a checkpoint. A container from such an
// image gets the image of the checkpointed container, and that container's changes to the files.
func (b *creation) makeOrRestore(ctx context.Context, u *pod.Undo, s *pod.Sandbox, id string, a *createRequest) (c *pod.Container, err error) {
	if a.from != "" || !a.image.Checkpoint {
		return b.make(ctx, u, s, id, a)
	}
	looked := false
	release := b.Images.Look(ctx, "restore-"+id, a.image, s.Spec().Pinned.Snapshotter, func(dir string) {
		looked = true
		if err = b.open(ctx, s, dir, a); err == nil {
			c, err = b.make(ctx, u, s, id, a)
		}
	})
	if !looked {
		return nil, release
	}
	if release != nil {
		log.G(ctx).WithError(release).WithField("container", id).Warn("Failed to unmount image of a checkpoint")
	}
	return c, err
}

func (b *creation) open(ctx context.Context, s *pod.Sandbox, dir string, a *createRequest) error {
	unpacked, err := checkpoint.Unpack(dir)
	if err != nil {
		return fmt.Errorf("image %s: %w", a.image.ID, err)
	}
	base, err := b.Images.ByContent(unpacked.Config.RootfsImageRef, catalog.PlatformOf(s.Spec().Definition))
	if errdefs.IsNotFound(err) {
		err = fmt.Errorf("the container of the checkpoint ran image %.300q, which is not on this node; pull it by that digest, with berth image pull: %w",
			unpacked.Config.RootfsImageRef, errdefs.ErrFailedPrecondition)
	}
	if err == nil && base.Checkpoint {
		err = fmt.Errorf("the container of the checkpoint ran image %s, which is made of a checkpoint itself: %w", base.ID, errdefs.ErrInvalidArgument)
	}
	if err == nil {
		base, err = b.Images.Whole(ctx, base)
	}
	if err != nil {
		return err
	}
	if len(base.Config.Entrypoint)+len(base.Config.Cmd) == 0 {
		// A spec requires a command, though it is not run.
		with := *base
		with.Config.Cmd = unpacked.Spec.Process.Args
		base = &with
	}
	a.image, a.checkpoint = base, unpacked
	return nil
}

// applyCheckpoint applies the container's own changes to its root filesystem, and copies its memory
// to where the runtime reads it.
func (b *creation) applyCheckpoint(ctx context.Context, c *pod.Container, a *createRequest, mounts []mount.Mount) error {
	err := b.Rootfs.WithRootfs(c, mount.RemoveVolatileOption(mounts), func(dir string) error { return a.checkpoint.Apply(ctx, dir) })
	if err != nil {
		return err
	}
	failpoint.Hit(failpoint.ContainerRestoring)
	return a.checkpoint.Images(ctx, c.Spec().Checkpoint)
}

// restoredStart is the starter of a restored container.
type restoredStart struct{ newStart }

func (restoredStart) allowed() error { return nil }

// limit includes the time to read the checkpoint.
func (r restoredStart) limit() time.Duration {
	return r.newStart.limit() + task.RestoreTime(r.c.Spec().Checkpoint)
}

func (r restoredStart) begin(ctx context.Context, client *shim.Client) (int, error) {
	criu, asks := r.c.Sandbox.Runner.Tasks.(pod.CRIUCaller)
	if !asks || !r.c.Sandbox.HostProcesses {
		return r.newStart.begin(ctx, client)
	}
	bundle := r.Pods.ContainerDir(r.c.ID())
	done, err := criu.ConfigureCRIU(pod.CRIUCall{Bundle: bundle, Images: r.c.Spec().Checkpoint})
	if err != nil {
		return 0, err
	}
	pid, err := r.newStart.begin(ctx, client)
	if derr := done(); derr != nil {
		log.G(ctx).WithError(derr).WithField("container", r.c.ID()).Warn("Failed to remove the configuration of CRIU")
	}
	return pid, criu.ExplainRestore(err, bundle)
}

// started sets the pod's hostname again, because CRIU has set that of the checkpoint in the pod's
// UTS namespace, and removes the memory that was read.
func (r restoredStart) started(ctx context.Context) {
	s := r.c.Sandbox
	if !s.HostProcesses {
		return
	}
	if plan, at := s.Spec().Plan, s.Status().Namespaces.UTS; plan.Hostname != "" && at != "" {
		if err := namespaces.SetHostname(at, plan.Hostname); err != nil {
			log.G(ctx).WithError(err).WithField("container", r.c.ID()).Warn("Failed to set hostname of pod; it has the hostname of the checkpoint")
		}
	}
	if err := os.RemoveAll(r.Pods.RestoreDir(r.c.ID())); err != nil {
		log.G(ctx).WithError(err).WithField("container", r.c.ID()).Warn("Failed to remove the memory image of a restored container; it is removed with the container")
	}
}

// SweepRestores removes memory of checkpoints that no container in phase CREATED needs.
func (b *ends) SweepRestores() error {
	dir := b.Pods.RestoreDir("")
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, e := range entries {
		c, err := b.Pods.Index.Container(e.Name())
		if err == nil && c.Status().Phase == pod.PhaseCreated {
			continue
		}
		errs = append(errs, os.RemoveAll(filepath.Join(dir, e.Name())))
	}
	return errors.Join(errs...)
}
