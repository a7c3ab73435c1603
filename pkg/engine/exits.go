package engine

import (
	"context"
	"errors"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/engine/supervisor"
	"github.com/berth-cri/berth/pkg/handler"
)

// reconnectDelay is the pause between tries to reach a process that is gone.
const reconnectDelay = 200 * time.Millisecond

// exits learns how tasks end, and how far they have come.
type exits struct {
	background context.Context // ends with the engine
	tasks      *tasks
	burials    *burials
	journals   journals
}

// journals are what supervisors leave behind them.
type journals interface{ SupervisorDir(key string) string }

func newExits(background context.Context, t *tasks, b *burials, j journals) *exits {
	return &exits{background, t, b, j}
}

// await waits until the first process of a task has ended. It survives the
// death of a supervisor: the successor is asked again. It fails only when the
// engine closes.
func (e *exits) await(s *sandbox, task string) (taskExit, error) {
	for {
		exit, err := e.waitOnce(e.background, s, task)
		if err == nil {
			return exit, nil
		}
		if e.background.Err() != nil {
			return taskExit{}, errGone
		}
		if nobodyKnows(s, err) {
			if exit, err = e.lastWord(e.background, s, task, err); err == nil {
				return exit, nil
			}
		}
		log.G(e.background).WithError(err).WithField("container", task).Debug("wait for an exit again")
		select {
		case <-time.After(reconnectDelay):
		case <-e.background.Done():
			return taskExit{}, errGone
		}
	}
}

// nobodyKnows tells whether err means that no process is left that could tell. A
// broken connection alone does not: whoever listens then is asked again.
func nobodyKnows(s *sandbox, err error) bool {
	return errdefs.IsNotFound(err) || (s.Spec().Definition.Type == handler.Shim && errors.Is(err, shim.ErrGone))
}

// lastWord is what is known of the end of a task of which nobodyKnows, for the
// reason err. When it answers, none of the task's processes is left.
func (e *exits) lastWord(ctx context.Context, s *sandbox, task string, err error) (taskExit, error) {
	if errors.Is(err, shim.ErrGone) {
		return e.burials.bury(ctx, s, task, err)
	}
	return e.journaledExit(s, task), nil
}

func (e *exits) waitOnce(ctx context.Context, s *sandbox, task string) (taskExit, error) {
	client, err := e.tasks.client(ctx, s)
	if err != nil {
		return taskExit{}, err
	}
	resp, err := client.Task.Wait(ctx, &taskapi.WaitRequest{ID: task})
	if err != nil {
		return taskExit{}, fromShim(err)
	}
	exit := taskExit{Status: resp.GetExitStatus(), At: resp.GetExitedAt().AsTime()}
	if s.Spec().Definition.Type == handler.OCI {
		if j, err := supervisor.ReadExit(client.Dir, task); err == nil {
			exit.OOM, exit.Unknown, exit.Why = j.OOM, j.Unknown, j.Why
		}
	}
	return exit, nil
}

// journaledExit is what the supervisor wrote down before it, or the task, was
// gone; without that the exit is lost.
func (e *exits) journaledExit(s *sandbox, task string) taskExit {
	j, err := supervisor.ReadExit(e.journals.SupervisorDir(s.Spec().Supervisor), task)
	if err != nil {
		return taskExit{Status: unknownExitCode, At: time.Now(), Unknown: true}
	}
	return taskExit{Status: j.Status, At: j.Time(), OOM: j.OOM, Unknown: j.Unknown, Why: j.Why}
}

// endedMeanwhile tells whether a task that the record calls running has ended
// while nobody listened, and how.
func (e *exits) endedMeanwhile(ctx context.Context, s *sandbox, task string) (taskExit, bool, error) {
	client, err := e.tasks.client(ctx, s)
	if err == nil {
		var state *taskapi.StateResponse
		state, err = client.Task.State(ctx, &taskapi.StateRequest{ID: task})
		if err == nil {
			if state.Status != tasktypes.Status_STOPPED {
				return taskExit{}, false, nil
			}
			exit, err := e.waitOnce(ctx, s, task)
			return exit, true, err
		}
		err = fromShim(err)
	}
	if nobodyKnows(s, err) {
		exit, err := e.lastWord(ctx, s, task, err)
		return exit, err == nil, err
	}
	return taskExit{}, false, err
}

// taskExit is how a task's first process ended.
type taskExit struct {
	Status       uint32
	At           time.Time
	OOM, Unknown bool
	// Why is for the user, where the status does not say it.
	Why string
}

// taskState says what is left of a task that its record calls created.
type taskState int

const (
	taskUnstarted taskState = iota
	taskStarting            // its start has not ended yet
	taskFailed              // its start failed
	taskStarted             // it runs or has run
	taskGone
)

// state also returns the pid of the task's first process, 0 if it has none.
func (e *exits) state(ctx context.Context, s *sandbox, task string) (taskState, int, error) {
	client, err := e.tasks.client(ctx, s)
	if err == nil {
		var state *taskapi.StateResponse
		state, err = client.Task.State(ctx, &taskapi.StateRequest{ID: task})
		if err == nil {
			return stateOf(client.Dir, state), int(state.Pid), nil
		}
		err = fromShim(err)
	}
	if nobodyKnows(s, err) {
		_, err = e.lastWord(ctx, s, task, err)
	}
	return taskGone, 0, err
}

// stateOf reads an answer about a task. A supervisor, whose directory is dir, says
// CREATED until a start has ended; how far that came is in its journal. A foreign
// shim has none, and a start of it cannot be told from none.
func stateOf(dir string, answer *taskapi.StateResponse) taskState {
	state := supervisor.TaskCreated
	if dir != "" {
		if j, err := supervisor.ReadTask(dir, answer.ID); err == nil {
			state = j.State
		}
	}
	switch {
	case answer.Status == tasktypes.Status_CREATED && state == supervisor.TaskCreated:
		return taskUnstarted
	case answer.Status == tasktypes.Status_CREATED:
		return taskStarting
	case answer.Status == tasktypes.Status_STOPPED && state == supervisor.TaskStarting:
		return taskFailed
	}
	return taskStarted
}
