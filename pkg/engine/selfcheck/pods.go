// Package selfcheck runs self-check pods, which show whether a handler can run pods.
package selfcheck

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/binaries"
	"github.com/berth-cri/berth/pkg/engine/capabilities"
	"github.com/berth-cri/berth/pkg/engine/failpoint"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/sandbox"
	"github.com/berth-cri/berth/pkg/engine/settings"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/engine/store"
	"github.com/berth-cri/berth/pkg/engine/task"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/probe"
)

const (
	// defaultSelfCheckTimeout is the lifetime of a self-check pod if its handler sets none.
	defaultSelfCheckTimeout = 2 * time.Minute
	// retryInterval is the longest time between two attempts to roll back a self-check pod.
	retryInterval = time.Minute
	// closeGrace is how long the shutdown of the daemon waits for a self-check pod, and an exec for
	// its output after its exit.
	closeGrace = 2 * time.Second
)

// Pods runs self-check pods, which show whether a handler can run pods. A self-check pod is a
// sandbox with a process and without a network. It never becomes READY and is never in the index,
// so no client sees it, and recovery rolls it back like every partially created sandbox.
type Pods struct {
	pods         *pod.Registry
	settings     *settings.Settings
	binaries     *binaries.Binaries
	tasks        *task.Service
	sandboxes    *sandbox.Service
	capabilities *capabilities.Checker
	shims        *shim.Manager

	mu sync.Mutex
	// existing contains the digests of Definitions with a self-check pod that is not removed yet.
	existing map[string]bool
	// closed is set when no more self-check pods may start.
	closed bool
	// running counts self-check pods with an operation in progress.
	running sync.WaitGroup
}

// New returns a runner of self-check pods, which sandboxes creates.
func New(pods *pod.Registry, s *settings.Settings, b *binaries.Binaries, t *task.Service, c *capabilities.Checker, sandboxes *sandbox.Service, shims *shim.Manager) *Pods {
	return &Pods{
		pods: pods, settings: s, binaries: b, tasks: t, capabilities: c, sandboxes: sandboxes, shims: shims,
		existing: map[string]bool{},
	}
}

// Run runs a self-check pod. It returns when the pod is rolled back, or its timeout or ctx ends.
// The pod is rolled back in any case, if necessary by the next daemon.
func (b *Pods) Run(ctx context.Context, d *handler.Definition, t *checks) error {
	if err := b.reserve(d); err != nil {
		return err
	}
	limit := selfCheckTimeout(d)
	ctx, cancel := context.WithTimeout(ctx, limit)
	ended := make(chan error, 1)
	go func() {
		defer b.running.Done()
		defer cancel()
		ended <- b.once(ctx, d, t)
	}()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-ended: // at that very moment
		return err
	default:
		return probe.Passing(fmt.Errorf("the self-check pod did not finish within %v (self_check_timeout): %w", limit, errdefs.ErrUnavailable))
	}
}

func selfCheckTimeout(d *handler.Definition) time.Duration {
	return cmp.Or(d.SelfCheckTimeout, defaultSelfCheckTimeout)
}

// Close prevents new self-check pods and waits up to closeGrace for operations in progress. A pod
// that hangs is left to the next daemon.
func (b *Pods) Close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, closeGrace)
	defer cancel()
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	over := make(chan struct{})
	go func() {
		defer close(over)
		b.running.Wait()
	}()
	select {
	case <-over:
	case <-ctx.Done():
	}
}

func (b *Pods) once(ctx context.Context, d *handler.Definition, t *checks) error {
	s, err := b.record(ctx, d, t)
	if err != nil {
		b.release(d)
		return err
	}
	err = b.live(ctx, s, t)
	if left := b.rollBack(s); left != nil {
		b.running.Go(func() { b.RollBackLater(s, func() { b.release(d) }) })
		return errors.Join(err, failedAt("its removal", handler.AttributeToRuntime(left)))
	}
	b.release(d)
	return err
}

// record creates the record of a self-check pod. It is the basis of every later rollback.
func (b *Pods) record(ctx context.Context, d *handler.Definition, t *checks) (*pod.Sandbox, error) {
	rt, kept, release, err := b.binaries.Copies.ForPod(ctx, d)
	if err != nil {
		return nil, failedAt("its binaries", err)
	}
	defer release()
	spec, err := b.specOf(d, rt, t)
	if err != nil {
		return nil, failedAt("its preparation", err)
	}
	id := pod.NewID()
	spec.Pinned.Binaries = kept
	spec.Supervisor = task.SupervisorKey(d, kept, b.binaries.Tools.SupervisorHash, id)
	b.pods.Labels.Hold(spec.ProcessLabel)
	// The record is relaxed: a power failure also removes everything that it describes.
	o, err := b.pods.Sandboxes.Create(id, *spec, pod.SandboxStatus{}, store.Relaxed)
	if err != nil {
		b.pods.Labels.Release(spec.ProcessLabel)
		return nil, failedAt("its preparation", err)
	}
	failpoint.Hit(failpoint.SandboxReserved)
	b.shims.Hold(spec.Supervisor)
	return pod.NewSandbox(o, b.tasks), nil
}

// reserve prevents a second self-check pod of the same Definition. It counts the pod as running.
func (b *Pods) reserve(d *handler.Definition) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return probe.Passing(fmt.Errorf("berth is stopping: %w", errdefs.ErrUnavailable))
	}
	if b.existing[d.Digest()] {
		return probe.Passing(fmt.Errorf("the previous self-check pod of handler %q is not removed yet: %w", d.Name, errdefs.ErrUnavailable))
	}
	b.running.Add(1)
	b.existing[d.Digest()] = true
	return nil
}

func (b *Pods) release(d *handler.Definition) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.existing, d.Digest())
}

// specOf returns the record of a self-check pod without its binaries.
func (b *Pods) specOf(d *handler.Definition, rt *probe.Runtime, t *checks) (*pod.SandboxSpec, error) {
	config := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: "self-check", Namespace: "berth", Uid: pod.NewID()[:32]},
		Hostname: "self-check",
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{NamespaceOptions: t.namespaces(), Seccomp: seccompOf(d)},
		},
	}
	bounded := *d
	bounded.ContainerCreateTimeout = min(task.CallTimeout(d), selfCheckTimeout(d))
	plan := pod.NewPlan(config, d, rt)
	plan.Process = true
	kept, err := b.settings.Pin(d)
	if err != nil {
		return nil, err
	}
	kept.PauseRoot = filepath.Base(b.binaries.Tools.PauseRoot)
	spec := &pod.SandboxSpec{Definition: &bounded, CreatedAt: b.pods.Clock.Now(), Plan: plan, Pinned: kept, Boot: b.pods.Boot, SelfCheck: true}
	spec.Config.Msg = config
	return spec, nil
}

func (b *Pods) live(ctx context.Context, s *pod.Sandbox, t *checks) error {
	if err := b.sandboxes.MakeParts(ctx, s, nil); err != nil {
		return failedAt("its namespaces and files", err)
	}
	if err := b.sandboxes.Start(ctx, s); err != nil {
		return failedAt("its start", err)
	}
	failpoint.Hit(failpoint.SelfCheckRunning)
	client, err := s.Runner.Client(ctx)
	if err != nil {
		return failedAt("its run", err)
	}
	if t == nil || !t.users {
		if err := b.conforms(ctx, client, s); err != nil {
			return failedAt("its checks", err)
		}
	}
	if err := b.try(ctx, client, s, t); err != nil {
		return failedAt("its checks", handler.AttributeToRuntime(err))
	}
	if err := checkProgram(ctx, client, s); err != nil {
		return failedAt("its run", handler.AttributeToRuntime(err))
	}
	return nil
}

// exitedOnRequest reports whether a status is that of our program after SIGTERM. If the program did
// not handle SIGTERM yet, the signal kills it or, if it is the first process of its namespace,
// which no signal kills by itself, Go's runtime exits with 2. Pure.
func exitedOnRequest(status uint32) bool {
	const term, early = 128 + uint32(unix.SIGTERM), 2
	return status == 0 || status == term || status == early
}

// checkProgram checks that the program runs, and that it is ours: it exits on SIGTERM. A VM's first
// container may be a different one.
func checkProgram(ctx context.Context, client *shim.Client, s *pod.Sandbox) error {
	state, err := client.Task.State(ctx, &taskapi.StateRequest{ID: s.ID()})
	if err != nil {
		return task.FromShim(err)
	}
	if state.Status != tasktypes.Status_RUNNING {
		return fmt.Errorf("its container is %s with exit status %d instead of running", state.Status, state.ExitStatus)
	}
	if s.Machine {
		return nil
	}
	term := func() {
		_, _ = client.Task.Kill(ctx, &taskapi.KillRequest{ID: s.ID(), Signal: uint32(unix.SIGTERM)})
	}
	term()
	defer task.Repeat(ctx, task.AbortInterval, term)()
	exit, err := client.Task.Wait(ctx, &taskapi.WaitRequest{ID: s.ID()})
	if err != nil {
		return fmt.Errorf("wait for its exit: %w", task.FromShim(err))
	}
	if !exitedOnRequest(exit.ExitStatus) {
		return fmt.Errorf("its container exited with status %d when it was stopped", exit.ExitStatus)
	}
	return nil
}

func (b *Pods) rollBack(s *pod.Sandbox) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(b.pods.Background), pod.UndoTimeout)
	defer cancel()
	if err := b.sandboxes.TearDown(ctx, s); err != nil {
		return err
	}
	return b.sandboxes.Forget(s)
}

// RollBackLater retries the roll-back until it succeeds and then calls done, or until the engine
// closes; the next engine continues.
func (b *Pods) RollBackLater(s *pod.Sandbox, done func()) {
	wait := time.Second
	for {
		select {
		case <-b.pods.Background.Done():
			return
		case <-time.After(wait):
		}
		if err := b.rollBack(s); err == nil {
			done()
			return
		}
		wait = min(2*wait, retryInterval)
	}
}

// failedAt adds the step at which a self-check pod failed. An error that is not attributed to the
// runtime may be transient (see probe.Transient).
func failedAt(step string, err error) error {
	err = fmt.Errorf("the self-check pod failed at %s: %w", step, err)
	if handler.IsRuntimeFault(err) {
		return err
	}
	return probe.Passing(err)
}
