package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	metadata "github.com/checkpoint-restore/checkpointctl/lib"
	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	runcapi "github.com/containerd/containerd/api/types/runc/options"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/containerd/typeurl/v2"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/binaries"
	"github.com/berth-cri/berth/pkg/engine/capabilities"
	"github.com/berth-cri/berth/pkg/engine/checkpoint"
	"github.com/berth-cri/berth/pkg/engine/failpoint"
	"github.com/berth-cri/berth/pkg/engine/image"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/rootfs"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/engine/task"
	"github.com/berth-cri/berth/pkg/engine/validate"
	"github.com/berth-cri/berth/pkg/preflight"
)

// thawTimeout bounds the call that lets a container go on.
const thawTimeout = 30 * time.Second

// checkpoints are written of containers that run.
type checkpoints struct {
	pods         *pod.Registry
	binaries     *binaries.Binaries
	tasks        *task.Service
	capabilities *capabilities.Checker
	images       writtenFiles
}

// writtenFiles finds what a container has changed of its image.
type writtenFiles interface {
	WrittenOf(u image.Use) (written string, below []mount.Mount, err error)
}

// CheckpointContainer writes the processes of a running container, and what they
// wrote to the root filesystem, into an archive. The container stands still
// meanwhile and goes on afterwards, whatever becomes of the archive.
func (b *checkpoints) CheckpointContainer(ctx context.Context, r *runtimeapi.CheckpointContainerRequest) (*runtimeapi.CheckpointContainerResponse, error) {
	if err := validate.CheckpointContainer(r); err != nil {
		return nil, err
	}
	c, err := b.pods.Index.Container(r.GetContainerId())
	if err != nil {
		return nil, err
	}
	if err := b.needCheckpoint(ctx, c.Sandbox.Spec()); err != nil {
		return nil, err
	}
	if info, err := os.Stat(filepath.Dir(r.GetLocation())); err != nil || !info.IsDir() {
		return nil, fmt.Errorf("the directory of location %q does not exist; create it first: %w", r.GetLocation(), errdefs.ErrInvalidArgument)
	}
	timeout := task.CallTimeout(c.Sandbox.Spec().Definition)
	if r.GetTimeout() > 0 {
		timeout = time.Duration(r.GetTimeout()) * time.Second
	}
	if err := c.Op.Lock(ctx); err != nil {
		return nil, err
	}
	defer c.Op.Unlock()
	if p := c.Status().Phase; p != pod.PhaseRunning {
		return nil, fmt.Errorf("container %s is %s; only running containers can be checkpointed: %w", c.ID(), p, errdefs.ErrFailedPrecondition)
	}
	// A caller that leaves does not end CRIU, which is inside of the processes.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	if err := b.checkpoint(ctx, c, r.GetLocation()); err != nil {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			// Of a call that was cut off there is a status without a class inside.
			err = fmt.Errorf("it took longer than %v and was aborted: %v: %w", timeout, err, context.DeadlineExceeded)
		}
		return nil, fmt.Errorf("checkpoint container: %w", err)
	}
	log.G(ctx).WithFields(log.Fields{"container": c.ID(), "location": r.GetLocation()}).Info("Checkpoint written")
	return &runtimeapi.CheckpointContainerResponse{}, nil
}

// checkpoint needs c.op and a container that runs.
func (b *checkpoints) checkpoint(ctx context.Context, c *pod.Container, location string) (err error) {
	dir, err := checkpoint.Open(b.pods.CheckpointsDir(c.ID()))
	if err != nil {
		return err
	}
	thawed := false
	defer func() {
		if thawed { // else the next start has to try
			err = errors.Join(err, os.RemoveAll(dir.Path))
		}
	}()
	at := time.Now()
	thawed, err = b.whileFrozen(ctx, c, func(client *shim.Client) error {
		if err := dumpTask(ctx, client, c, dir); err != nil {
			return err
		}
		return b.dumpFiles(ctx, c, dir)
	})
	if err != nil {
		return err
	}
	spec, err := os.ReadFile(filepath.Join(b.pods.ContainerDir(c.ID()), "config.json"))
	if err != nil {
		return err
	}
	if err := dir.Describe(archiveConfig(c, at), spec, c.CRIStatus()); err != nil {
		return err
	}
	if path := c.Spec().LogPath; path != "" {
		if err := dir.Log(c.Spec().LogDirectory, path); err != nil {
			return fmt.Errorf("log: %w", err)
		}
	}
	return dir.Pack(ctx, location)
}

// whileFrozen calls f while c stands still. Thawed says that c goes on.
func (b *checkpoints) whileFrozen(ctx context.Context, c *pod.Container, f func(*shim.Client) error) (thawed bool, err error) {
	client, err := b.tasks.Worker(ctx, c.Sandbox)
	if err != nil {
		return true, err
	}
	defer func() {
		thaw, cancel := context.WithTimeout(context.WithoutCancel(ctx), thawTimeout)
		defer cancel()
		_, terr := client.Task.Resume(thaw, &taskapi.ResumeRequest{ID: c.ID()})
		if thawed = terr == nil || GoesOn(thaw, client, c); !thawed {
			err = errors.Join(err, fmt.Errorf("the container may be frozen; stop it or restart berth: %w", task.FromShim(terr)))
		}
	}()
	if _, err := client.Task.Pause(ctx, &taskapi.PauseRequest{ID: c.ID()}); err != nil {
		return false, fmt.Errorf("freeze: %w", task.FromShim(err))
	}
	failpoint.Hit(failpoint.ContainerFrozen)
	return false, f(client)
}

// GoesOn tells whether a container that could not be thawed need not be.
func GoesOn(ctx context.Context, client *shim.Client, c *pod.Container) bool {
	state, err := client.Task.State(ctx, &taskapi.StateRequest{ID: c.ID()})
	return err == nil && state.GetStatus() != tasktypes.Status_PAUSED
}

// dumpTask lets the runtime write the processes of c into dir.
func dumpTask(ctx context.Context, client *shim.Client, c *pod.Container, dir *checkpoint.Dir) error {
	options, err := typeurl.MarshalAnyToProto(&runcapi.CheckpointOptions{
		WorkPath: dir.Path,
		// A dump ends nothing, so what another end has hold of can be in it.
		OpenTcp: true, ExternalUnixSockets: true, FileLocks: true, Terminal: c.Config().GetTty(),
	})
	if err != nil {
		return err
	}
	_, err = client.Task.Checkpoint(ctx, &taskapi.CheckpointTaskRequest{ID: c.ID(), Path: dir.Images(), Options: options})
	return c.Sandbox.Runner.ExplainCheckpoint(task.FromShim(err), dir.Path)
}

// dumpFiles writes what c changed in its root filesystem into dir.
func (b *checkpoints) dumpFiles(ctx context.Context, c *pod.Container, dir *checkpoint.Dir) error {
	written, layers, err := b.images.WrittenOf(rootfs.LayersInUse(c.ID(), c.Spec())[0])
	if err != nil {
		return err
	}
	return mount.WithReadonlyTempMount(ctx, layers, func(below string) error { return dir.Files(ctx, written, below) })
}

func archiveConfig(c *pod.Container, at time.Time) metadata.ContainerConfig {
	spec := c.Spec()
	return metadata.ContainerConfig{
		ID: c.ID(), Name: c.Config().GetMetadata().GetName(),
		RootfsImage: spec.ImageName, RootfsImageName: spec.ImageName, RootfsImageRef: spec.ImageRef,
		OCIRuntime:  c.Sandbox.Spec().Definition.Name,
		CreatedTime: time.Unix(0, spec.CreatedAt), CheckpointedAt: at,
	}
}

// needCheckpoint refuses where no checkpoint is to be had.
func (b *checkpoints) needCheckpoint(ctx context.Context, s *pod.SandboxSpec) error {
	rt, err := b.binaries.Prober.Probe(ctx, b.binaries.Runtimes.Of(s))
	if err != nil {
		return err
	}
	if err := b.capabilities.Refuse(ctx, s.Definition, rt, preflight.Checkpoints); err != nil {
		return err
	}
	if s.Plan.User != nil {
		return fmt.Errorf("containers of pods with a user namespace cannot be checkpointed: the runtime's CRIU does not support joined namespaces: %w", errdefs.ErrFailedPrecondition)
	}
	if _, err := exec.LookPath("criu"); err != nil {
		return fmt.Errorf("checkpoints need CRIU: install the package criu, so that criu is in berth's PATH (%w): %w", err, errdefs.ErrFailedPrecondition)
	}
	return nil
}
