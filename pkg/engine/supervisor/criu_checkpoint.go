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

// checkpoint makes CRIU write the state of the container's processes into a directory.
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
	// Killing the runtime while CRIU works in the processes may damage them: the deadline of ctx
	// ends the call, but its cancellation does not.
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
	// criuSettles is how long CRIU and the runtime may continue after a failed call or the death of
	// the supervisor: killing CRIU may damage the processes.
	criuSettles = 10 * time.Second
	// criuSettlePoll is the interval of checks whether CRIU has ended.
	criuSettlePoll = 20 * time.Millisecond
)

// criuWrite checkpoints a container that keeps running afterwards.
type criuWrite struct{ task *task }

// run calls the runtime and returns only after CRIU has ended or was killed: a CRIU that began on a
// frozen container freezes that container again when it ends.
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

// record journals the runtime that writes the checkpoint, for a successor.
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

// settle waits until the processes of the call have ended, and kills them after criuSettles.
func (w criuWrite) settle() {
	w.task.mu.Lock()
	runtime := w.task.journal.Writer
	w.task.mu.Unlock()
	if runtime.PID == 0 {
		return
	}
	for end := time.Now().Add(criuSettles); len(runtimecall.CRIUGroup(runtime)) > 0; time.Sleep(criuSettlePoll) {
		if time.Now().After(end) {
			log.G(w.task.context()).Warn("Killing CRIU during its work on a container, because its runtime or supervisor was killed")
			_ = unix.Kill(-runtime.PID, unix.SIGKILL)
			return
		}
	}
}

// inherited calls settle for a checkpoint that a predecessor began, and removes its record.
func (w criuWrite) inherited() {
	w.settle()
	if err := w.record(processes.Process{}); err != nil {
		log.G(w.task.context()).WithError(err).Warn("Failed to remove interrupted checkpoint from the journal")
	}
}
