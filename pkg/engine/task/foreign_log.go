package task

import (
	"context"
	"fmt"
	"time"

	"github.com/berth-cri/berth/pkg/engine/pod"
	supervisorapi "github.com/berth-cri/berth/proto/berth/supervisor/v1"
)

// openLogTimeout is longer than an unresponsive supervisor is waited for.
const openLogTimeout = 10 * time.Second

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
		LogDirectory: c.Spec().LogDirectory, LogPath: c.Spec().LogPath, MaxLogLine: int32(r.sandbox.Spec().Pinned.MaxLogLineSize),
	}
	// What undoes it is not to overtake it, so that it outlasts its caller.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), openLogTimeout)
	defer cancel()
	if _, err = writer.Supervisor.OpenStdio(ctx, request); err != nil {
		return fmt.Errorf("open log: %w", FromShim(err))
	}
	return nil
}

// FlushLog waits for a second, which the supervisor bounds: whoever hears of the exit may read
// the last lines, but must hear of it.
func (r *foreign) FlushLog(ctx context.Context, c *pod.Container) error {
	writer, err := r.shims.Supervisor(ctx, r.sandbox.Spec().Supervisor)
	if err != nil {
		return err
	}
	_, err = writer.Supervisor.FlushStdio(ctx, &supervisorapi.FlushStdioRequest{Id: c.ID()})
	return FromShim(err)
}

func (r *foreign) CloseLog(ctx context.Context, c *pod.Container) error {
	writer, err := r.shims.Supervisor(ctx, r.sandbox.Spec().Supervisor)
	if err != nil {
		return err
	}
	if _, err := writer.Supervisor.CloseStdio(ctx, &supervisorapi.CloseStdioRequest{Id: c.ID()}); err != nil {
		if r.Replaced(ctx, r.sandbox, err) {
			return r.CloseLog(ctx, c)
		}
		return fmt.Errorf("close log: %w", FromShim(err))
	}
	return nil
}
