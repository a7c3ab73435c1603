package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	metadata "github.com/checkpoint-restore/checkpointctl/lib"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/checkpoint"
	"github.com/berth-cri/berth/pkg/engine/criu"
	"github.com/berth-cri/berth/pkg/engine/mountpoint"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/task"
	"github.com/berth-cri/berth/pkg/engine/validate"
	"github.com/berth-cri/berth/pkg/preflight"
)

// checkpoints serves CheckpointContainer.
type checkpoints struct {
	Deps
	dumper *criu.Dumper
}

// CheckpointContainer writes the processes of a running container, and its changes to the root
// filesystem, into an archive. The container is frozen until both are copied, and resumes even on
// failure.
func (b *checkpoints) CheckpointContainer(ctx context.Context, r *runtimeapi.CheckpointContainerRequest) (*runtimeapi.CheckpointContainerResponse, error) {
	if err := validate.CheckpointContainer(r); err != nil {
		return nil, err
	}
	c, err := b.Pods.Index.Container(r.GetContainerId())
	if err != nil {
		return nil, err
	}
	if err := b.needCRIU(ctx, c.Sandbox.Spec()); err != nil {
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
	// CRIU is not interrupted when the caller cancels, because it works inside the processes.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	if err := b.checkpoint(ctx, c, r.GetLocation()); err != nil {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			// The error of an aborted call does not identify the timeout.
			err = fmt.Errorf("it took longer than %v and was aborted: %v: %w", timeout, err, context.DeadlineExceeded)
		}
		return nil, fmt.Errorf("checkpoint container: %w", err)
	}
	log.G(ctx).WithFields(log.Fields{"container": c.ID(), "location": r.GetLocation()}).Info("Checkpoint written")
	return &runtimeapi.CheckpointContainerResponse{}, nil
}

// checkpoint is called with c.Op held and c running.
func (b *checkpoints) checkpoint(ctx context.Context, c *pod.Container, location string) (err error) {
	dir, err := checkpoint.Open(b.Pods.CheckpointsDir(c.ID()))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, mountpoint.UnmountBelow(dir.Path), os.RemoveAll(dir.Path)) }()
	at := time.Now()
	if err := b.whileFrozen(ctx, c, dir); err != nil {
		return err
	}
	spec, err := os.ReadFile(filepath.Join(b.Pods.ContainerDir(c.ID()), "config.json"))
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

func (b *checkpoints) whileFrozen(ctx context.Context, c *pod.Container, dir *checkpoint.Dir) (err error) {
	defer func() { err = errors.Join(err, b.dumper.Thaw(ctx, c)) }()
	if err := b.dumper.Freeze(ctx, c); err != nil {
		return err
	}
	tcp := criu.Kept
	if c.Sandbox.Status().Namespaces.Net == "" {
		tcp = criu.Closed // on the node's network CRIU would lock each connection, and leave it locked if killed
	}
	return b.dumper.Write(ctx, c, dir, tcp)
}

// archiveConfig is the metadata for an archive of c that was written at that time.
func archiveConfig(c *pod.Container, at time.Time) metadata.ContainerConfig {
	spec := c.Spec()
	return metadata.ContainerConfig{
		ID: c.ID(), Name: c.Config().GetMetadata().GetName(),
		RootfsImage: spec.ImageName, RootfsImageName: spec.ImageName, RootfsImageRef: spec.ImageRef,
		OCIRuntime:  c.Sandbox.Spec().Definition.Name,
		CreatedTime: time.Unix(0, spec.CreatedAt), CheckpointedAt: at,
	}
}

// needCRIU fails if containers of the sandbox cannot be checkpointed or restored.
func (b *Deps) needCRIU(ctx context.Context, s *pod.SandboxSpec) error {
	rt, err := b.Binaries.Prober.Probe(ctx, b.Binaries.Runtimes.Of(s))
	if err != nil {
		return err
	}
	if err := b.Capabilities.Refuse(ctx, s.Definition, rt, preflight.Checkpoints); err != nil {
		return err
	}
	if s.Plan.User != nil {
		return fmt.Errorf("containers of pods with a user namespace cannot be checkpointed: the runtime's CRIU does not support joined namespaces: %w", errdefs.ErrFailedPrecondition)
	}
	return criu.Find()
}
