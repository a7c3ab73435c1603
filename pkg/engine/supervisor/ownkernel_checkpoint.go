package supervisor

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/anypb"

	supervisorv1 "github.com/berth-cri/berth/proto/berth/supervisor/v1"
)

// checkpoint writes the whole sandbox, with all containers in it, into a directory, and
// lets it go on. All of them stand still meanwhile. It ends when they go on, whatever the
// deadline says: nobody can call the sandbox off.
func (k *ownKernel) checkpoint(ctx context.Context, images string, options *anypb.Any) error {
	o, err := sandboxCheckpointOptions(options)
	if err != nil {
		return err
	}
	if !filepath.IsAbs(images) {
		return fmt.Errorf("the checkpoint directory must be an absolute path, not %q: %w", images, errdefs.ErrInvalidArgument)
	}
	if k.task.isMember() {
		return fmt.Errorf("container %q cannot be checkpointed alone, because it runs on one kernel with the others of its pod; checkpoint the pod: %w", k.task.id, errdefs.ErrNotImplemented)
	}
	return k.task.whenRunning(ctx, func(ctx context.Context) error {
		locks := k.task.locks()
		defer locks.sweepEnded()
		k.task.writing.Store(true)
		defer k.task.writing.Store(false)
		_, err := k.task.processes.invokeForever(ctx, &call{
			options: &k.task.journal.Options,
			args:    []string{"checkpoint", "--leave-running", "--compression", o.GetCompression(), "--image-path", images, k.task.id},
			// Nobody would know of it any more. The sandbox goes on all the same.
			deathSignal: unix.SIGKILL,
		})
		return err
	})
}

// sandboxCheckpointOptions has the default for what is empty: memory without compression is
// loaded while the pod already runs.
func sandboxCheckpointOptions(a *anypb.Any) (*supervisorv1.SandboxCheckpointOptions, error) {
	o := &supervisorv1.SandboxCheckpointOptions{}
	if err := checkpointOptions(a, o); err != nil {
		return nil, err
	}
	if o.GetCompression() == "" {
		o.Compression = "none"
	}
	return o, nil
}

// isMember says whether the task runs in the sandbox of another one.
func (t *task) isMember() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.journal.Member
}

// waits tells by the error of a signal whether the sandbox still waits for containers that
// are restored with this one: none of them has a process then.
func (k *ownKernel) waits(err error) bool {
	var failed *errCall
	return k.task.journal.Checkpoint != "" && errors.As(err, &failed) && strings.Contains(failed.message, "not started")
}

// signalWaiting is for containers whose sandbox waits. Without this one it would wait for
// ever: so a kill ends it, with all that are to go on in it. Other signals have nobody who
// could act on them.
func (k *ownKernel) signalWaiting(sig unix.Signal) error {
	if sig != unix.SIGKILL {
		return nil
	}
	for _, t := range append(k.sharers(), k.task) {
		if t.isMember() {
			continue
		}
		t.mu.Lock()
		err := t.first.signal(sig)
		t.mu.Unlock()
		return err
	}
	return errFinished
}
