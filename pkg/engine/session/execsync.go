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

// execs serves ExecSync.
type execs struct {
	pods  *pod.Registry
	tasks *task.Service
	// commands bounds how many run at once, outputs the memory of large outputs.
	commands, outputs *semaphore.Weighted
}

const (
	// maxExecSyncs is how many commands of ExecSync run at a time.
	maxExecSyncs = 512
	// drainTimeout bounds the wait for a descendant that holds the output of an ended command.
	drainTimeout = 10 * time.Second
)

func newExecs(pods *pod.Registry, t *task.Service) execs {
	return execs{pods: pods, tasks: t, commands: semaphore.NewWeighted(maxExecSyncs), outputs: semaphore.NewWeighted(outputMemory)}
}

// ExecSync runs a command in a RUNNING container and returns what it wrote and
// its exit code. Past the timeout the command and its descendants are killed and
// the call fails with DeadlineExceeded.
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
	// The answer is in memory until it was handed to the connection.
	context.AfterFunc(call, e.release)
	return e.Answer(exit), nil
}

// process is the container's own process with another command.
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

// The names of pipes begin with what they are for.
const (
	execPrefix   = "exec-"
	attachPrefix = "attach-"
)

// NewExecID names a command.
func NewExecID() string {
	b := make([]byte, 8)
	_, _ = rand.Read(b) // never fails
	return execPrefix + hex.EncodeToString(b)
}

// Execution is one command in flight.
type Execution struct {
	Client         *shim.Client
	Container, ID  string
	Dir            string
	KillsTree      bool // of its sandbox
	Drain          time.Duration
	Memory         *semaphore.Weighted // for large outputs; nil is no bound
	stdout, stderr *output
	// started is set while it may run.
	started bool
	// registering is closed when the other side has answered whether it knows the
	// command; nil if this daemon did not ask.
	registering <-chan struct{}
	stopAsking  context.CancelFunc
}

// register makes the command known. It gives up when ctx ends; the other side does
// not: cleanUp waits for what it still makes.
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

// Run returns the command's exit code. What it wrote is in its outputs.
func (e *Execution) Run(ctx context.Context, process *anypb.Any) (exitCode int32, err error) {
	if e.stdout, err = newOutput(filepath.Join(e.Dir, e.ID+"-out"), e.Memory); err != nil {
		return 0, err
	}
	if e.stderr, err = newOutput(filepath.Join(e.Dir, e.ID+"-err"), e.Memory); err != nil {
		return 0, err
	}
	exitCode, err = e.run(ctx, &taskapi.ExecProcessRequest{Stdout: e.stdout.path(), Stderr: e.stderr.path(), Spec: process}, func() {
		// Only now: a FIFO without a writer looks like one at its end.
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
	// A start whose answer does not come in time may still happen.
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

// explain adds what the runtime wrote to the stderr that it had for the command:
// it does so when it fails before it can write its log, or is killed.
func (e *Execution) explain(err error) error {
	if e.stderr == nil {
		return err // the client has it
	}
	said := runtimecall.Complaint(e.stderr.file)
	if said == "" || strings.Contains(err.Error(), said) {
		return err
	}
	return fmt.Errorf("%w; it wrote to stderr: %s", err, said)
}

// drainOutput waits for the rest of the output, but not for ever for a
// descendant of the command that keeps the streams open.
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

// execError says why a command failed; the kubelet tells a timeout from
// everything else by its code.
func execError(ctx context.Context, err error) error {
	// Who runs the command is told the deadline, and may be the first to say that it is over.
	end, bounded := ctx.Deadline()
	first := bounded && errdefs.IsDeadlineExceeded(err) && time.Until(end) < time.Second
	if first || errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("command timed out: %w", context.DeadlineExceeded)
	}
	return fmt.Errorf("run command: %w", err)
}

// execCleanTimeout bounds the kill and removal of a command.
const execCleanTimeout = 20 * time.Second

// execCleanPatience is how much later the caller of a failed command is answered for that. An
// unresponsive process is found within it.
const execCleanPatience = 8 * time.Second

// Clean leaves nothing of the command.
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

// release gives back the memory of the output.
func (e *Execution) release() {
	for _, o := range []*output{e.stdout, e.stderr} {
		if o != nil {
			o.release()
		}
	}
}

func (e *Execution) cleanUp(ctx context.Context) error {
	if e.registering == nil && !e.started {
		return nil // the other side does not know it
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
			err = nil // it never ran
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

// EndAbandoned kills the commands that a daemon before this one has run in a
// container: nobody reads what they write, nor waits for them. Their pipes, and
// those of its attached clients, still have their names. It must be called before
// there are new ones, and leaves the killing to the background.
func (b execs) EndAbandoned(c *pod.Container) {
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
			// Before its pipes go: by their names its descendants are known.
			(&Execution{Client: client, Container: c.ID(), ID: id, KillsTree: c.Sandbox.KillsTree(), Dir: dir, started: true}).Clean()
		}
		for _, p := range pipes {
			_ = os.Remove(p)
		}
	}
}

// leftPipes are the pipes of sessions in a container's directory by the id of
// the command; those of attached clients have none.
func leftPipes(dir string) map[string][]string {
	entries, _ := os.ReadDir(dir) // one that cannot be read goes with the container
	left := map[string][]string{}
	for _, e := range entries {
		if id, ok := sessionOf(e.Name()); ok {
			left[id] = append(left[id], filepath.Join(dir, e.Name()))
		}
	}
	return left
}

// sessionOf tells the pipes of sessions from those of the container by their
// names, and of which command they are; that of an attached client is "".
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
