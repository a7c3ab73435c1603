package task

import (
	"context"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/engine/supervisor/journal"
)

// reconnectDelay is the pause between attempts to reach a process.
const reconnectDelay = 200 * time.Millisecond

// Await waits until the first process of a task has exited. If the supervisor dies, it asks the
// successor. It fails only when the engine closes.
func (r *Service) Await(s *pod.Sandbox, task string) (pod.Exit, error) {
	for {
		exit, err := s.Runner.Exit(r.pods.Background, task)
		if err == nil {
			return exit, nil
		}
		if r.pods.Background.Err() != nil {
			return pod.Exit{}, errGone
		}
		if s.Runner.Gone(err) {
			if exit, err = s.Runner.ExitRecord(r.pods.Background, task, err); err == nil {
				return exit, nil
			}
		}
		log.G(r.pods.Background).WithError(err).WithField("container", task).Debug("Retrying wait for container exit")
		select {
		case <-time.After(reconnectDelay):
		case <-r.pods.Background.Done():
			return pod.Exit{}, errGone
		}
	}
}

// awaitExit waits by one call of the Task API, without retries.
func awaitExit(ctx context.Context, by pod.Connection, task string) (pod.Exit, error) {
	client, err := by.Client(ctx)
	if err != nil {
		return pod.Exit{}, err
	}
	resp, err := client.Task.Wait(ctx, &taskapi.WaitRequest{ID: task})
	if err != nil {
		return pod.Exit{}, FromShim(err)
	}
	return pod.Exit{Status: resp.GetExitStatus(), At: resp.GetExitedAt().AsTime()}, nil
}

// lostExit is an exit that was not observed.
func lostExit() pod.Exit {
	return pod.Exit{Status: pod.UnknownExitCode, At: time.Now(), Unknown: true}
}

// ExitedMeanwhile reports whether and how a task that is recorded as running exited while the
// daemon was down.
func (r *Service) ExitedMeanwhile(ctx context.Context, s *pod.Sandbox, task string) (pod.Exit, bool, error) {
	_, state, err := ask(ctx, s, task)
	if err == nil {
		if state.Status != tasktypes.Status_STOPPED {
			return pod.Exit{}, false, nil
		}
		exit, err := s.Runner.Exit(ctx, task)
		return exit, true, err
	}
	if s.Runner.Gone(err) {
		exit, err := s.Runner.ExitRecord(ctx, task, err)
		return exit, err == nil, err
	}
	return pod.Exit{}, false, err
}

// ask asks the Runner of s for the state of a task.
func ask(ctx context.Context, s *pod.Sandbox, task string) (*shim.Client, *taskapi.StateResponse, error) {
	client, err := s.Runner.Client(ctx)
	if err != nil {
		return nil, nil, err
	}
	state, err := client.Task.State(ctx, &taskapi.StateRequest{ID: task})
	return client, state, FromShim(err)
}

// State is the state of a task that is recorded as created.
type State int

// The states of tasks.
const (
	Unstarted State = iota
	Starting        // its start is under way
	Failed          // its start failed
	Started         // it runs or has run
	Gone
)

// State returns the state of a task, and the pid of its first process (0 if it has none).
func (r *Service) State(ctx context.Context, s *pod.Sandbox, task string) (State, int, error) {
	client, state, err := ask(ctx, s, task)
	if err == nil {
		return stateOf(client.Dir, state), int(state.Pid), nil
	}
	if s.Runner.Gone(err) {
		_, err = s.Runner.ExitRecord(ctx, task, err)
	}
	return Gone, 0, err
}

// stateOf combines a task's state with its journal. A supervisor with directory dir reports CREATED
// until a start has ended; its journal records whether the start has begun. A foreign shim has no
// journal, so a start under way cannot be detected.
func stateOf(dir string, answer *taskapi.StateResponse) State {
	state := journal.TaskCreated
	if dir != "" {
		if j, err := journal.ReadTask(dir, answer.ID); err == nil {
			state = j.State
		}
	}
	switch {
	case answer.Status == tasktypes.Status_CREATED && state == journal.TaskCreated:
		return Unstarted
	case answer.Status == tasktypes.Status_CREATED:
		return Starting
	case answer.Status == tasktypes.Status_STOPPED && state == journal.TaskStarting:
		return Failed
	}
	return Started
}

// JournaledStart returns Starting if the journal, which needs no supervisor, records a start.
func (r *Service) JournaledStart(c *pod.Container) State {
	j, err := journal.ReadTask(r.shims.SupervisorDir(c.Sandbox.Spec().Supervisor), c.ID())
	if err == nil && j.State != journal.TaskCreated && j.State != journal.TaskStdio {
		return Starting
	}
	return Unstarted
}

// AwaitStart returns the result of a start under way. It gives up after patience without an answer;
// 0 means never.
func (r *Service) AwaitStart(ctx context.Context, c *pod.Container, patience time.Duration) (State, int, error) {
	for answered := time.Now(); ; {
		bounded, cancel := context.WithTimeout(ctx, RecoveryAnswer)
		state, pid, err := r.State(bounded, c.Sandbox, c.ID())
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
		case <-r.pods.Background.Done():
			return state, 0, errGone
		case <-ctx.Done():
			return state, 0, ctx.Err()
		}
	}
}

// RecoveryAnswer is how long recovery waits for the process that runs an object. If the process
// does not answer, its objects keep their recorded states until their watchers reach the process.
const RecoveryAnswer = 10 * time.Second
