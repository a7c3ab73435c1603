package engine

import (
	"context"
	"errors"
	"time"

	"github.com/containerd/log"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/supervisor"
	"github.com/berth-cri/berth/pkg/handler"
)

// errUnheard is the cause of a failed start whose answer nobody heard.
var errUnheard = errors.New("the container's start failed after the daemon that asked for it had ended; the log of its supervisor may say why")

// journaledStart is how far the start of a container came whose supervisor does
// not answer.
func (e *exits) journaledStart(c *container) taskState {
	j, err := supervisor.ReadTask(e.journals.SupervisorDir(c.sandbox.Spec().Supervisor), c.ID())
	if err == nil && j.State != supervisor.TaskCreated && j.State != supervisor.TaskStdio {
		return taskStarting
	}
	return taskUnstarted
}

// awaitStart returns what came of a start under way. It gives up when nobody has
// answered for so long as patience; 0 is for ever.
func (e *exits) awaitStart(ctx context.Context, c *container, patience time.Duration) (taskState, int, error) {
	for answered := time.Now(); ; {
		bounded, cancel := context.WithTimeout(ctx, recoveryAnswer)
		state, pid, err := e.state(bounded, c.sandbox, c.ID())
		cancel()
		if err == nil {
			if state != taskStarting {
				return state, pid, nil
			}
			answered = time.Now()
		} else if patience > 0 && time.Since(answered) > patience {
			return state, 0, err
		}
		select {
		case <-time.After(reconnectDelay):
		case <-e.background.Done():
			return state, 0, errGone
		case <-ctx.Done():
			return state, 0, ctx.Err()
		}
	}
}

// finishStart does what is left of a start that an earlier daemon began. It holds
// c.op, which it is given, until that has ended, as the call itself would have.
func (b *starts) finishStart(c *container) {
	log.G(b.background).WithField("container", c.ID()).Info("wait for the end of a start that an earlier daemon began")
	state, pid, err := b.exits.awaitStart(b.background, c, 0)
	if err == nil {
		b.settle(c, state, pid)
	}
	c.op.unlock()
	b.tellPlugins(c)
}

// noticeStart finds out whether a start of a foreign shim was under way: that does
// not say so, and is asked again for as long as a start may take.
func (b *starts) noticeStart(c *container) {
	ctx, cancel := context.WithTimeout(b.background, callTimeout(c.sandbox.Spec().Definition))
	defer cancel()
	for c.Status().Phase == phaseCreated {
		select {
		case <-time.After(noticeInterval):
		case <-ctx.Done():
			return
		}
		bounded, cancel := context.WithTimeout(ctx, recoveryAnswer)
		state, pid, err := b.exits.state(bounded, c.sandbox, c.ID())
		cancel()
		if err != nil || state == taskUnstarted {
			continue
		}
		// Who starts it now does the rest.
		if c.op.lock(ctx) != nil {
			return
		}
		mine := c.Status().Phase == phaseCreated
		if mine {
			b.settle(c, state, pid)
		}
		c.op.unlock()
		if mine {
			b.tellPlugins(c)
		}
		return
	}
}

// noticeInterval is the pause between two questions of noticeStart.
const noticeInterval = time.Second

// settle records what came of a start that nobody else waits for. It needs c.op.
func (b *starts) settle(c *container, state taskState, pid int) {
	switch state {
	case taskFailed:
		ctx, cancel := context.WithTimeout(b.background, undoTimeout)
		defer cancel()
		_ = b.startFailed(ctx, c, errUnheard) // it returns the cause
	case taskGone:
		b.ends.recordEnd(c, taskExit{At: time.Now(), Unknown: true})
		go b.ends.eraseEnded(c)
	case taskStarted:
		c.force(b.background, func(st *containerStatus) {
			st.Phase, st.PID, st.StartedAt = phaseRunning, pid, b.clock.now()
		})
		b.keepStarted(c, pid)
		b.events.announce(c.ID(), c.sandbox, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
		go b.ends.watch(c)
	}
}

// keepStarted is keepTask for one that was not started here.
func (b *starts) keepStarted(c *container, pid int) {
	if c.sandbox.Spec().Definition.Type != handler.OCI {
		return
	}
	ctx, cancel := context.WithTimeout(b.background, recoveryAnswer)
	defer cancel()
	client, err := b.tasks.client(ctx, c.sandbox)
	if err != nil {
		log.G(ctx).WithError(err).WithField("container", c.ID()).Warn("keep a task's files")
		return
	}
	b.tasks.keep(ctx, c.sandbox, client, b.keptOf(c, pid))
}

// tellPlugins says what StartContainer would have said.
func (b *starts) tellPlugins(c *container) {
	switch c.Status().Phase {
	case phaseRunning:
		b.plugins.PostStartContainer(b.background, b.hooks.container(c))
	case phaseExited:
		b.plugins.StopContainer(b.background, b.hooks.container(c))
	}
}
