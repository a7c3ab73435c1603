package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/handler"
	supervisorapi "github.com/berth-cri/berth/proto/berth/supervisor/v1"
)

// logs are written by supervisors, also for foreign shims, which do not know the
// CRI's format.
type logs struct {
	layout
	background context.Context // ends with the engine
	objects    *objects
	settings   *settings
	shims      supervisors
}

// supervisors are found by their keys, and started where there is none.
type supervisors interface {
	Supervisor(ctx context.Context, key string) (*shim.Client, error)
}

// flushLogTimeout bounds what the supervisor bounds itself, if it answers.
const flushLogTimeout = 2 * time.Second

// flushLog waits for the log of an ended container to be whole, because whoever
// hears of the end may read its last lines. Tasks of the supervisor's own have
// ended only then.
func (b *logs) flushLog(c *container) {
	s := c.sandbox.Spec()
	if s.Definition.Type != handler.Shim {
		return
	}
	ctx, cancel := context.WithTimeout(b.background, flushLogTimeout)
	defer cancel()
	drain, err := b.shims.Supervisor(ctx, s.Supervisor)
	if err == nil {
		_, err = drain.Supervisor.FlushStdio(ctx, &supervisorapi.FlushStdioRequest{Id: c.ID()})
		err = fromShim(err)
	}
	// A supervisor of an older build cannot be asked.
	if err != nil && !errdefs.IsNotImplemented(err) {
		log.G(b.background).WithError(err).WithField("container", c.ID()).Debug("wait for the log of an ended container")
	}
}

// drainShim has a supervisor read the pipes of a foreign shim's container into
// its log: such a shim does not know the CRI's format.
func (b *logs) drainShim(ctx context.Context, c *container) error {
	if c.sandbox.Spec().Definition.Type != handler.Shim {
		return nil
	}
	drain, err := b.shims.Supervisor(ctx, c.sandbox.Spec().Supervisor)
	if err != nil {
		return err
	}
	io := b.stdio(c)
	_, err = drain.Supervisor.OpenStdio(ctx, &supervisorapi.OpenStdioRequest{
		Id: c.ID(), Stdin: io.stdin, Stdout: io.stdout, Stderr: io.stderr, Terminal: c.config().GetTty(),
		LogDirectory: c.Spec().LogDirectory, LogPath: c.Spec().LogPath, MaxLogLine: int32(b.settings.of(c.sandbox.Spec()).MaxLogLineSize),
	})
	if err != nil {
		return fmt.Errorf("open log: %w", fromShim(err))
	}
	return nil
}

// closeLog takes drainShim back.
func (b *logs) closeLog(ctx context.Context, c *container) error {
	if c.sandbox.Spec().Definition.Type != handler.Shim {
		return nil
	}
	drain, err := b.shims.Supervisor(ctx, c.sandbox.Spec().Supervisor)
	if err != nil {
		return err
	}
	if _, err := drain.Supervisor.CloseStdio(ctx, &supervisorapi.CloseStdioRequest{Id: c.ID()}); err != nil {
		return fmt.Errorf("close log: %w", fromShim(err))
	}
	return nil
}

// ReopenContainerLog makes the log's writer go on in a new file at the log's
// path. When it answers, that file exists.
func (b *logs) ReopenContainerLog(ctx context.Context, r *runtimeapi.ReopenContainerLogRequest) (*runtimeapi.ReopenContainerLogResponse, error) {
	c, err := b.objects.container(r.GetContainerId())
	if err != nil {
		return nil, err
	}
	if c.Status().Phase != phaseRunning {
		return nil, fmt.Errorf("container %s does not run, nothing writes its log: %w", c.ID(), errdefs.ErrFailedPrecondition)
	}
	// Foreign shims' logs are written by a supervisor as well.
	writer, err := b.shims.Supervisor(ctx, c.sandbox.Spec().Supervisor)
	if err != nil {
		return nil, err
	}
	if _, err := writer.Supervisor.ReopenLog(ctx, &supervisorapi.ReopenLogRequest{Id: c.ID()}); err != nil {
		return nil, fmt.Errorf("reopen log: %w", fromShim(err))
	}
	return &runtimeapi.ReopenContainerLogResponse{}, nil
}
