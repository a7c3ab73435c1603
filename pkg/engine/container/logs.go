package container

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/settings"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/engine/task"
	"github.com/berth-cri/berth/pkg/handler"
	supervisorapi "github.com/berth-cri/berth/proto/berth/supervisor/v1"
)

// logs are written by supervisors, also for foreign shims, which do not know the
// CRI's format.
type logs struct {
	pods     *pod.Registry
	settings *settings.Settings
	shims    Supervisors
}

// Supervisors are found by their keys, and started where there is none.
type Supervisors interface {
	Supervisor(ctx context.Context, key string) (*shim.Client, error)
}

// flushLogTimeout bounds what the supervisor bounds itself, if it answers.
const flushLogTimeout = 2 * time.Second

// flushLog waits for the log of an ended container to be whole, because whoever
// hears of the end may read its last lines. Tasks of the supervisor's own have
// ended only then.
func (b *logs) flushLog(c *pod.Container) {
	s := c.Sandbox.Spec()
	if s.Definition.Type != handler.Shim {
		return
	}
	ctx, cancel := context.WithTimeout(b.pods.Background, flushLogTimeout)
	defer cancel()
	drain, err := b.shims.Supervisor(ctx, s.Supervisor)
	if err == nil {
		_, err = drain.Supervisor.FlushStdio(ctx, &supervisorapi.FlushStdioRequest{Id: c.ID()})
		err = task.FromShim(err)
	}
	// A supervisor of an older build cannot be asked.
	if err != nil && !errdefs.IsNotImplemented(err) {
		log.G(b.pods.Background).WithError(err).WithField("container", c.ID()).Debug("Failed to wait for the log of exited container")
	}
}

// drainShim has a supervisor read the pipes of a foreign shim's container into
// its log: such a shim does not know the CRI's format.
func (b *logs) drainShim(ctx context.Context, c *pod.Container) error {
	if c.Sandbox.Spec().Definition.Type != handler.Shim {
		return nil
	}
	drain, err := b.shims.Supervisor(ctx, c.Sandbox.Spec().Supervisor)
	if err != nil {
		return err
	}
	io := b.pods.Stdio(c)
	_, err = drain.Supervisor.OpenStdio(ctx, &supervisorapi.OpenStdioRequest{
		Id: c.ID(), Stdin: io.Stdin, Stdout: io.Stdout, Stderr: io.Stderr, Terminal: c.Config().GetTty(),
		LogDirectory: c.Spec().LogDirectory, LogPath: c.Spec().LogPath, MaxLogLine: int32(b.settings.Of(c.Sandbox.Spec()).MaxLogLineSize),
	})
	if err != nil {
		return fmt.Errorf("open log: %w", task.FromShim(err))
	}
	return nil
}

// closeLog takes drainShim back.
func (b *logs) closeLog(ctx context.Context, c *pod.Container) error {
	if c.Sandbox.Spec().Definition.Type != handler.Shim {
		return nil
	}
	drain, err := b.shims.Supervisor(ctx, c.Sandbox.Spec().Supervisor)
	if err != nil {
		return err
	}
	if _, err := drain.Supervisor.CloseStdio(ctx, &supervisorapi.CloseStdioRequest{Id: c.ID()}); err != nil {
		return fmt.Errorf("close log: %w", task.FromShim(err))
	}
	return nil
}

// ReopenContainerLog makes the log's writer go on in a new file at the log's
// path. When it answers, that file exists.
func (b *logs) ReopenContainerLog(ctx context.Context, r *runtimeapi.ReopenContainerLogRequest) (*runtimeapi.ReopenContainerLogResponse, error) {
	c, err := b.pods.Index.Container(r.GetContainerId())
	if err != nil {
		return nil, err
	}
	if c.Status().Phase != pod.PhaseRunning {
		return nil, fmt.Errorf("container %s does not run, nothing writes its log: %w", c.ID(), errdefs.ErrFailedPrecondition)
	}
	// Foreign shims' logs are written by a supervisor as well.
	writer, err := b.shims.Supervisor(ctx, c.Sandbox.Spec().Supervisor)
	if err != nil {
		return nil, err
	}
	if _, err := writer.Supervisor.ReopenLog(ctx, &supervisorapi.ReopenLogRequest{Id: c.ID()}); err != nil {
		return nil, fmt.Errorf("reopen log: %w", task.FromShim(err))
	}
	return &runtimeapi.ReopenContainerLogResponse{}, nil
}
