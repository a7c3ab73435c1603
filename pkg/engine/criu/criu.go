// Package criu writes the processes of containers to files. It freezes a container. Then the
// container's runtime calls CRIU, and CRIU writes the files. A frozen container has a record on
// disk until it is thawed. If the daemon is killed, the next daemon finds the record and thaws the
// container.
package criu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	runcapi "github.com/containerd/containerd/api/types/runc/options"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/containerd/typeurl/v2"

	"github.com/berth-cri/berth/pkg/engine/checkpoint"
	"github.com/berth-cri/berth/pkg/engine/failpoint"
	"github.com/berth-cri/berth/pkg/engine/image"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/rootfs"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/engine/task"
)

const (
	freezeAttempts = 5
	freezeInterval = 100 * time.Millisecond
	thawTimeout    = 30 * time.Second
	// thawInterval is the pause between attempts to thaw while the container's supervisor is being
	// replaced.
	thawInterval = 200 * time.Millisecond
	// laterInterval is the pause between attempts in the background. An attempt takes at most
	// laterTimeout. It fails while CRIU still runs.
	laterInterval = time.Second
	laterTimeout  = 2 * time.Second
)

// Find fails if CRIU is not installed.
func Find() error {
	if _, err := exec.LookPath("criu"); err != nil {
		return fmt.Errorf("checkpoints need CRIU: install the package criu, so that criu is in berth's PATH (%w): %w", err, errdefs.ErrFailedPrecondition)
	}
	return nil
}

// Dumper writes containers to files. The caller of each method must hold the container's Op.
type Dumper struct {
	pods  *pod.Registry
	tasks *task.Service
	files *image.Store
}

// New returns a Dumper for the pods of one engine.
func New(pods *pod.Registry, tasks *task.Service, files *image.Store) *Dumper {
	return &Dumper{pods: pods, tasks: tasks, files: files}
}

// Freeze freezes a container. The container may be frozen even after an error, so the caller must
// then call Thaw.
func (d *Dumper) Freeze(ctx context.Context, c *pod.Container) error {
	if err := os.MkdirAll(d.pods.FrozenDir(c.ID()), 0o700); err != nil {
		return err
	}
	client, err := d.tasks.Worker(ctx, c.Sandbox)
	if err != nil {
		return err
	}
	if err := freeze(ctx, client, c.ID()); err != nil {
		return fmt.Errorf("freeze: %w", err)
	}
	failpoint.Hit(failpoint.ContainerFrozen)
	return nil
}

// freeze retries because runc can fail with cgroup v1: runc gives up if processes fork faster than
// runc freezes them.
func freeze(ctx context.Context, client *shim.Client, id string) error {
	for attempt := 1; ; attempt++ {
		_, err := client.Task.Pause(ctx, &taskapi.PauseRequest{ID: id})
		if err == nil {
			return nil
		}
		err = task.FromShim(err)
		if attempt == freezeAttempts || shim.Lost(err) || errdefs.IsNotFound(err) || errdefs.IsFailedPrecondition(err) || !pause(ctx, freezeInterval) {
			return err
		}
	}
}

// Thaw thaws a container, even if the supervisor was replaced. Then it removes the container's
// record. Thaw ignores the end of ctx. If it fails, ThawLater retries in the background.
func (d *Dumper) Thaw(ctx context.Context, c *pod.Container) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), thawTimeout)
	defer cancel()
	forget := func() error { return os.RemoveAll(d.pods.FrozenDir(c.ID())) }
	for {
		err := ThawOnce(ctx, d.pods.Layout, c)
		if err == nil {
			return forget()
		}
		if !shim.Lost(err) || !pause(ctx, thawInterval) { // a dead supervisor is replaced soon
			go ThawLater(d.pods, c, forget)
			return fmt.Errorf("the container may be frozen; berth retries until the container runs or exits: %w", err)
		}
	}
}

// ThawLater retries until a container is thawed or has exited. Then it calls done. Each attempt
// holds the container's Op. ThawLater gives up when the daemon stops.
func ThawLater(pods *pod.Registry, c *pod.Container, done func() error) {
	ctx := pods.Background
	entry := log.G(ctx).WithField("container", c.ID())
	for pause(ctx, laterInterval) && c.Op.Lock(ctx) == nil {
		runs := c.Status().Phase == pod.PhaseRunning
		attempt, cancel := context.WithTimeout(ctx, laterTimeout)
		err := ThawOnce(attempt, pods.Layout, c)
		cancel()
		thawed := err == nil
		if thawed {
			err = done()
		}
		c.Op.Unlock()
		if !thawed {
			continue
		}
		if err != nil {
			entry.WithError(err).Warn("Failed to remove files of a checkpoint; the next start of berth retries")
		}
		if runs {
			entry.Info("Resumed container frozen by an interrupted checkpoint")
		}
		return
	}
}

// pause waits. It returns false if ctx ends first.
func pause(ctx context.Context, long time.Duration) bool {
	select {
	case <-time.After(long):
		return true
	case <-ctx.Done():
		return false
	}
}

// ThawOnce is one attempt of Thaw; the caller removes the record.
func ThawOnce(ctx context.Context, l pod.Layout, c *pod.Container) error {
	if c.Status().Phase == pod.PhaseRunning {
		if err := resume(ctx, c); err != nil {
			return err
		}
	}
	// A killed CRIU leaves the network blocked.
	return unlock(ctx, l, c)
}

func resume(ctx context.Context, c *pod.Container) error {
	client, err := c.Sandbox.Runner.Client(ctx)
	if err != nil {
		return err
	}
	_, err = client.Task.Resume(ctx, &taskapi.ResumeRequest{ID: c.ID()})
	if err == nil || isThawed(ctx, client, c) {
		return nil
	}
	return task.FromShim(err)
}

// isThawed is called if Resume failed. It reports whether the container nevertheless is not frozen,
// or no longer exists.
func isThawed(ctx context.Context, client *shim.Client, c *pod.Container) bool {
	state, err := client.Task.State(ctx, &taskapi.StateRequest{ID: c.ID()})
	if err != nil {
		return errdefs.IsNotFound(task.FromShim(err)) // the container has exited, and is deleted
	}
	return state.GetStatus() != tasktypes.Status_PAUSED
}

// Connections is the treatment of TCP connections in a checkpoint.
type Connections bool

const (
	// Kept means that CRIU writes the connections. The pod's network is blocked meanwhile.
	Kept Connections = true
	// Closed means that a restored container has no connections. The container may have another
	// address then.
	Closed Connections = false
)

// Write writes a frozen container to dir: the processes, and the files that the container has
// changed in its root filesystem.
func (d *Dumper) Write(ctx context.Context, c *pod.Container, dir *checkpoint.Dir, tcp Connections) error {
	if err := d.processes(ctx, c, dir, tcp); err != nil {
		return err
	}
	written, layers, err := d.files.WrittenOf(rootfs.LayersInUse(c.ID(), c.Spec())[0])
	if err != nil {
		return err
	}
	return mount.WithReadonlyTempMount(ctx, layers, func(below string) error { return dir.Files(ctx, written, below) })
}

func (d *Dumper) processes(ctx context.Context, c *pod.Container, dir *checkpoint.Dir, tcp Connections) (err error) {
	client, err := d.tasks.Worker(ctx, c.Sandbox)
	if err != nil {
		return err
	}
	options, err := typeurl.MarshalAnyToProto(&runcapi.CheckpointOptions{
		WorkPath: dir.Path,
		// The container runs on after the checkpoint. So its shared sockets and locks are no reason to
		// refuse the checkpoint.
		OpenTcp: bool(tcp), ExternalUnixSockets: true, FileLocks: true, Terminal: c.Config().GetTty(),
	})
	if err != nil {
		return err
	}
	done := func() error { return nil }
	caller, asks := c.Sandbox.Runner.Tasks.(pod.CRIUCaller)
	if asks {
		done, err = caller.ConfigureCRIU(pod.CRIUCall{Bundle: d.pods.ContainerDir(c.ID()), OpenTCP: bool(tcp)})
		if err != nil {
			return err
		}
	}
	working := inProgressFile(d.pods.Layout, c)
	if err := os.WriteFile(working, nil, 0o600); err != nil {
		return errors.Join(err, done())
	}
	_, err = client.Task.Checkpoint(ctx, &taskapi.CheckpointTaskRequest{ID: c.ID(), Path: dir.Images(), Options: options})
	err = task.FromShim(err)
	if asks {
		err = caller.ExplainCheckpoint(err, dir.Path)
	}
	if err == nil {
		err = os.Remove(working) // CRIU has cleaned up
	}
	return errors.Join(err, done())
}
