package supervisor

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/anypb"

	supervisorv1 "github.com/berth-cri/berth/proto/berth/supervisor/v1"

	"github.com/berth-cri/berth/pkg/engine/supervisor/runtimecall"
)

// checkpoint writes the whole sandbox, the kernel with all its containers, into a directory and
// resumes the sandbox. All containers are paused meanwhile. The end of ctx does not stop the call
// of the runtime, because the sandbox cannot abort a checkpoint.
func (k *ownKernel) checkpoint(ctx context.Context, images string, options *anypb.Any) error {
	o := &supervisorv1.SandboxCheckpointOptions{}
	if err := checkpointOptions(options, o); err != nil {
		return err
	}
	compression := cmp.Or(o.GetCompression(), "none") // uncompressed memory is loaded while the pod already runs
	if !filepath.IsAbs(images) {
		return fmt.Errorf("the checkpoint directory must be an absolute path, not %q: %w", images, errdefs.ErrInvalidArgument)
	}
	if k.task.isMember() {
		return fmt.Errorf("container %q cannot be checkpointed alone, because it runs on one kernel with the others of its pod; checkpoint the pod: %w", k.task.id, errdefs.ErrNotImplemented)
	}
	return k.task.whenRunning(ctx, func(ctx context.Context) error {
		defer k.locks().SweepEnded()
		k.writing.Store(true)
		defer k.writing.Store(false)
		_, err := (&runtimecall.Call{
			Options: &k.task.journal.Options,
			Args:    []string{"checkpoint", "--leave-running", "--compression", compression, "--image-path", images, k.task.id},
			// The call must not outlive its supervisor. The sandbox resumes in any case.
			DeathSignal: unix.SIGKILL,
		}).InvokeForever(ctx, k.task.processes)
		return err
	})
}
