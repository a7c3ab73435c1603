package engine

import (
	"context"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"golang.org/x/sync/errgroup"

	"github.com/berth-cri/berth/pkg/engine/reserve"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/handler"
)

// recoveryAnswer is how long recovery waits for what runs an object. One that
// does not answer costs its own objects only: they keep the state of their
// records, and are asked again by who watches them.
const recoveryAnswer = 10 * time.Second

const unreachable = "what runs it does not answer, its recorded state is kept"

// recoveryParallel is how many objects are looked at at a time.
const recoveryParallel = 16

// Recover takes up what earlier runs of the daemon left. It assumes:
//
//   - A record without a phase was never shown to anybody. What there may be of
//     such an object is taken back and the record removed.
//   - A sandbox that is ready and one of whose namespaces is gone went with a
//     reboot, or lost it to who unmounts what is not theirs; it is NOTREADY until
//     the kubelet removes it.
//   - A container that runs by its record is asked for at its supervisor, which
//     outlives the daemon, or is started again and then reads its journal. One
//     that does not answer is not waited for: its objects keep their state.
//   - A start goes on without the daemon that asked for it. Its container is
//     created until it has ended, and calls that change it wait so long.
//   - A record that cannot be read is shown as NOTREADY or UNKNOWN, so that the
//     kubelet removes it.
//   - A pod's directory may be open to all users, as earlier versions made it.
//   - A directory, mount, or supervisor without a record belongs to nobody.
//
// No call may be answered before it has returned.
func (e *Engine) Recover(ctx context.Context) error {
	k, silent := e.core, newSilence()
	broken := &unreadable{
		background: k.background, log: k.log, clock: k.clock, broken: k.broken, pods: k.pods, ctrs: k.ctrs, shims: k.shims, silent: silent,
	}
	sweeper := &sweeper{
		layout: k.layout, background: k.background, log: k.log, objects: k.objects, pods: k.pods, ctrs: k.ctrs, collector: k.collector,
		mounts: k.mounts, residue: k.residue, images: k.images, cni: k.cni, shims: k.shims, silent: silent,
	}
	halfMade := &halfMades{
		background: k.background, objects: k.objects, names: k.names, labels: k.labels, pods: k.pods, ctrs: k.ctrs,
		stops: e.sandboxStops, canaries: e.canaries, creation: e.creation, ends: e.ends, silent: silent,
	}
	r := &recovery{
		layout: k.layout, background: k.background, boot: k.boot, log: k.log, objects: k.objects, names: k.names, labels: k.labels,
		clock: k.clock, pods: k.pods, ctrs: k.ctrs, tasks: k.tasks, exits: k.exits, shims: k.shims, processes: e.processes,
		starts: e.starts, ends: e.ends, abandoned: e.execs, silent: silent,
	}
	if err := complete(broken, sweeper, halfMade, r); err != nil {
		return err
	}
	shareNetns(ctx)
	r.listen(ctx)
	broken.showBroken()
	sweeper.closePodDirs()
	if err := r.sandboxes(ctx); err != nil {
		return err
	}
	if err := r.containers(ctx); err != nil {
		return err
	}
	halfMade.dropHalfMade(ctx)
	r.thaw(ctx)
	if err := k.shims.ServeEvents(k.background, k.objects.noteOOM); err != nil {
		return err
	}
	sweeper.sweep(ctx)
	if err := k.plugins.Start(); err != nil {
		return err
	}
	go k.inspection.run()
	return nil
}

func (o *objects) noteOOM(task string) {
	c, err := o.container(task)
	if err != nil {
		return
	}
	if c.oom.Swap(true) {
		return
	}
	// The news may come after the exit: events have a way of their own. Whether it did is
	// looked at where recordEnd looks at oom, or each could take itself for the first.
	c.force(context.Background(), func(st *containerStatus) {
		if st.Phase == phaseExited && st.ExitCode != 0 && st.Reason == exitReason(st.ExitCode, false, false) {
			st.Reason = exitReason(st.ExitCode, true, false)
		}
	})
}

// recovery finds out what became of what earlier daemons ran.
type recovery struct {
	layout
	background context.Context // ends with the engine
	boot       string          // this boot of the node, by the kernel's random id
	log        *log.Entry
	objects    *objects
	names      *reserve.Names
	labels     *reserve.Labels
	clock      *clock
	pods       *sandboxRecords
	ctrs       *containerRecords
	tasks      *tasks
	exits      *exits
	shims      survivors
	processes  *sandboxProcesses
	starts     *starts
	ends       *ends
	abandoned  execs
	silent     *silence
}

// survivors are what runs tasks and may have outlived the daemon.
type survivors interface {
	Keys() ([]string, error)
	Hold(key string)
	Live(ctx context.Context, key string) (*shim.Client, error)
	Foreign(ctx context.Context, ep shim.Endpoint) (*shim.Client, error)
	ReadLog(s shim.Start, ep shim.Endpoint) error
}

// sandboxes brings the sandboxes that were shown before back into the index.
func (r *recovery) sandboxes(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(recoveryParallel)
	for _, o := range r.pods.List() {
		r.clock.seen(o.Spec().CreatedAt)
		r.shims.Hold(o.Spec().Supervisor)
		r.labels.Hold(o.Spec().ProcessLabel)
		if o.Status().Phase == phasePlanned {
			continue
		}
		s := newSandbox(o)
		if err := r.names.Reserve(reserve.SandboxName(s.config().GetMetadata()), s.ID()); err != nil {
			r.log.WithError(err).WithField("sandbox", s.ID()).Error("two sandboxes have one name")
		}
		r.objects.addSandbox(s)
		g.Go(func() error { return r.sandbox(ctx, s) })
	}
	return g.Wait()
}

func (r *recovery) sandbox(ctx context.Context, s *sandbox) error {
	st := s.Status()
	if st.Phase != phaseReady {
		return nil
	}
	lost := s.Spec().Boot != r.boot || st.Namespaces.Lost() != ""
	if !lost && s.Spec().Plan.Process {
		err := r.ask(ctx, s, func(ctx context.Context) (err error) {
			_, lost, err = r.exits.endedMeanwhile(ctx, s, s.ID())
			return err
		})
		if err != nil {
			log.G(ctx).WithError(err).WithField("sandbox", s.ID()).Warn(unreachable)
		}
	}
	if lost {
		s.force(ctx, func(st *sandboxStatus) { st.Phase, st.PID = phaseStopped, 0 })
		return nil
	}
	if s.Spec().Plan.Process {
		r.keepAgain(ctx, s, shim.Kept{ID: s.ID(), PID: st.PID})
		r.readLog(ctx, s)
		go r.processes.watch(s)
	}
	return nil
}

// readLog goes on reading the log of a foreign shim.
func (r *recovery) readLog(ctx context.Context, s *sandbox) {
	if s.Spec().Definition.Type != handler.Shim {
		return
	}
	// Without a connection: a shim that does not take one now may go on all the same.
	ep, err := r.tasks.endpoint(ctx, s)
	if err == nil {
		err = r.shims.ReadLog(shim.Start{Binary: s.Spec().Definition.Path, ID: s.ID(), Bundle: r.processBundle(s.ID())}, ep)
	}
	if err != nil {
		log.G(ctx).WithError(err).WithField("sandbox", s.ID()).Warn("Failed to read the log of a shim")
	}
}

// keepAgain holds what the task would lose with its supervisor, as before.
func (r *recovery) keepAgain(ctx context.Context, s *sandbox, t shim.Kept) {
	if s.Spec().Definition.Type != handler.OCI {
		return
	}
	c, err := r.tasks.client(ctx, s)
	if err != nil {
		log.G(ctx).WithError(err).WithField("container", t.ID).Warn("keep a task's files")
		return
	}
	if r.silent.has(runner(s)) {
		t.Terminal = false // all else is had without an answer
	}
	r.tasks.keep(ctx, s, c, t)
}

// containers does the same for containers.
func (r *recovery) containers(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(recoveryParallel)
	for _, o := range r.ctrs.List() {
		r.clock.seen(o.Spec().CreatedAt)
		r.clock.seen(o.Status().StartedAt)
		r.clock.seen(o.Status().FinishedAt)
		r.labels.Hold(o.Spec().ProcessLabel)
		s, err := r.objects.sandbox(o.Spec().Sandbox)
		if err != nil || o.Status().Phase == phasePlanned {
			continue
		}
		c := newContainer(o, s)
		if err := r.names.Reserve(reserve.ContainerName(s.ID(), c.config().GetMetadata()), c.ID()); err != nil {
			r.log.WithError(err).WithField("container", c.ID()).Error("two containers have one name")
		}
		r.objects.addContainer(c)
		g.Go(func() error { return r.container(ctx, c) })
	}
	return g.Wait()
}

func (r *recovery) container(ctx context.Context, c *container) error {
	switch c.Status().Phase {
	case phaseExited:
		close(c.exited)
		if c.Status().Erased {
			close(c.erased)
			return nil
		}
		// It may run: a start that was given up can have come about.
		go r.ends.eraseEnded(c)
		return nil
	case phaseCreated:
		return r.created(ctx, c)
	}
	var exit taskExit
	var ended bool
	err := r.ask(ctx, c.sandbox, func(ctx context.Context) (err error) {
		exit, ended, err = r.exits.endedMeanwhile(ctx, c.sandbox, c.ID())
		return err
	})
	if err != nil {
		log.G(ctx).WithError(err).WithField("container", c.ID()).Warn(unreachable)
	}
	if ended {
		r.ends.recordEnd(c, exit)
		go r.ends.eraseEnded(c)
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, recoveryAnswer)
	defer cancel()
	r.keepAgain(bounded, c.sandbox, r.keptOf(c, c.Status().PID))
	go r.ends.watch(c)
	r.abandoned.endAbandoned(c)
	return nil
}

// created looks after a container that was not started by its record. A daemon
// that was killed between the start and its record has a running one here.
func (r *recovery) created(ctx context.Context, c *container) error {
	var state taskState
	var pid int
	err := r.ask(ctx, c.sandbox, func(ctx context.Context) (err error) {
		state, pid, err = r.exits.state(ctx, c.sandbox, c.ID())
		return err
	})
	if err != nil {
		// It stays created: a start then asks the same process.
		log.G(ctx).WithError(err).WithField("container", c.ID()).Warn(unreachable)
		state = r.exits.journaledStart(c)
	}
	switch state {
	case taskUnstarted:
		if c.sandbox.Spec().Definition.Type == handler.Shim {
			go r.starts.noticeStart(c)
		}
		return nil
	case taskStarting:
		c.op <- struct{}{}
		go r.starts.finishStart(c)
		return nil
	case taskFailed:
		c.op <- struct{}{}
		defer c.op.unlock()
		c.force(ctx, func(st *containerStatus) { st.failedStart(errUnheard, r.clock.now()) })
		close(c.exited)
		go r.ends.eraseEnded(c)
		return nil
	case taskGone:
		c.op <- struct{}{}
		defer c.op.unlock()
		c.gone(ctx, r.ends)
		return nil
	}
	c.force(ctx, func(st *containerStatus) { st.Phase, st.PID, st.StartedAt = phaseRunning, pid, r.clock.now() })
	return r.container(ctx, c)
}

// gone records that a created container cannot be started any more.
func (c *container) gone(ctx context.Context, e *ends) {
	c.force(ctx, func(st *containerStatus) { st.lostExit(time.Now()) })
	close(c.exited)
	go e.eraseEnded(c)
}

// force records what was found, also on a full disk: a daemon that does not start
// there could not make room.
func (c *container) force(ctx context.Context, change func(*containerStatus)) {
	if err := c.Force(change); err != nil && !errdefs.IsNotFound(err) {
		log.G(ctx).WithError(err).WithField("container", c.ID()).Error("record the state of a container")
	}
}
