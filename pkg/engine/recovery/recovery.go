// Package recovery restores the state of earlier runs of the daemon: it continues to watch their
// pods and cleans up.
package recovery

import (
	"context"

	"github.com/containerd/log"
	"golang.org/x/sync/errgroup"

	"github.com/berth-cri/berth/pkg/engine/binaries"
	"github.com/berth-cri/berth/pkg/engine/container"
	"github.com/berth-cri/berth/pkg/engine/image"
	"github.com/berth-cri/berth/pkg/engine/network"
	"github.com/berth-cri/berth/pkg/engine/nri"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/podcheckpoint"
	"github.com/berth-cri/berth/pkg/engine/reserve"
	"github.com/berth-cri/berth/pkg/engine/rootfs"
	"github.com/berth-cri/berth/pkg/engine/sandbox"
	"github.com/berth-cri/berth/pkg/engine/selfcheck"
	"github.com/berth-cri/berth/pkg/engine/session"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/engine/task"
)

const unreachable = "Supervisor or shim is unresponsive; keeping the recorded state"

// recoveryParallel is how many objects are recovered concurrently.
const recoveryParallel = 16

// Deps are the services that manage pods after recovery.
type Deps struct {
	Pods       *pod.Registry
	Broken     pod.Broken
	Binaries   *binaries.Binaries
	Tasks      *task.Service
	Rootfs     *rootfs.Mounts
	Images     *image.Store
	Network    *network.Plugins
	Plugins    *nri.Plugins // nil if plugins are disabled
	Shims      *shim.Manager
	Containers *container.Service
	Sandboxes  *sandbox.Service
	Sessions   *session.Calls
	SelfChecks *selfcheck.Pods
	// PodCheckpoints recovers pods with an interrupted checkpoint or restore.
	PodCheckpoints *podcheckpoint.Service
}

// recovery determines the state of what earlier daemons ran.
type recovery struct {
	Deps
	log          *log.Entry
	unresponsive unresponsive
}

// takeSandboxes adds to the index the sandboxes that earlier daemons listed.
func (r *recovery) takeSandboxes(ctx context.Context) {
	var shown []*pod.Sandbox
	for _, o := range r.Pods.Sandboxes.List() {
		r.Pods.Clock.Seen(o.Spec().CreatedAt)
		r.Shims.Hold(o.Spec().Supervisor)
		r.Pods.Labels.Hold(o.Spec().ProcessLabel)
		if o.Status().Phase == pod.PhasePlanned {
			continue
		}
		s := pod.NewSandbox(o, r.Tasks)
		r.reserveSandbox(s)
		r.Pods.Index.AddSandbox(s)
		shown = append(shown, s)
	}
	each(shown, func(s *pod.Sandbox) { r.sandbox(ctx, s) })
}

// each calls f for all, with limited concurrency.
func each[T any](all []T, f func(T)) {
	g := errgroup.Group{}
	g.SetLimit(recoveryParallel)
	for _, one := range all {
		g.Go(func() error { f(one); return nil })
	}
	_ = g.Wait() // f has no errors
}

func (r *recovery) reserveSandbox(s *pod.Sandbox) {
	if err := r.Pods.Names.Reserve(reserve.SandboxName(s.Config().GetMetadata()), s.ID()); err != nil {
		r.log.WithError(err).WithField("sandbox", s.ID()).Error("Two sandboxes have the same name")
	}
}

func (r *recovery) reserveContainer(c *pod.Container) {
	if err := r.Pods.Names.Reserve(reserve.ContainerName(c.Sandbox.ID(), c.Config().GetMetadata()), c.ID()); err != nil {
		r.log.WithError(err).WithField("container", c.ID()).Error("Two containers have the same name")
	}
}

func (r *recovery) sandbox(ctx context.Context, s *pod.Sandbox) {
	st := s.Status()
	if st.Phase != pod.PhaseReady {
		return
	}
	lost := s.Spec().Boot != r.Pods.Boot || st.Namespaces.Lost() != ""
	if !lost && s.Spec().Plan.Process {
		err := r.ask(ctx, s, func(ctx context.Context) (err error) {
			_, lost, err = r.Tasks.ExitedMeanwhile(ctx, s, s.ID())
			return err
		})
		if err != nil {
			log.G(ctx).WithError(err).WithField("sandbox", s.ID()).Warn(unreachable)
		}
	}
	if lost {
		s.Record(ctx, func(st *pod.SandboxStatus) { st.Phase, st.PID = pod.PhaseStopped, 0 })
		return
	}
	if s.Spec().Plan.Process {
		r.keepAgain(ctx, s, shim.Kept{ID: s.ID(), PID: st.PID})
		if err := s.Runner.ReadLog(ctx); err != nil {
			log.G(ctx).WithError(err).WithField("sandbox", s.ID()).Warn("Failed to read the log of shim")
		}
		go r.Sandboxes.Watch(s)
	}
}

// keepAgain copies the task's descriptors again: see pod.Connection.Keep.
func (r *recovery) keepAgain(ctx context.Context, s *pod.Sandbox, t shim.Kept) {
	if r.unresponsive.has(s.Runner.Name()) {
		t.Terminal = false // only a copy of the terminal needs an answer
	}
	s.Runner.Keep(ctx, t)
}

// takeContainers adds to the index the containers that earlier daemons listed.
func (r *recovery) takeContainers(ctx context.Context) {
	var shown []*pod.Container
	for _, o := range r.Pods.Containers.List() {
		r.Pods.Clock.Seen(o.Spec().CreatedAt)
		r.Pods.Clock.Seen(o.Status().StartedAt)
		r.Pods.Clock.Seen(o.Status().FinishedAt)
		r.Pods.Labels.Hold(o.Spec().ProcessLabel)
		s, err := r.Pods.Index.Sandbox(o.Spec().Sandbox)
		if err != nil || o.Status().Phase == pod.PhasePlanned {
			continue
		}
		c := pod.NewContainer(o, s)
		r.reserveContainer(c)
		r.Pods.Index.AddContainer(c)
		shown = append(shown, c)
	}
	each(shown, func(c *pod.Container) { r.container(ctx, c) })
}

func (r *recovery) container(ctx context.Context, c *pod.Container) {
	switch c.Status().Phase {
	case pod.PhaseExited:
		close(c.Exited)
		if c.Status().Erased {
			close(c.Erased)
			return
		}
		// Its process may run: an abandoned start can have succeeded.
		go r.Containers.EraseExited(c)
		return
	case pod.PhaseCreated:
		r.created(ctx, c)
		return
	}
	var exit pod.Exit
	var ended bool
	err := r.ask(ctx, c.Sandbox, func(ctx context.Context) (err error) {
		exit, ended, err = r.Tasks.ExitedMeanwhile(ctx, c.Sandbox, c.ID())
		return err
	})
	if err != nil {
		log.G(ctx).WithError(err).WithField("container", c.ID()).Warn(unreachable)
	}
	if ended {
		r.Containers.RecordExit(c, exit)
		go r.Containers.EraseExited(c)
		return
	}
	bounded, cancel := context.WithTimeout(ctx, task.RecoveryAnswer)
	defer cancel()
	r.keepAgain(bounded, c.Sandbox, task.KeptOf(r.Pods.Layout, c, c.Status().PID))
	go r.Containers.Watch(c)
	r.Sessions.KillAbandoned(c)
}

// created recovers a container that is recorded as created. Its process runs if the daemon was
// killed between the start and its record.
func (r *recovery) created(ctx context.Context, c *pod.Container) {
	var state task.State
	var pid int
	err := r.ask(ctx, c.Sandbox, func(ctx context.Context) (err error) {
		state, pid, err = r.Tasks.State(ctx, c.Sandbox, c.ID())
		return err
	})
	if err != nil {
		// It stays created: a later start asks the same process.
		log.G(ctx).WithError(err).WithField("container", c.ID()).Warn(unreachable)
		state = r.Tasks.JournaledStart(c)
	}
	switch state {
	case task.Unstarted:
		if !c.Sandbox.JournalsStarts() {
			go r.Containers.NoticeStart(c)
		}
	case task.Starting:
		c.Op <- struct{}{}
		go r.Containers.FinishStart(c)
	case task.Failed:
		c.Op <- struct{}{}
		defer c.Op.Unlock()
		r.Containers.FailedBefore(ctx, c)
	case task.Gone:
		c.Op <- struct{}{}
		defer c.Op.Unlock()
		r.Containers.Gone(ctx, c)
	case task.Started:
		c.Record(ctx, func(st *pod.ContainerStatus) {
			st.Phase, st.PID, st.StartedAt = pod.PhaseRunning, pid, r.Pods.Clock.Now()
		})
		r.container(ctx, c)
	}
}

// Run recovers all objects on record. No calls may be served before it has returned. It assumes:
//
//   - An object without a phase on record was never visible. It is rolled back.
//   - A ready sandbox can have lost a namespace by a reboot or by another program's unmount. Then
//     it is NOTREADY until the kubelet removes it.
//   - A supervisor has the state of its containers: it outlives the daemon, or its successor reads
//     its journal. Objects of an unresponsive supervisor keep their recorded state.
//   - A start continues without the daemon that requested it. Until it has ended, its container
//     stays recorded as created, and calls that change the container wait.
//   - A sandbox with an unreadable record is listed as NOTREADY, so that the kubelet removes it.
//   - A directory, mount, or supervisor without a record has no owner.
func Run(ctx context.Context, d Deps) error {
	r := &recovery{Deps: d, log: log.G(d.Pods.Background)}
	sandbox.ShareNetns(ctx)
	r.findUnresponsive(ctx)
	r.showBroken()
	r.takeSandboxes(ctx)
	r.takeContainers(ctx)
	r.dropUnfinished(ctx)
	d.PodCheckpoints.Recover(ctx)
	r.thaw(ctx)
	if err := d.Shims.ServeEvents(d.Pods.Background, d.Pods.Index.RecordOOM); err != nil {
		return err
	}
	r.sweep(ctx)
	if err := d.Plugins.Start(); err != nil {
		return err
	}
	go d.Binaries.Inspect()
	return nil
}
