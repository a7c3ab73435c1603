package task

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/engine/supervisor/runtimecall"
	"github.com/berth-cri/berth/pkg/handler"
)

// EndTask kills a task, waits for its exit and deletes it.
func EndTask(ctx context.Context, client *shim.Client, id string) error {
	state, err := client.Task.State(ctx, &taskapi.StateRequest{ID: id})
	if errdefs.IsNotFound(FromShim(err)) {
		return nil
	}
	if err != nil {
		return FromShim(err)
	}
	// Without a process, a supervisor's task (Dir is set) may be starting.
	if started := state.Pid > 0; state.Status != tasktypes.Status_STOPPED && (started || client.Dir != "") {
		if err := killTask(ctx, client, id, started); err != nil {
			return err
		}
	}
	err = deleteTask(ctx, client, id)
	if errdefs.IsFailedPrecondition(err) && state.Pid == 0 {
		// An abandoned start began after the State call, or could not be aborted.
		if err = killTask(ctx, client, id, true); err == nil {
			err = deleteTask(ctx, client, id)
		}
	}
	return err
}

func endBy(ctx context.Context, by pod.Connection, task string) error {
	client, err := by.Client(ctx)
	if err != nil {
		return err
	}
	return EndTask(ctx, client, task)
}

// deleteTask deletes a task that has exited or was never started.
func deleteTask(ctx context.Context, client *shim.Client, id string) error {
	_, err := client.Task.Delete(ctx, &taskapi.DeleteRequest{ID: id})
	if err = FromShim(err); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("delete: %w", err)
	}
	return nil
}

// killTask kills every process of a task and returns when the first process is dead. An unstarted
// task has no processes. If a start is under way, killTask repeats the kill: the first one may come
// too late to abort the start, and too early to kill the process.
func killTask(ctx context.Context, client *shim.Client, id string, started bool) error {
	kill := func() error {
		_, err := client.Task.Kill(ctx, &taskapi.KillRequest{ID: id, Signal: uint32(unix.SIGKILL), All: true})
		return FromShim(err)
	}
	err := kill()
	if errdefs.IsFailedPrecondition(err) && !started {
		return nil
	}
	if err != nil && !errdefs.IsNotFound(err) && !errdefs.IsFailedPrecondition(err) {
		return fmt.Errorf("kill: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, pod.KillGrace)
	defer cancel()
	if !started {
		defer Repeat(ctx, AbortInterval, func() { _ = kill() })()
	}
	_, err = client.Task.Wait(ctx, &taskapi.WaitRequest{ID: id})
	if err = FromShim(err); err != nil && !errdefs.IsNotFound(err) && started { // if a start is under way, the deletion waits for it
		return fmt.Errorf("wait for exit: %w", err)
	}
	return nil
}

// Repeat calls f at the interval until ctx ends or stop is called.
func Repeat(ctx context.Context, interval time.Duration, f func()) (stop func()) {
	ctx, stop = context.WithCancel(ctx)
	go func() {
		_ = wait.PollUntilContextCancel(ctx, interval, false, func(context.Context) (bool, error) { f(); return false, nil })
	}()
	return stop
}

// errGone ends a wait because the engine is closing.
var errGone = errors.New("the engine is shutting down")

// AbortInterval is the interval of requests to abort a start under way.
const AbortInterval = 200 * time.Millisecond

// FromShim restores the class of a shim call's error. Connection errors (shim.Lost) get
// errdefs.ErrUnavailable; errors of unresponsive processes and of the caller's context are kept.
func FromShim(err error) error {
	if shim.Lost(err) {
		return fmt.Errorf("%w: %w", err, errdefs.ErrUnavailable)
	}
	if shim.IsUnresponsive(err) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return err
	}
	return errgrpc.ToNative(err)
}

// ExplainTimeout adds the limit to a shim call's timeout.
func ExplainTimeout(limit time.Duration, err error) error {
	if err == context.DeadlineExceeded { //nolint:errorlint // a timeout inside the shim has its own text
		return fmt.Errorf("its shim did not answer within %v (container_create_timeout): %w", limit, err)
	}
	return err
}

// attributed marks a create or start error as the runtime's, or as the pod's if the pod caused it
// (runtimecall.IsOfPod). It returns a cancellation, ErrAlreadyExists, ErrInvalidArgument,
// ErrNotFound and ErrResourceExhausted unmarked. Pure.
func attributed(err error) error {
	switch {
	case err == nil, errors.Is(err, context.Canceled), errdefs.IsCanceled(err):
		return err
	case errdefs.IsAlreadyExists(err), errdefs.IsInvalidArgument(err), errdefs.IsNotFound(err), errdefs.IsResourceExhausted(err):
		return err
	case runtimecall.IsOfPod(err.Error()):
		return handler.AttributeToPod(err)
	}
	return handler.AttributeToRuntime(advised(err))
}

// refusals are kernel errors, by words in the runtime's message, with the administrator's remedy.
// advised uses the first match.
var refusals = []struct {
	words  []string
	advice string
}{
	{[]string{"cgroup", "read-only file system"}, "remount the node's cgroups writable (mount -o remount,rw /sys/fs/cgroup)"},
	{[]string{"cgroup", "no space left on device"}, "the cgroup above has an empty cpuset.cpus, or the node has too many cgroups (num_cgroups in /proc/cgroups)"},
	{[]string{"cgroup", "resource temporarily unavailable"}, "raise cgroup.max.descendants and cgroup.max.depth of the cgroups above the pod"},
	{[]string{"cgroup", "device or resource busy"}, "a cgroup that has processes of its own cannot pass controllers on: name another cgroup parent"},
	{[]string{"cgroup", "invalid argument"}, "a cgroup above has a lower limit: raise that"},
	{[]string{"cgroup", "no such file or directory"}, "the controller is not mounted, or missing in cgroup.subtree_control of the cgroup above"},
	{[]string{"resource temporarily unavailable"}, "raise pids.max of the cgroups above the pod (TasksMax of the unit), or kernel.pid_max"},
}

// advised appends the remedy to a runtime's error. Pure.
func advised(err error) error {
	text := strings.ToLower(err.Error())
	for _, r := range refusals {
		if !slices.ContainsFunc(r.words, func(word string) bool { return !strings.Contains(text, word) }) {
			return fmt.Errorf("%w; %s", err, r.advice)
		}
	}
	return err
}
