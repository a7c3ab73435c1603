package task

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/pkg/engine/pod"
	supervisorapi "github.com/berth-cri/berth/proto/berth/supervisor/v1"
)

// flushLogTimeout bounds what the supervisor bounds itself, if it answers.
const flushLogTimeout = 2 * time.Second

// openLogGrace is how long a call that is not wanted any more is waited for.
const openLogGrace = 2 * time.Second

// OpenLog has a supervisor read the pipes of c into its log: a foreign shim does not know
// the CRI's format.
func (r *foreign) OpenLog(ctx context.Context, c *pod.Container) error {
	writer, err := r.shims.Supervisor(ctx, r.sandbox.Spec().Supervisor)
	if err != nil {
		return err
	}
	io := r.pods.Stdio(c)
	request := &supervisorapi.OpenStdioRequest{
		Id: c.ID(), Stdin: io.Stdin, Stdout: io.Stdout, Stderr: io.Stderr, Terminal: c.Config().GetTty(),
		LogDirectory: c.Spec().LogDirectory, LogPath: c.Spec().LogPath, MaxLogLine: int32(r.settings.Of(r.sandbox.Spec()).MaxLogLineSize),
	}
	var failed error
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		_, failed = writer.Supervisor.OpenStdio(context.WithoutCancel(ctx), request)
	}()
	select {
	case <-answered:
		err = failed
	case <-ctx.Done():
		// What undoes it is not to overtake it.
		select {
		case <-answered:
		case <-time.After(openLogGrace):
		}
		err = ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("open log: %w", FromShim(err))
	}
	return nil
}

// FlushLog waits no longer than flushLogTimeout: whoever hears of the exit may read the
// last lines, but must hear of it.
func (r *foreign) FlushLog(ctx context.Context, c *pod.Container) error {
	ctx, cancel := context.WithTimeout(ctx, flushLogTimeout)
	defer cancel()
	writer, err := r.shims.Supervisor(ctx, r.sandbox.Spec().Supervisor)
	if err != nil {
		return err
	}
	_, err = writer.Supervisor.FlushStdio(ctx, &supervisorapi.FlushStdioRequest{Id: c.ID()})
	if err = FromShim(err); errdefs.IsNotImplemented(err) {
		return nil // a supervisor of an older build cannot be asked
	}
	return err
}

func (r *foreign) CloseLog(ctx context.Context, c *pod.Container) error {
	writer, err := r.shims.Supervisor(ctx, r.sandbox.Spec().Supervisor)
	if err != nil {
		return err
	}
	if _, err := writer.Supervisor.CloseStdio(ctx, &supervisorapi.CloseStdioRequest{Id: c.ID()}); err != nil {
		return fmt.Errorf("close log: %w", FromShim(err))
	}
	return nil
}
