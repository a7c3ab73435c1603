package container

import (
	"cmp"
	"context"
	"fmt"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/v2/core/mount"

	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/engine/task"
)

// createTask tells whoever runs the pod's tasks about the container. It does not
// end with the caller's context, but with the sandbox.
func (b *creation) createTask(ctx context.Context, u *pod.Undo, c *pod.Container, rootfs []mount.Mount) error {
	s := c.Sandbox
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), task.CallTimeout(s.Spec().Definition))
	defer cancel()
	defer context.AfterFunc(s.Making.Ctx, cancel)()
	client, err := b.Tasks.Worker(ctx, s)
	if err != nil {
		return err
	}
	options, err := s.Runner.Options(pod.TaskOptions{LogDirectory: c.Spec().LogDirectory, LogPath: c.Spec().LogPath, Checkpoint: c.Spec().Checkpoint})
	if err != nil {
		return err
	}
	if err := s.Runner.OpenLog(ctx, c); err != nil {
		return err
	}
	io := b.Pods.Stdio(c)
	request := &taskapi.CreateTaskRequest{
		ID: c.ID(), Bundle: b.Pods.ContainerDir(c.ID()), Terminal: c.Config().GetTty(),
		Stdin: io.Stdin, Stdout: io.Stdout, Stderr: io.Stderr, Options: options, Checkpoint: c.Spec().Checkpoint,
	}
	if s.MountsRootfs() {
		request.Rootfs = mount.ToProto(rootfs)
	}
	unanswered, err := CallCreate(ctx, client, request)
	if err == nil {
		return nil
	}
	if unanswered != nil {
		c.Creating.Store(unanswered)
		u.Add("create", c.AwaitCreated)
	}
	if !s.CreatesEarly() {
		return fmt.Errorf("create container: %w", err)
	}
	if shim.Lost(err) || shim.IsUnresponsive(err) || ctx.Err() != nil {
		return fmt.Errorf("create container: %w", s.Runner.Blame(err))
	}
	// The runtime was called already. That a
	// program cannot be run is for StartContainer to say (CRI: StartError).
	return c.Update(func(st *pod.ContainerStatus) error { st.Unstartable = err.Error(); return nil })
}

// CallCreate gives up when ctx ends. The other side does not, and what it still
// makes can be removed only when it has: that is returned to be waited for, and ends
// with the shim at the latest. The other side is not told of a deadline: Kata
// answers by it that nothing came of the call, and goes on.
func CallCreate(ctx context.Context, client *shim.Client, request *taskapi.CreateTaskRequest) (*pod.PendingCall, error) {
	answer, ended := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(ended)
		_, err := client.Task.Create(context.WithoutCancel(ctx), request)
		answer <- task.FromShim(err)
	}()
	select {
	case err := <-answer:
		return nil, err
	case <-ctx.Done():
		return &pod.PendingCall{Ended: ended}, cmp.Or(client.Unresponsive(), ctx.Err())
	}
}
