package engine

import (
	"context"
	"fmt"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/handler"
)

// createTask tells whoever runs the pod's tasks about the container. It does not
// end with the caller's context, but with the sandbox.
func (b *creation) createTask(ctx context.Context, u *undo, c *container, rootfs []mount.Mount) error {
	s := c.sandbox
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout(s.Spec().Definition))
	defer cancel()
	defer context.AfterFunc(s.making.ctx, cancel)()
	client, err := b.tasks.worker(ctx, s)
	if err != nil {
		return err
	}
	options, err := b.tasks.options(s.Spec(), c.Spec().LogDirectory, c.Spec().LogPath)
	if err != nil {
		return err
	}
	if err := b.logs.drainShim(ctx, c); err != nil {
		return err
	}
	io := b.stdio(c)
	request := &taskapi.CreateTaskRequest{
		ID: c.ID(), Bundle: b.containerDir(c.ID()), Terminal: c.config().GetTty(),
		Stdin: io.stdin, Stdout: io.stdout, Stderr: io.stderr, Options: options,
	}
	foreign := s.Spec().Definition.Type == handler.Shim
	if foreign {
		request.Rootfs = mountMessages(rootfs)
	}
	err = callCreate(ctx, u, client, request)
	if err == nil {
		return nil
	}
	if !foreign {
		return fmt.Errorf("create container: %w", err)
	}
	if shim.Lost(err) || ctx.Err() != nil {
		return fmt.Errorf("create container: %w", blamed(s.Spec().Definition, err))
	}
	// A shim calls its runtime here already, berth-shim at the start. That a
	// program cannot be run is for StartContainer to say (CRI: StartError).
	return c.Update(func(st *containerStatus) error { st.Unstartable = err.Error(); return nil })
}

// createPatience is how long the undo of a task waits for whoever goes on
// creating it.
const createPatience = 10 * time.Second

// callCreate gives up when ctx ends. The other side does not, and what it still
// makes can be removed only when it has: u waits for that.
func callCreate(ctx context.Context, u *undo, client *shim.Client, request *taskapi.CreateTaskRequest) error {
	working, cancel := context.WithCancel(context.WithoutCancel(ctx))
	answer := make(chan error, 1)
	go func() {
		_, err := client.Task.Create(working, request)
		answer <- fromShim(err)
		cancel()
	}()
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
	}
	u.add("create", func(ctx context.Context) error {
		defer cancel()
		select {
		case <-working.Done():
			return nil
		case <-time.After(createPatience):
			return fmt.Errorf("the shim is still at it: %w", errdefs.ErrUnavailable)
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	return ctx.Err()
}

func mountMessages(mounts []mount.Mount) []*types.Mount {
	all := make([]*types.Mount, 0, len(mounts))
	for _, m := range mounts {
		all = append(all, &types.Mount{Type: m.Type, Source: m.Source, Target: m.Target, Options: m.Options})
	}
	return all
}
