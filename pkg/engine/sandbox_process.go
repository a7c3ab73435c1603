package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/cgroup"
	"github.com/berth-cri/berth/pkg/engine/failpoint"
	"github.com/berth-cri/berth/pkg/engine/mountpoint"
	"github.com/berth-cri/berth/pkg/engine/ocispec"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/handler"
)

// sandboxProcesses are the processes of the sandboxes that have one.
type sandboxProcesses struct {
	layout
	background context.Context // ends with the engine
	settings   *settings
	runtimes   *runtimes
	tasks      *tasks
	exits      *exits
	burials    *burials
	prober     prober
	tools      tools
	shims      shimStarter
	events     *announcer
}

// shimStarter starts foreign shims, and lets go of tasks.
type shimStarter interface {
	keeper
	StartForeign(ctx context.Context, s shim.Start) (shim.Endpoint, *shim.Client, error)
}

// start starts the sandbox process of a sandbox that has one.
func (b *sandboxProcesses) start(ctx context.Context, s *sandbox) error {
	if !s.Spec().Plan.Process {
		return nil
	}
	if err := b.writeProcessBundle(ctx, s); err != nil {
		return fmt.Errorf("sandbox process: %w", err)
	}
	limit := callTimeout(s.Spec().Definition)
	if s.Spec().Definition.Type == handler.OCI {
		limit += createPatience // the supervisor ends the runtime's call at its limit, and says why
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	client, err := b.startShim(ctx, s)
	if err != nil {
		return fmt.Errorf("sandbox process: %w", err)
	}
	if err := b.runtimes.need(s); err != nil {
		return err
	}
	options, err := b.tasks.options(s.Spec(), "", "")
	if err != nil {
		return err
	}
	unanswered, err := callCreate(ctx, client, &taskapi.CreateTaskRequest{
		ID: s.ID(), Bundle: b.processBundle(s.ID()), Rootfs: b.processRootfs(s), Options: options,
	})
	s.creating.Store(unanswered)
	if err != nil {
		err = inTime(limit, err)
		if s.Spec().Definition.Type == handler.Shim { // berth-shim calls no runtime yet
			err = blamed(s.Spec().Definition, err)
		}
		return fmt.Errorf("create sandbox process: %w", err)
	}
	started, err := client.Task.Start(ctx, &taskapi.StartRequest{ID: s.ID()})
	if err != nil {
		return fmt.Errorf("start sandbox process: %w", blamed(s.Spec().Definition, inTime(limit, fromShim(err))))
	}
	b.tasks.keep(ctx, s, client, shim.Kept{ID: s.ID(), PID: int(started.Pid)})
	return s.Update(func(st *sandboxStatus) error { st.PID = int(started.Pid); return nil })
}

// inTime says of a shim that did not answer what there was to wait for.
func inTime(limit time.Duration, err error) error {
	if err == context.DeadlineExceeded { //nolint:errorlint // one that came from the shim has words of its own
		return fmt.Errorf("its shim did not answer within %v (container_create_timeout): %w", limit, err)
	}
	return err
}

// keep holds what the task would lose with its supervisor. Failing at that
// costs only what a later crash of the supervisor would lose.
func (t *tasks) keep(ctx context.Context, s *sandbox, c *shim.Client, what shim.Kept) {
	if s.Spec().Definition.Type != handler.OCI {
		return
	}
	if s.Spec().Plan.OwnKernel {
		what.PID = 0 // the pid is the kernel's, not the container's
	}
	if err := t.shims.Keep(ctx, s.Spec().Supervisor, c, what); err != nil {
		log.G(ctx).WithError(err).WithField("sandbox", s.ID()).WithField("container", what.ID).Warn("keep a task's files")
	}
}

// startShim returns who runs the tasks of s, starting a foreign shim.
func (b *sandboxProcesses) startShim(ctx context.Context, s *sandbox) (*shim.Client, error) {
	d := b.runtimes.of(s.Spec())
	if d.Type != handler.Shim {
		return b.tasks.client(ctx, s)
	}
	options, err := shimOptions(d, s.Spec().Plan, b.settings.nodeOf(s.Spec()).SystemdCgroup)
	if err != nil {
		return nil, err
	}
	ep, client, err := b.shims.StartForeign(ctx, shim.Start{Binary: d.Path, ID: s.ID(), Bundle: b.processBundle(s.ID()), Options: options})
	if err != nil {
		return nil, blamed(d, err)
	}
	failpoint.Hit(failpoint.SandboxShimStarted)
	return client, s.Update(func(st *sandboxStatus) error { st.Shim = &ep; return nil })
}

// processRootfs is how a foreign shim gets the sandbox process's root: VM
// runtimes decide for themselves how to carry it over.
func (b *sandboxProcesses) processRootfs(s *sandbox) []*types.Mount {
	if s.Spec().Definition.Type != handler.Shim {
		return nil
	}
	return []*types.Mount{{Type: "bind", Source: b.tools.pauseRoot, Options: []string{"rbind", "ro"}}}
}

func (b *sandboxProcesses) writeProcessBundle(ctx context.Context, s *sandbox) error {
	rt, err := b.prober.Probe(ctx, b.runtimes.of(s.Spec()))
	if err != nil {
		return err
	}
	path, err := cgroup.Path(b.settings.of(s.Spec()).CgroupDriver, s.config().GetLinux().GetCgroupParent(), s.ID())
	if err != nil {
		return err
	}
	facts := b.specSandbox(s)
	facts.PID = 0
	base, err := b.settings.baseSpec(s.Spec())
	if err != nil {
		return err
	}
	spec, err := ocispec.BuildSandboxProcess(ocispec.SandboxProcess{
		Sandbox: facts, PausePath: "/" + pauseName, CgroupsPath: path, Runtime: rt, Base: base, MemoryLimit: b.memoryOf(ctx, s),
	}, b.settings.nodeOf(s.Spec()))
	if err != nil {
		return err
	}
	bundle := b.processBundle(s.ID())
	rootfs := filepath.Join(bundle, "rootfs")
	if err := os.MkdirAll(rootfs, 0o711); err != nil {
		return err
	}
	if s.Spec().Definition.Type == handler.OCI {
		if err := unix.Mount(b.tools.pauseRoot, rootfs, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("mount its root filesystem: %w", err)
		}
		if b.tools.noExec {
			if err := unix.Mount("", rootfs, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_NOSUID|unix.MS_NODEV, ""); err != nil {
				return fmt.Errorf("let programs run in its root filesystem: %w", err)
			}
		}
	}
	return writeSpec(bundle, spec)
}

// memoryOf is what the kubelet lets a pod use whose kernel is its own: it limits
// the pod's cgroup before it asks for the pod.
func (b *sandboxProcesses) memoryOf(ctx context.Context, s *sandbox) uint64 {
	if !s.Spec().Plan.OwnKernel || s.Spec().Definition.Type != handler.OCI {
		return 0
	}
	parent := s.config().GetLinux().GetCgroupParent()
	stats, err := cgroup.ReadStats(cgroup.ParentPaths(parent, b.settings.of(s.Spec()).CgroupDriver))
	if err != nil {
		log.G(ctx).WithError(err).WithField("sandbox", s.ID()).Debug("a pod will take all of the node's memory for its own")
		return 0
	}
	return stats.MemoryLimit.N
}

func writeSpec(bundle string, spec *specs.Spec) error {
	b, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(bundle, "config.json"), b, 0o600)
}

// specSandbox are the facts about s that specs depend on.
func (l layout) specSandbox(s *sandbox) ocispec.Sandbox {
	f, st, plan := l.filesOf(s.ID()), s.Status(), s.Spec().Plan
	facts := ocispec.Sandbox{
		ID: s.ID(), Config: s.config(), Definition: s.Spec().Definition,
		NetNS: st.Namespaces.Net, IPCNS: st.Namespaces.IPC, UTSNS: st.Namespaces.UTS, UserNS: st.Namespaces.User,
		PID: st.PID, Hostname: plan.Hostname, ProcessLabel: s.Spec().ProcessLabel, MountLabel: s.Spec().MountLabel,
		HostsPath: f.hosts, HostnamePath: f.hostname, ResolvConfPath: f.resolvConf,
	}
	if plan.IPC {
		facts.ShmPath = f.shm
	}
	return facts
}

// watch turns the sandbox NOTREADY when its process ends by itself.
func (b *sandboxProcesses) watch(s *sandbox) {
	exit, err := b.exits.await(s, s.ID())
	if err != nil {
		return // the engine is closing
	}
	log.G(b.background).WithField("sandbox", s.ID()).WithField("code", exit.Status).Debug("sandbox process ended")
	s.force(b.background, func(st *sandboxStatus) { st.Phase, st.PID = phaseStopped, 0 })
	b.shims.Drop(s.Spec().Supervisor, s.ID())
	b.events.announce(s.ID(), s, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
}

// stop ends the sandbox process and what the runtime has of it. It works
// when nothing of it is there any more.
func (b *sandboxProcesses) stop(ctx context.Context, s *sandbox) error {
	if !s.Spec().Plan.Process {
		return nil
	}
	b.runtimes.mend(s)
	err := b.end(ctx, s)
	if err != nil {
		return fmt.Errorf("sandbox process: %w", err)
	}
	b.shims.Drop(s.Spec().Supervisor, s.ID())
	return mountpoint.Unmount(filepath.Join(b.processBundle(s.ID()), "rootfs"))
}

func (b *sandboxProcesses) end(ctx context.Context, s *sandbox) error {
	if s.Spec().Definition.Type == handler.Shim {
		return b.endForeign(ctx, s)
	}
	client, err := b.tasks.client(ctx, s)
	if err != nil {
		return err
	}
	return endTask(ctx, client, s.ID())
}

// endForeign ends the process, the shim, and what the shim runs the pod in.
func (b *sandboxProcesses) endForeign(ctx context.Context, s *sandbox) error {
	client, err := b.endByShim(ctx, s)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		if !errors.Is(err, shim.ErrGone) {
			log.G(ctx).WithError(err).WithField("sandbox", s.ID()).Warn("Killing shim that does not end its sandbox")
		}
		client = nil
		if err := b.killShim(ctx, s, err); err != nil {
			return err
		}
	}
	if err := b.tasks.dismiss(ctx, s, client); err != nil {
		return err
	}
	if client != nil && s.Status().PID == 0 {
		// What was never started may still be in the making.
		if err := client.AwaitGone(ctx); err != nil {
			return err
		}
	}
	return b.burials.endPod(ctx, s)
}

// killShim kills the shim of s, and cleans up after it as after one that was lost for
// the reason cause.
func (b *sandboxProcesses) killShim(ctx context.Context, s *sandbox, cause error) error {
	// First, so that it makes nothing more.
	if err := b.tasks.dismiss(ctx, s, nil); err != nil {
		return err
	}
	_, err := b.burials.bury(ctx, s, s.ID(), cause)
	return err
}

// endByShim has the shim end the process, if it does so in time.
func (b *sandboxProcesses) endByShim(ctx context.Context, s *sandbox) (client *shim.Client, err error) {
	err = s.insist(ctx, func(ctx context.Context) error {
		if err := s.creating.Load().await(ctx, createPatience); err != nil {
			return err
		}
		if client, err = b.tasks.client(ctx, s); err != nil {
			return err
		}
		return endTask(ctx, client, s.ID())
	}, func(err error) bool { return errors.Is(err, context.DeadlineExceeded) || shim.Lost(err) })
	return client, err
}

// killGrace is how long a killed process may take to be reported dead.
const killGrace = 10 * time.Second

// endTask kills a task, waits for its end and deletes it.
func endTask(ctx context.Context, client *shim.Client, id string) error {
	state, err := client.Task.State(ctx, &taskapi.StateRequest{ID: id})
	if errdefs.IsNotFound(fromShim(err)) {
		return nil
	}
	if err != nil {
		return fromShim(err)
	}
	// A supervisor's task has no process also while it is being started.
	if started := state.Pid > 0; state.Status != tasktypes.Status_STOPPED && (started || client.Dir != "") {
		if err := killTask(ctx, client, id, started); err != nil {
			return err
		}
	}
	err = deleteTask(ctx, client, id)
	if errdefs.IsFailedPrecondition(err) && state.Pid == 0 {
		// A start whose caller is gone came after the question, or was too far.
		if err = killTask(ctx, client, id, true); err == nil {
			err = deleteTask(ctx, client, id)
		}
	}
	return err
}

// deleteTask deletes a task that has ended or was never started.
func deleteTask(ctx context.Context, client *shim.Client, id string) error {
	_, err := client.Task.Delete(ctx, &taskapi.DeleteRequest{ID: id})
	if err = fromShim(err); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("delete: %w", err)
	}
	return nil
}

// killTask kills every process of a task and returns when the first is dead. One
// that was not started has none; one that is being started is told to give up,
// which may be too late for it, so it is told again.
func killTask(ctx context.Context, client *shim.Client, id string, started bool) error {
	kill := func() error {
		_, err := client.Task.Kill(ctx, &taskapi.KillRequest{ID: id, Signal: uint32(unix.SIGKILL), All: true})
		return fromShim(err)
	}
	err := kill()
	if errdefs.IsFailedPrecondition(err) && !started {
		return nil
	}
	if err != nil && !errdefs.IsNotFound(err) && !errdefs.IsFailedPrecondition(err) {
		return fmt.Errorf("kill: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, killGrace)
	defer cancel()
	if !started {
		defer repeat(ctx, abortInterval, func() { _ = kill() })()
	}
	_, err = client.Task.Wait(ctx, &taskapi.WaitRequest{ID: id})
	if err = fromShim(err); err != nil && !errdefs.IsNotFound(err) && started { // else a deletion waits for the start
		return fmt.Errorf("wait for the end: %w", err)
	}
	return nil
}

// repeat calls f again and again until ctx ends or what it returns is called.
func repeat(ctx context.Context, interval time.Duration, f func()) (stop func()) {
	ctx, stop = context.WithCancel(ctx)
	go func() {
		again := time.NewTicker(interval)
		defer again.Stop()
		for {
			select {
			case <-again.C:
				f()
			case <-ctx.Done():
				return
			}
		}
	}()
	return stop
}

// errGone ends a wait because the engine is closing.
var errGone = errors.New("engine is closing")
