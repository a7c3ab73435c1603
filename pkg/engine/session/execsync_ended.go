package session

import (
	"context"
	"slices"
	"strings"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/process"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/engine/task"
)

// stateTimeout bounds the question whether a container runs.
const stateTimeout = 2 * time.Second

// classified is the error of a command. One that met the end of its container says so,
// as it would if it had come a moment later, whatever the runtime made of it.
func classified(ctx context.Context, c *pod.Container, client *shim.Client, err error) error {
	if err == nil || ctx.Err() != nil || shim.Lost(err) || !hasEnded(ctx, c, client, err) {
		return err
	}
	return c.NotRunning()
}

// hasEnded says whether a container that was RUNNING before a command failed ends,
// or has ended. Its end may not be recorded yet.
func hasEnded(ctx context.Context, c *pod.Container, client *shim.Client, err error) bool {
	st := c.Status()
	if st.Phase != pod.PhaseRunning || saysEnded(err.Error()) {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, stateTimeout)
	defer cancel()
	state, err := client.Task.State(ctx, &taskapi.StateRequest{ID: c.ID()})
	switch err := task.FromShim(err); {
	case errdefs.IsNotFound(err):
		return true
	case err == nil && state.GetStatus() == tasktypes.Status_STOPPED:
		return true
	}
	if st.PID == 0 {
		return false
	}
	// Whoever runs the task may not have been told yet what the kernel knows.
	dying, err := process.Dying(st.PID)
	return dying && err == nil
}

// endedWords are those of runtimes for a container that does not run: runc's and
// crun's, gVisor's, Kata's.
var endedWords = []string{"container not running", "is not running", "in a stopped container", "in state stopped", "state invalid: stopped"}

// saysEnded reads what a runtime says of a command that it has not started. Pure.
func saysEnded(text string) bool {
	return slices.ContainsFunc(endedWords, func(words string) bool { return strings.Contains(text, words) })
}
