package container

import (
	"context"
	"errors"
	"time"

	"github.com/containerd/log"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/task"
)

// ErrUnheard is the cause of a failed start whose answer nobody heard.
var ErrUnheard = errors.New("the container failed to start after the daemon had exited; see the log of its supervisor")

// FinishStart does what is left of a start that an earlier daemon began. It holds
// c.op, which it is given, until that has ended, as the call itself would have.
func (b *starts) FinishStart(c *pod.Container) {
	log.G(b.pods.Background).WithField("container", c.ID()).Info("Waiting for a container start that an earlier daemon began")
	state, pid, err := b.tasks.AwaitStart(b.pods.Background, c, 0)
	if err == nil {
		b.settle(c, state, pid)
	}
	c.Op.Unlock()
	b.tellPlugins(c)
}

// NoticeStart finds out whether a start of a foreign shim was under way: that does
// not say so, and is asked again for as long as a start may take.
func (b *starts) NoticeStart(c *pod.Container) {
	ctx, cancel := context.WithTimeout(b.pods.Background, task.CallTimeout(c.Sandbox.Spec().Definition))
	defer cancel()
	for c.Status().Phase == pod.PhaseCreated {
		select {
		case <-time.After(noticeInterval):
		case <-ctx.Done():
			return
		}
		bounded, cancel := context.WithTimeout(ctx, task.RecoveryAnswer)
		state, pid, err := b.tasks.State(bounded, c.Sandbox, c.ID())
		cancel()
		if err != nil || state == task.Unstarted {
			continue
		}
		// Who starts it now does the rest.
		if c.Op.Lock(ctx) != nil {
			return
		}
		mine := c.Status().Phase == pod.PhaseCreated
		if mine {
			b.settle(c, state, pid)
		}
		c.Op.Unlock()
		if mine {
			b.tellPlugins(c)
		}
		return
	}
}

// noticeInterval is the pause between two questions of noticeStart.
const noticeInterval = time.Second

// settle records what came of a start that nobody else waits for. It needs c.op.
func (b *starts) settle(c *pod.Container, state task.State, pid int) {
	switch state {
	case task.Failed:
		ctx, cancel := context.WithTimeout(b.pods.Background, pod.UndoTimeout)
		defer cancel()
		_ = b.startFailed(ctx, c, ErrUnheard) // it returns the cause
	case task.Gone:
		b.ends.RecordEnd(c, pod.Exit{At: time.Now(), Unknown: true})
		go b.ends.EraseEnded(c)
	case task.Started:
		b.ends.restored(b.pods.Background, c)
		c.Record(b.pods.Background, func(st *pod.ContainerStatus) {
			st.Phase, st.PID, st.StartedAt = pod.PhaseRunning, pid, b.pods.Clock.Now()
		})
		b.keepStarted(c, pid)
		b.events.Announce(c.ID(), c.Sandbox, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
		go b.ends.Watch(c)
	}
}

func (b *starts) keepStarted(c *pod.Container, pid int) {
	ctx, cancel := context.WithTimeout(b.pods.Background, task.RecoveryAnswer)
	defer cancel()
	c.Sandbox.Runner.Keep(ctx, task.KeptOf(b.pods.Layout, c, pid))
}

// tellPlugins says what StartContainer would have said.
func (b *starts) tellPlugins(c *pod.Container) {
	switch c.Status().Phase {
	case pod.PhaseRunning:
		b.hooks.Plugins.PostStartContainer(b.pods.Background, b.hooks.Container(c))
	case pod.PhaseExited:
		b.hooks.Plugins.StopContainer(b.pods.Background, b.hooks.Container(c))
	}
}
