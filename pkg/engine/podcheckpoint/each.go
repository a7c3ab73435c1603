package podcheckpoint

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/checkpoint"
	"github.com/berth-cri/berth/pkg/engine/container"
	"github.com/berth-cri/berth/pkg/engine/criu"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/podcheckpoint/manifest"
	"github.com/berth-cri/berth/pkg/engine/supervisor/criufiles"
	"github.com/berth-cri/berth/pkg/engine/task"
	"github.com/berth-cri/berth/pkg/engine/validate"
)

// perContainer writes the containers of a pod one by one, by CRIU, while all of them are frozen.
type perContainer struct {
	pods   *pod.Registry
	tasks  *task.Service
	dumper *criu.Dumper
}

// ready returns the version of CRIU, or an error if CRIU cannot write the pod.
func (e *perContainer) ready(ctx context.Context, s *pod.Sandbox, compression string) (string, error) {
	if compression != validate.NoCompression {
		return "", fmt.Errorf("option %q of a pod whose containers CRIU writes must be %q, not %q: %w", validate.Compression, validate.NoCompression, compression, errdefs.ErrInvalidArgument)
	}
	if err := fitsCRIU(s.Config()); err != nil {
		return "", err
	}
	return criu.Version(ctx)
}

// fitsCRIU refuses pods with namespaces that CRIU does not support. Pure.
func fitsCRIU(c *runtimeapi.PodSandboxConfig) error {
	if u := c.GetLinux().GetSecurityContext().GetNamespaceOptions().GetUsernsOptions(); u != nil && u.GetMode() == runtimeapi.NamespaceMode_POD {
		return fmt.Errorf("pods with a user namespace cannot be checkpointed under this handler: the runtime's CRIU cannot join one; set hostUsers: true: %w", errdefs.ErrFailedPrecondition)
	}
	return nil
}

// fitsAlone refuses containers that CRIU cannot write one by one. Pure.
func fitsAlone(c *pod.Container) error {
	switch {
	case c.SharesProcesses():
		return fmt.Errorf("it shares PIDs with others, and CRIU writes one container at a time; run the pod without hostPID and shareProcessNamespace: %w", errdefs.ErrFailedPrecondition)
	case c.Spec().Checkpoint != "" && c.Sandbox.Spec().Checkpoint == "":
		return fmt.Errorf("it was restored from a checkpoint image; checkpoint it separately (CheckpointContainer): %w", errdefs.ErrFailedPrecondition)
	}
	return nil
}

// write writes the containers to dir.
func (e *perContainer) write(ctx context.Context, s *pod.Sandbox, containers []*pod.Container, _ *manifest.Manifest, dir string) (err error) {
	stopped, done := untilStopped(ctx, s)
	defer done()
	defer context.AfterFunc(stopped, func() { e.kill(context.WithoutCancel(ctx), containers) })()
	defer func() {
		if err != nil && stopped.Err() != nil {
			err = errStopped // errors of CRIU about killed processes are expected
		}
	}()
	var frozen []*pod.Container
	defer func() {
		if terr := e.thaw(ctx, frozen); stopped.Err() == nil {
			err = errors.Join(err, terr)
		}
	}()
	// The end of ctx does not stop CRIU, which runs code in the processes. Only the deadline of ctx
	// does: a runtime may wait forever after its CRIU was killed.
	deadline, _ := ctx.Deadline()
	uncut, cancel := context.WithDeadline(context.WithoutCancel(ctx), deadline)
	defer cancel()
	for _, c := range containers {
		if err := fitsAlone(c); err != nil {
			return fmt.Errorf("container %q: %w", c.Config().GetMetadata().GetName(), err)
		}
	}
	for _, c := range containers {
		frozen = append(frozen, c) // even after an error it may be frozen
		if err := e.dumper.Freeze(uncut, c); err != nil {
			return fmt.Errorf("container %q: %w", c.Config().GetMetadata().GetName(), err)
		}
	}
	for place, c := range containers {
		if err := errors.Join(context.Cause(ctx), context.Cause(stopped)); err != nil {
			return err
		}
		if err := e.writeOne(uncut, c, manifest.ContainerDir(dir, place), len(containers)); err != nil {
			return fmt.Errorf("container %q: %w", c.Config().GetMetadata().GetName(), err)
		}
	}
	if !s.Spec().Plan.IPC {
		return nil
	}
	return checkpoint.PackTree(ctx, e.pods.FilesOf(s.ID()).Shm, manifest.ShmFile(dir))
}

// thaw thaws containers in parallel: one that fails does not delay the others.
func (e *perContainer) thaw(ctx context.Context, containers []*pod.Container) error {
	errs := make([]error, len(containers))
	var all sync.WaitGroup
	for i, c := range containers {
		all.Go(func() {
			if err := e.dumper.Thaw(ctx, c); err != nil {
				errs[i] = fmt.Errorf("container %q: %w", c.Config().GetMetadata().GetName(), err)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

func (e *perContainer) writeOne(ctx context.Context, c *pod.Container, path string, of int) error {
	dir, err := checkpoint.Open(path)
	if err != nil {
		return err
	}
	at := time.Now()
	if err := e.dumper.Write(ctx, c, dir, criu.Closed); err != nil {
		return err
	}
	has, err := criufiles.HasSysVIPC(dir.Images())
	if err != nil {
		return err
	}
	if has && of > 1 {
		return fmt.Errorf("the pod uses System V shared memory, queues or semaphores, which CRIU cannot restore for more than one container; remove them (ipcrm) first: %w", errdefs.ErrFailedPrecondition)
	}
	spec, err := os.ReadFile(filepath.Join(e.pods.ContainerDir(c.ID()), "config.json"))
	if err != nil {
		return err
	}
	return dir.Describe(container.ArchiveConfig(c, at), spec, c.CRIStatus())
}

// kill kills the containers, even during a write, because the pod is being stopped.
func (e *perContainer) kill(ctx context.Context, containers []*pod.Container) {
	ctx, cancel := context.WithTimeout(ctx, pod.KillGrace)
	defer cancel()
	for _, c := range containers {
		client, err := e.tasks.Worker(ctx, c.Sandbox)
		if err == nil {
			_, err = client.Task.Kill(ctx, &taskapi.KillRequest{ID: c.ID(), Signal: uint32(unix.SIGKILL), All: true})
			err = task.FromShim(err)
		}
		if err != nil && !errdefs.IsNotFound(err) {
			log.G(ctx).WithError(err).WithField("container", c.ID()).Warn("Failed to kill container that is being checkpointed; its stop waits for CRIU")
		}
	}
}
