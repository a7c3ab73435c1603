package task

import (
	"context"
	"errors"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/engine/supervisor"
	"github.com/berth-cri/berth/pkg/handler"
)

// reconnectDelay is the pause between tries to reach a process that is gone.
const reconnectDelay = 200 * time.Millisecond

// exits learns how tasks end, and how far they have come.
type exits struct {
	pods     *pod.Registry
	tasks    *tasks
	burials  *lostShims
	journals journals
}

// journals are what supervisors leave behind them.
type journals interface{ SupervisorDir(key string) string }

// Await waits until the first process of a task has ended. It survives the
// death of a supervisor: the successor is asked again. It fails only when the
// engine closes.
func (e *exits) Await(s *pod.Sandbox, task string) (Exit, error) {
	for {
		exit, err := e.waitOnce(e.pods.Background, s, task)
		if err == nil {
			return exit, nil
		}
		if e.pods.Background.Err() != nil {
			return Exit{}, errGone
		}
		if nobodyKnows(s, err) {
			if exit, err = e.lastWord(e.pods.Background, s, task, err); err == nil {
				return exit, nil
			}
		}
		log.G(e.pods.Background).WithError(err).WithField("container", task).Debug("Retrying wait for container exit")
		select {
		case <-time.After(reconnectDelay):
		case <-e.pods.Background.Done():
			return Exit{}, errGone
		}
	}
}

// nobodyKnows tells whether err means that no process is left that could tell. A
// broken connection alone does not: whoever listens then is asked again.
func nobodyKnows(s *pod.Sandbox, err error) bool {
	return errdefs.IsNotFound(err) || (s.Spec().Definition.Type == handler.Shim && errors.Is(err, shim.ErrGone))
}

// lastWord is what is known of the end of a task of which nobodyKnows, for the
// reason err. When it answers, none of the task's processes is left.
func (e *exits) lastWord(ctx context.Context, s *pod.Sandbox, task string, err error) (Exit, error) {
	if errors.Is(err, shim.ErrGone) {
		return e.burials.Bury(ctx, s, task, err)
	}
	return e.journaledExit(s, task), nil
}

func (e *exits) waitOnce(ctx context.Context, s *pod.Sandbox, task string) (Exit, error) {
	client, err := e.tasks.Client(ctx, s)
	if err != nil {
		return Exit{}, err
	}
	resp, err := client.Task.Wait(ctx, &taskapi.WaitRequest{ID: task})
	if err != nil {
		return Exit{}, FromShim(err)
	}
	exit := Exit{Status: resp.GetExitStatus(), At: resp.GetExitedAt().AsTime()}
	if s.Spec().Definition.Type == handler.OCI {
		if j, err := supervisor.ReadExit(client.Dir, task); err == nil {
			exit.OOM, exit.Unknown, exit.Why = j.OOM, j.Unknown, j.Why
		}
	}
	return exit, nil
}

// journaledExit is what the supervisor wrote down before it, or the task, was
// gone; without that the exit is lost.
func (e *exits) journaledExit(s *pod.Sandbox, task string) Exit {
	j, err := supervisor.ReadExit(e.journals.SupervisorDir(s.Spec().Supervisor), task)
	if err != nil {
		return Exit{Status: pod.UnknownExitCode, At: time.Now(), Unknown: true}
	}
	return Exit{Status: j.Status, At: j.Time(), OOM: j.OOM, Unknown: j.Unknown, Why: j.Why}
}

// EndedMeanwhile tells whether a task that the record calls running has ended
// while nobody listened, and how.
func (e *exits) EndedMeanwhile(ctx context.Context, s *pod.Sandbox, task string) (Exit, bool, error) {
	client, err := e.tasks.Client(ctx, s)
	if err == nil {
		var state *taskapi.StateResponse
		state, err = client.Task.State(ctx, &taskapi.StateRequest{ID: task})
		if err == nil {
			if state.Status != tasktypes.Status_STOPPED {
				return Exit{}, false, nil
			}
			exit, err := e.waitOnce(ctx, s, task)
			return exit, true, err
		}
		err = FromShim(err)
	}
	if nobodyKnows(s, err) {
		exit, err := e.lastWord(ctx, s, task, err)
		return exit, err == nil, err
	}
	return Exit{}, false, err
}

// Exit is how a task's first process ended.
type Exit struct {
	Status       uint32
	At           time.Time
	OOM, Unknown bool
	// Why is for the user, where the status does not say it.
	Why string
}

// State says what is left of a task that its record calls created.
type State int

// The states of tasks.
const (
	Unstarted State = iota
	Starting        // its start has not ended yet
	Failed          // its start failed
	Started         // it runs or has run
	Gone
)

// State also returns the pid of the task's first process, 0 if it has none.
func (e *exits) State(ctx context.Context, s *pod.Sandbox, task string) (State, int, error) {
	client, err := e.tasks.Client(ctx, s)
	if err == nil {
		var state *taskapi.StateResponse
		state, err = client.Task.State(ctx, &taskapi.StateRequest{ID: task})
		if err == nil {
			return stateOf(client.Dir, state), int(state.Pid), nil
		}
		err = FromShim(err)
	}
	if nobodyKnows(s, err) {
		_, err = e.lastWord(ctx, s, task, err)
	}
	return Gone, 0, err
}

// stateOf reads an answer about a task. A supervisor, whose directory is dir, says
// CREATED until a start has ended; how far that came is in its journal. A foreign
// shim has none, and a start of it cannot be told from none.
func stateOf(dir string, answer *taskapi.StateResponse) State {
	state := supervisor.TaskCreated
	if dir != "" {
		if j, err := supervisor.ReadTask(dir, answer.ID); err == nil {
			state = j.State
		}
	}
	switch {
	case answer.Status == tasktypes.Status_CREATED && state == supervisor.TaskCreated:
		return Unstarted
	case answer.Status == tasktypes.Status_CREATED:
		return Starting
	case answer.Status == tasktypes.Status_STOPPED && state == supervisor.TaskStarting:
		return Failed
	}
	return Started
}

// JournaledStart is how far the start of a container came whose supervisor does
// not answer.
func (e *exits) JournaledStart(c *pod.Container) State {
	j, err := supervisor.ReadTask(e.journals.SupervisorDir(c.Sandbox.Spec().Supervisor), c.ID())
	if err == nil && j.State != supervisor.TaskCreated && j.State != supervisor.TaskStdio {
		return Starting
	}
	return Unstarted
}

// AwaitStart returns what came of a start under way. It gives up when nobody has
// answered for so long as patience; 0 is for ever.
func (e *exits) AwaitStart(ctx context.Context, c *pod.Container, patience time.Duration) (State, int, error) {
	for answered := time.Now(); ; {
		bounded, cancel := context.WithTimeout(ctx, RecoveryAnswer)
		state, pid, err := e.State(bounded, c.Sandbox, c.ID())
		cancel()
		if err == nil {
			if state != Starting {
				return state, pid, nil
			}
			answered = time.Now()
		} else if patience > 0 && time.Since(answered) > patience {
			return state, 0, err
		}
		select {
		case <-time.After(reconnectDelay):
		case <-e.pods.Background.Done():
			return state, 0, errGone
		case <-ctx.Done():
			return state, 0, ctx.Err()
		}
	}
}

// RecoveryAnswer is how long recovery waits for what runs an object. One that
// does not answer costs its own objects only: they keep the state of their
// records, and are asked again by who watches them.
const RecoveryAnswer = 10 * time.Second
