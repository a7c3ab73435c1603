package session

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/containerd/typeurl/v2"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/anypb"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/ocispec"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/process"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/engine/supervisor/runtimecall"
	"github.com/berth-cri/berth/pkg/engine/task"
	"github.com/berth-cri/berth/pkg/engine/validate"
)

type execs struct {
	pods  *pod.Registry
	tasks *task.Service
	// commands bounds the concurrent commands, outputs the memory of large outputs.
	commands, outputs *semaphore.Weighted
}

const (
	// maxExecSyncs is the limit of concurrent commands of ExecSync.
	maxExecSyncs = 512
	// drainTimeout bounds the wait for a descendant that keeps output of an exited command open.
	drainTimeout = 10 * time.Second
)

func newExecs(pods *pod.Registry, t *task.Service) execs {
	return execs{pods: pods, tasks: t, commands: semaphore.NewWeighted(maxExecSyncs), outputs: semaphore.NewWeighted(outputMemory)}
}

// ExecSync runs a command in a RUNNING container and returns its output and exit code. After the
// timeout it kills the command, with all descendants if KillsTree, and returns DeadlineExceeded.
func (b execs) ExecSync(ctx context.Context, r *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
	if err := validate.ExecSync(r); err != nil {
		return nil, err
	}
	if !b.commands.TryAcquire(1) {
		return nil, fmt.Errorf("%d commands are running in containers of this node, the most at a time; try again later: %w", maxExecSyncs, errdefs.ErrResourceExhausted)
	}
	defer b.commands.Release(1)
	c, err := b.pods.Index.Running(r.GetContainerId())
	if err != nil {
		return nil, err
	}
	call := ctx
	if r.GetTimeout() > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(r.GetTimeout())*time.Second)
		defer cancel()
	}
	client, err := b.tasks.Worker(ctx, c.Sandbox)
	if err != nil {
		return nil, err
	}
	process, err := b.process(c, r.GetCmd(), false, nil)
	if err != nil {
		return nil, err
	}
	e := &Execution{
		Client: client, Container: c.ID(), ID: NewExecID(), KillsTree: c.Sandbox.KillsTree(),
		Dir: filepath.Join(b.pods.ContainerDir(c.ID()), "io"), Drain: drainTimeout, Memory: b.outputs,
	}
	exit, err := e.Run(ctx, process)
	if err != nil {
		e.release()
		cleaned := make(chan struct{})
		go func() { e.Clean(); close(cleaned) }()
		awaitFor(cleaned, execCleanPatience)
		if u := client.Unresponsive(); u != nil {
			err = fmt.Errorf("run command: %w", u)
		}
		return nil, classified(ctx, c, client, err)
	}
	defer e.Clean()
	// The response stays in memory until it is handed to the connection.
	context.AfterFunc(call, e.release)
	return e.Answer(exit), nil
}

// process returns the container's own process with another command.
func (b execs) process(c *pod.Container, cmd []string, tty bool, size *specs.Box) (*anypb.Any, error) {
	text, err := os.ReadFile(filepath.Join(b.pods.ContainerDir(c.ID()), "process.json"))
	if err != nil {
		return nil, fmt.Errorf("read the container's process: %w", err)
	}
	spec := &specs.Spec{Process: &specs.Process{}}
	if err := json.Unmarshal(text, spec.Process); err != nil {
		return nil, fmt.Errorf("read the container's process: %w", err)
	}
	p, err := ocispec.ExecProcess(spec, cmd, tty)
	if err != nil {
		return nil, err
	}
	p.ConsoleSize = size
	return typeurl.MarshalAnyToProto(p)
}

// Prefixes of pipe names.
const (
	execPrefix   = "exec-"
	attachPrefix = "attach-"
)

// NewExecID returns a random id of a command.
func NewExecID() string {
	b := make([]byte, 8)
	_, _ = rand.Read(b) // never fails
	return execPrefix + hex.EncodeToString(b)
}

// Execution is one running command.
type Execution struct {
	Client         *shim.Client
	Container, ID  string
	Dir            string
	KillsTree      bool // of its sandbox
	Drain          time.Duration
	Memory         *semaphore.Weighted // for large outputs; nil is unlimited
	stdout, stderr *output
	// started is set while the command may run.
	started bool
	// registering is closed when the Exec call has returned; nil if this daemon made no such call.
	registering <-chan struct{}
	stopAsking  context.CancelFunc
}

// register makes the Exec call. It gives up when ctx ends, but the exec may still be created after
// that; cleanUp waits for it.
func (e *Execution) register(ctx context.Context, r *taskapi.ExecProcessRequest) error {
	call, stop := context.WithCancel(context.WithoutCancel(ctx))
	answered := make(chan struct{})
	e.registering, e.stopAsking = answered, stop
	answer := make(chan error, 1)
	go func() {
		defer close(answered)
		_, err := e.Client.Task.Exec(call, r)
		answer <- task.FromShim(err)
	}()
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Run returns the command's exit code, and collects its output.
func (e *Execution) Run(ctx context.Context, process *anypb.Any) (exitCode int32, err error) {
	if e.stdout, err = newOutput(filepath.Join(e.Dir, e.ID+"-out"), e.Memory); err != nil {
		return 0, err
	}
	if e.stderr, err = newOutput(filepath.Join(e.Dir, e.ID+"-err"), e.Memory); err != nil {
		return 0, err
	}
	exitCode, err = e.run(ctx, &taskapi.ExecProcessRequest{Stdout: e.stdout.path(), Stderr: e.stderr.path(), Spec: process}, func() {
		// Not earlier: a read from a FIFO without a writer returns EOF.
		e.stdout.collect()
		e.stderr.collect()
	})
	if err != nil {
		return 0, execError(ctx, err)
	}
	return exitCode, e.drainOutput(ctx)
}

// run registers the command, starts it, calls begun and returns its exit code.
func (e *Execution) run(ctx context.Context, r *taskapi.ExecProcessRequest, begun func()) (exitCode int32, err error) {
	r.ID, r.ExecID = e.Container, e.ID
	if err := e.register(ctx, r); err != nil {
		return 0, err
	}
	// A start that is not answered in time may still happen.
	e.started = true
	if _, err := e.Client.Task.Start(ctx, &taskapi.StartRequest{ID: e.Container, ExecID: e.ID}); err != nil {
		return 0, e.explain(task.FromShim(err))
	}
	begun()
	exit, err := e.Client.Task.Wait(ctx, &taskapi.WaitRequest{ID: e.Container, ExecID: e.ID})
	if err != nil {
		return 0, task.FromShim(err)
	}
	e.started = false
	return int32(exit.GetExitStatus()), nil
}

// explain adds the runtime's output on the command's stderr: a runtime writes there if it is
// killed, or fails before it can write its log.
func (e *Execution) explain(err error) error {
	if e.stderr == nil {
		return err // the client reads stderr itself
	}
	text := runtimecall.FailureMessage(e.stderr.file)
	if text == "" || strings.Contains(err.Error(), text) {
		return err
	}
	return fmt.Errorf("%w; it wrote to stderr: %s", err, text)
}

// drainOutput waits for the rest of the output. The wait is bounded, because a descendant of the
// command may keep the streams open.
func (e *Execution) drainOutput(ctx context.Context) error {
	bound := time.After(e.Drain)
	for _, o := range []*output{e.stdout, e.stderr} {
		select {
		case <-o.done:
		case <-bound:
			return nil
		case <-ctx.Done():
			return execError(ctx, ctx.Err())
		}
	}
	return nil
}

// execError returns DeadlineExceeded for a timeout; the kubelet recognizes it by the code.
func execError(ctx context.Context, err error) error {
	// The supervisor or shim gets the same deadline, and may report it slightly before ctx ends.
	end, bounded := ctx.Deadline()
	first := bounded && errdefs.IsDeadlineExceeded(err) && time.Until(end) < time.Second
	if first || errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("command timed out: %w", context.DeadlineExceeded)
	}
	return fmt.Errorf("run command: %w", err)
}

const execCleanTimeout = 20 * time.Second

// execCleanPatience is how long the response to a failed command waits for its clean-up. It
// suffices to detect an unresponsive supervisor or shim.
const execCleanPatience = 8 * time.Second

// Clean kills and deletes the command and removes its pipes.
func (e *Execution) Clean() {
	ctx, cancel := context.WithTimeout(context.Background(), execCleanTimeout)
	defer cancel()
	if err := e.cleanUp(ctx); err != nil {
		log.G(ctx).WithError(err).WithField("container", e.Container).Warn("Failed to clean up after exec")
	}
	for _, o := range []*output{e.stdout, e.stderr} {
		if o != nil {
			o.close()
		}
	}
}

func (e *Execution) release() {
	for _, o := range []*output{e.stdout, e.stderr} {
		if o != nil {
			o.release()
		}
	}
}

func (e *Execution) cleanUp(ctx context.Context) error {
	if e.registering == nil && !e.started {
		return nil // never registered
	}
	if e.registering != nil {
		defer e.stopAsking()
		select {
		case <-e.registering:
		case <-ctx.Done():
			return fmt.Errorf("the command is still being started: %w", ctx.Err())
		}
	}
	if e.started {
		_, err := e.Client.Task.Kill(ctx, &taskapi.KillRequest{ID: e.Container, ExecID: e.ID, Signal: uint32(unix.SIGKILL), All: e.KillsTree})
		if err = task.FromShim(err); errdefs.IsFailedPrecondition(err) {
			err = nil // it was never started
		} else if err == nil {
			_, err = e.Client.Task.Wait(ctx, &taskapi.WaitRequest{ID: e.Container, ExecID: e.ID})
			err = task.FromShim(err)
		}
		if err != nil && !errdefs.IsNotFound(err) {
			return err
		}
	}
	_, err := e.Client.Task.Delete(ctx, &taskapi.DeleteRequest{ID: e.Container, ExecID: e.ID})
	if err = task.FromShim(err); err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	return nil
}

// KillAbandoned kills the commands that an earlier daemon ran in a container, because nothing reads
// their output and exit code any more. It finds them by their pipes, which it removes with those of
// attached clients. It must be called before new commands start, and kills in the background.
func (b execs) KillAbandoned(c *pod.Container) {
	dir := filepath.Join(b.pods.ContainerDir(c.ID()), "io")
	if left := leftPipes(dir); len(left) > 0 {
		go b.killAbandoned(c, dir, left)
	}
}

func (b execs) killAbandoned(c *pod.Container, dir string, left map[string][]string) {
	ctx, cancel := context.WithTimeout(b.pods.Background, execCleanTimeout)
	defer cancel()
	client, err := c.Sandbox.Runner.Client(ctx)
	if err != nil {
		log.G(ctx).WithError(err).WithField("container", c.ID()).Warn("Failed to kill execs of an earlier daemon")
		return
	}
	for id, pipes := range left {
		if id != "" {
			// Its pipes are removed later: their names identify its descendants.
			(&Execution{Client: client, Container: c.ID(), ID: id, KillsTree: c.Sandbox.KillsTree(), Dir: dir, started: true}).Clean()
		}
		for _, p := range pipes {
			_ = os.Remove(p)
		}
	}
}

// leftPipes returns the pipes of sessions in a container's directory by the command's id, which is
// "" for attached clients.
func leftPipes(dir string) map[string][]string {
	entries, _ := os.ReadDir(dir) // an unreadable directory is removed with the container
	left := map[string][]string{}
	for _, e := range entries {
		if id, ok := sessionOf(e.Name()); ok {
			left[id] = append(left[id], filepath.Join(dir, e.Name()))
		}
	}
	return left
}

// sessionOf returns the id of the command that a pipe belongs to, by the pipe's name; "" for an
// attached client. ok is false for the container's own pipes.
func sessionOf(pipe string) (command string, ok bool) {
	end := strings.LastIndexByte(pipe, '-')
	switch {
	case end < 0:
		return "", false
	case strings.HasPrefix(pipe, attachPrefix):
		return "", true
	default:
		return pipe[:end], strings.HasPrefix(pipe, execPrefix)
	}
}

// stateTimeout bounds the State call on a container after a failed command.
const stateTimeout = 2 * time.Second

// classified replaces the error of a command that failed because its container exited, by the error
// that a later command would get.
func classified(ctx context.Context, c *pod.Container, client *shim.Client, err error) error {
	if err == nil || ctx.Err() != nil || shim.Lost(err) || !hasExited(ctx, c, client, err) {
		return err
	}
	return c.NotRunning()
}

// hasExited reports whether the container of a failed command is exiting or has exited. Its exit
// may not be recorded yet.
func hasExited(ctx context.Context, c *pod.Container, client *shim.Client, err error) bool {
	st := c.Status()
	if st.Phase != pod.PhaseRunning || meansExited(err.Error()) {
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
	// The shim or supervisor may observe an exit later than the kernel.
	dying, err := process.Dying(st.PID)
	return dying && err == nil
}

// exitedWords occur in the errors of runc, crun, gVisor and Kata for a container that does not run.
var exitedWords = []string{"container not running", "is not running", "in a stopped container", "in state stopped", "state invalid: stopped"}

// meansExited recognizes a runtime's error for a command in an exited container. Pure.
func meansExited(text string) bool {
	return slices.ContainsFunc(exitedWords, func(words string) bool { return strings.Contains(text, words) })
}
