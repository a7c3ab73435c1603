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
	unanswered, err := callCreate(ctx, client, request)
	if err == nil {
		return nil
	}
	if unanswered != nil {
		c.creating.Store(unanswered)
		u.add("create", c.awaitCreated)
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

// pendingCall is a call that was given up and has not ended.
type pendingCall struct{ ended <-chan struct{} }

// await returns when the call has ended; nil is one that has.
func (p *pendingCall) await(ctx context.Context, patience time.Duration) error {
	if p == nil {
		return nil
	}
	bound := time.NewTimer(patience)
	defer bound.Stop()
	select {
	case <-p.ended:
		return nil
	case <-bound.C:
		return fmt.Errorf("its shim is still creating it, try again: %w", errdefs.ErrUnavailable)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// awaitCreated waits for a Create of c that was given up.
func (c *container) awaitCreated(ctx context.Context) error {
	return c.creating.Load().await(ctx, createPatience)
}

// callCreate gives up when ctx ends. The other side does not, and what it still
// makes can be removed only when it has: that is returned to be waited for, and ends
// with the shim at the latest. The other side is not told of a deadline: Kata
// answers by it that nothing came of the call, and goes on.
func callCreate(ctx context.Context, client *shim.Client, request *taskapi.CreateTaskRequest) (*pendingCall, error) {
	answer, ended := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(ended)
		_, err := client.Task.Create(context.WithoutCancel(ctx), request)
		answer <- fromShim(err)
	}()
	select {
	case err := <-answer:
		return nil, err
	case <-ctx.Done():
		return &pendingCall{ended}, ctx.Err()
	}
}

func mountMessages(mounts []mount.Mount) []*types.Mount {
	all := make([]*types.Mount, 0, len(mounts))
	for _, m := range mounts {
		all = append(all, &types.Mount{Type: m.Type, Source: m.Source, Target: m.Target, Options: m.Options})
	}
	return all
}
