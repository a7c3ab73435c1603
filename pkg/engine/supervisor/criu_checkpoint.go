package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	runcapi "github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/berth-cri/berth/pkg/engine/supervisor/criufiles"
	"github.com/berth-cri/berth/pkg/engine/supervisor/processes"
	"github.com/berth-cri/berth/pkg/engine/supervisor/runtimecall"
)

// checkpoint has CRIU write the state of the container's processes, which run on the node's
// kernel, into a directory. It takes as long as ctx allows.
func (k *hostKernel) checkpoint(ctx context.Context, images string, options *anypb.Any) error {
	o := &runcapi.CheckpointOptions{}
	if err := checkpointOptions(options, o); err != nil {
		return err
	}
	if o.GetExit() {
		return fmt.Errorf("a checkpoint that stops the container is not supported: %w", errdefs.ErrNotImplemented)
	}
	if !filepath.IsAbs(images) {
		return fmt.Errorf("the checkpoint directory must be an absolute path, not %q: %w", images, errdefs.ErrInvalidArgument)
	}
	// A runtime that is killed while CRIU is inside of the processes may damage
	// them: only the deadline ends it, not a caller that leaves.
	deadline, bounded := ctx.Deadline()
	t := k.task
	return t.whenRunning(ctx, func(ctx context.Context) error {
		if bounded {
			var cancel context.CancelFunc
			ctx, cancel = context.WithDeadline(ctx, deadline)
			defer cancel()
		}
		ctx, giveUp := context.WithCancel(ctx)
		defer giveUp()
		k.giveUpCRIU.Store(&giveUp)
		defer k.giveUpCRIU.Store(nil)
		config, pipes, err := criufiles.WriteDumpConfig(&t.journal, o.GetOpenTcp())
		if err != nil {
			return err
		}
		err = criuWrite{t}.run(ctx, criufiles.CheckpointArgs(t.id, images, o), criufiles.ConfigEnv+"="+config)
		if err == nil {
			err = criufiles.WritePipes(images, pipes)
		}
		return errors.Join(criufiles.ExplainCheckpoint(err, o.GetWorkPath()), os.Remove(config))
	})
}

const (
	// criuSettles is how long a CRIU that no call waits for may stay inside of the container:
	// killed before that, it damages the processes that it is inside of.
	criuSettles = 10 * time.Second
	// criuSettlePoll is how often it is looked for meanwhile.
	criuSettlePoll = 20 * time.Millisecond
)

// criuWrite writes a container that goes on afterwards.
type criuWrite struct{ task *task }

// run calls the runtime. Whatever the result, no CRIU is at work on the container when it
// returns: one that is left freezes the container again when it ends, because it was frozen
// when it began.
func (w criuWrite) run(ctx context.Context, args []string, environment ...string) error {
	_, err := (&runtimecall.Call{
		Options:     &w.task.journal.Options,
		Args:        args,
		Environment: environment,
		ByCRIU:      true,
		Begun:       w.record,
	}).InvokeForever(ctx, w.task.processes)
	if err != nil {
		w.settle()
	}
	return errors.Join(err, w.record(processes.Process{}))
}

// record notes for a successor which runtime writes the container.
func (w criuWrite) record(runtime processes.Process) error {
	t := w.task
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.journal.Writer
	t.journal.Writer = runtime
	if err := t.save(); err != nil {
		t.journal.Writer = before
		return err
	}
	return nil
}

// settle waits until nothing is left of a call, and ends what stays.
func (w criuWrite) settle() {
	w.task.mu.Lock()
	runtime := w.task.journal.Writer
	w.task.mu.Unlock()
	if runtime.PID == 0 {
		return
	}
	for end := time.Now().Add(criuSettles); len(runtimecall.CRIUGroup(runtime)) > 0; time.Sleep(criuSettlePoll) {
		if time.Now().After(end) {
			log.G(w.task.context()).Warn("Killing CRIU, whose runtime or supervisor was killed, in the middle of its work on a container")
			_ = unix.Kill(-runtime.PID, unix.SIGKILL)
			return
		}
	}
}

// inherited does so for what a predecessor began.
func (w criuWrite) inherited() {
	w.settle()
	if err := w.record(processes.Process{}); err != nil {
		log.G(w.task.context()).WithError(err).Warn("Failed to remove a checkpoint that was cut off from the journal")
	}
}
