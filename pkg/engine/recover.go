package engine

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"golang.org/x/sync/errgroup"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/pin"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/engine/store"
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
//   - A sandbox that is ready and whose network namespace is gone went with a
//     reboot; it is NOTREADY until the kubelet removes it.
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
	r := recovery{
		core: e.core, processes: e.processes, pods: e.sandboxStops, creation: e.creation, starts: e.starts, ends: e.ends, abandoned: e.execs,
		silent: &silence{who: map[string]bool{}},
	}
	r.listen(ctx)
	r.showBroken()
	r.closePodDirs()
	if err := r.sandboxes(ctx); err != nil {
		return err
	}
	if err := r.containers(ctx); err != nil {
		return err
	}
	r.dropHalfMade(ctx)
	r.thaw(ctx)
	if err := e.core.shims.ServeEvents(e.core.background, e.core.objects.noteOOM); err != nil {
		return err
	}
	r.sweep(ctx)
	if err := e.core.plugins.Start(); err != nil {
		return err
	}
	go e.core.inspection.run()
	return nil
}

func (o *objects) noteOOM(task string) {
	if c, err := o.container(task); err == nil {
		c.oom.Store(true)
	}
}

type recovery struct {
	core      *core
	processes *sandboxProcesses
	pods      *sandboxStops
	creation  *creation
	starts    *starts
	ends      *ends
	abandoned execs
	silent    *silence
}

// showBroken lists sandboxes whose records cannot be read under a name of their
// own. Their definition is lost, so removal is all that can be done for them.
func (r recovery) showBroken() {
	k := r.core
	g := errgroup.Group{}
	g.SetLimit(recoveryParallel)
	for _, b := range slices.Concat(k.broken.sandboxes, k.broken.containers) {
		if b.StatusOnly {
			k.log.WithError(b.Err).WithField("id", b.ID).Error("a status cannot be read; the object is taken back as if it had never been whole")
			continue
		}
		g.Go(func() error { r.endOrphan(b.ID); return nil })
	}
	_ = g.Wait()
	for _, b := range k.broken.sandboxes {
		if b.StatusOnly {
			continue
		}
		k.log.WithError(b.Err).WithField("sandbox", b.ID).Error("a sandbox's record cannot be read; it is listed as not ready")
		spec := sandboxSpec{Definition: &handler.Definition{Name: "unknown", Type: handler.OCI}, CreatedAt: k.clock.now(), Supervisor: "unknown"}
		spec.Config.msg = &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: "unreadable", Namespace: "unknown", Uid: b.ID}}
		r.replaceBroken(b, spec)
	}
	for _, b := range k.broken.containers {
		if b.StatusOnly {
			continue
		}
		k.log.WithError(b.Err).WithField("container", b.ID).Error("a container's record cannot be read; it is removed")
		if err := k.ctrs.Discard(b.ID); err != nil {
			k.log.WithError(err).WithField("container", b.ID).Error("remove an unreadable record")
		}
	}
}

// endOrphan ends a task of which nobody knows any more whose it was: what runs
// and is in no list would run for ever. A silent supervisor is not waited for.
func (r recovery) endOrphan(id string) {
	k := r.core
	keys, err := k.shims.Keys()
	if err != nil {
		k.log.WithError(err).WithField("id", id).Error("end a task whose record cannot be read")
	}
	for _, key := range keys {
		if _, err := os.Stat(filepath.Join(k.shims.SupervisorDir(key), "tasks", id)); err != nil {
			continue
		}
		if r.silent.has(key) {
			go r.endOrphanOf(key, id, undoTimeout)
			continue
		}
		r.endOrphanOf(key, id, recoveryAnswer)
	}
}

func (r recovery) endOrphanOf(key, id string, patience time.Duration) {
	k := r.core
	ctx, cancel := context.WithTimeout(k.background, patience)
	defer cancel()
	client, err := k.shims.Supervisor(ctx, key)
	if err == nil {
		err = endTask(ctx, client, id)
	}
	if err != nil {
		k.log.WithError(err).WithField("id", id).WithField("supervisor", key).Error("end a task whose record cannot be read")
	}
}

func (r recovery) replaceBroken(b store.Broken, spec sandboxSpec) {
	k := r.core
	err := k.pods.Discard(b.ID)
	if err == nil {
		_, err = k.pods.Create(b.ID, spec, sandboxStatus{Phase: phaseStopped}, store.Durable)
	}
	if err != nil {
		k.log.WithError(err).WithField("sandbox", b.ID).Error("replace an unreadable record")
	}
}

// sandboxes brings the sandboxes that were shown before back into the index.
func (r recovery) sandboxes(ctx context.Context) error {
	k := r.core
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(recoveryParallel)
	for _, o := range k.pods.List() {
		k.clock.seen(o.Spec().CreatedAt)
		k.shims.Hold(o.Spec().Supervisor)
		k.labels.hold(o.Spec().ProcessLabel)
		if o.Status().Phase == phasePlanned {
			continue
		}
		s := newSandbox(o)
		if err := k.names.reserve(sandboxName(s.config().GetMetadata()), s.ID()); err != nil {
			k.log.WithError(err).WithField("sandbox", s.ID()).Error("two sandboxes have one name")
		}
		k.objects.addSandbox(s)
		g.Go(func() error { return r.sandbox(ctx, s) })
	}
	return g.Wait()
}

func (r recovery) sandbox(ctx context.Context, s *sandbox) error {
	st := s.Status()
	if st.Phase != phaseReady {
		return nil
	}
	lost := s.Spec().Boot != r.core.boot || (s.Spec().Plan.Net && !pin.Exists(st.Namespaces.Net)) ||
		(s.Spec().Plan.User != nil && !pin.Exists(st.Namespaces.User))
	if !lost && s.Spec().Plan.Process {
		err := r.ask(ctx, s, func(ctx context.Context) (err error) {
			_, lost, err = r.core.exits.endedMeanwhile(ctx, s, s.ID())
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
		go r.processes.watch(s)
	}
	return nil
}

// keepAgain holds what the task would lose with its supervisor, as before.
func (r recovery) keepAgain(ctx context.Context, s *sandbox, t shim.Kept) {
	if s.Spec().Definition.Type != handler.OCI {
		return
	}
	c, err := r.core.tasks.client(ctx, s)
	if err != nil {
		log.G(ctx).WithError(err).WithField("container", t.ID).Warn("keep a task's files")
		return
	}
	if r.silent.has(runner(s)) {
		t.Terminal = false // all else is had without an answer
	}
	r.core.tasks.keep(ctx, s, c, t)
}

// containers does the same for containers.
func (r recovery) containers(ctx context.Context) error {
	k := r.core
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(recoveryParallel)
	for _, o := range k.ctrs.List() {
		k.clock.seen(o.Spec().CreatedAt)
		k.clock.seen(o.Status().StartedAt)
		k.clock.seen(o.Status().FinishedAt)
		k.labels.hold(o.Spec().ProcessLabel)
		s, err := k.objects.sandbox(o.Spec().Sandbox)
		if err != nil || o.Status().Phase == phasePlanned {
			continue
		}
		c := newContainer(o, s)
		if err := k.names.reserve(containerName(s.ID(), c.config().GetMetadata()), c.ID()); err != nil {
			k.log.WithError(err).WithField("container", c.ID()).Error("two containers have one name")
		}
		k.objects.addContainer(c)
		g.Go(func() error { return r.container(ctx, c) })
	}
	return g.Wait()
}

func (r recovery) container(ctx context.Context, c *container) error {
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
		exit, ended, err = r.core.exits.endedMeanwhile(ctx, c.sandbox, c.ID())
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
	r.keepAgain(bounded, c.sandbox, r.core.keptOf(c, c.Status().PID))
	go r.ends.watch(c)
	r.abandoned.endAbandoned(c)
	return nil
}

// created looks after a container that was not started by its record. A daemon
// that was killed between the start and its record has a running one here.
func (r recovery) created(ctx context.Context, c *container) error {
	var state taskState
	var pid int
	err := r.ask(ctx, c.sandbox, func(ctx context.Context) (err error) {
		state, pid, err = r.core.exits.state(ctx, c.sandbox, c.ID())
		return err
	})
	if err != nil {
		// It stays created: a start then asks the same process.
		log.G(ctx).WithError(err).WithField("container", c.ID()).Warn(unreachable)
		state = r.core.exits.journaledStart(c)
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
		c.force(ctx, func(st *containerStatus) { st.failedStart(errUnheard, r.core.clock.now()) })
		close(c.exited)
		go r.ends.eraseEnded(c)
		return nil
	case taskGone:
		c.op <- struct{}{}
		defer c.op.unlock()
		c.gone(ctx, r.ends)
		return nil
	}
	c.force(ctx, func(st *containerStatus) { st.Phase, st.PID, st.StartedAt = phaseRunning, pid, r.core.clock.now() })
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
