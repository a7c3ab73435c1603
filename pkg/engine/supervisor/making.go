package supervisor

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	taskAPI "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
)

// checkRestore refuses to restore what no runtime here can.
func checkRestore(r *taskAPI.CreateTaskRequest) error {
	switch {
	case r.ParentCheckpoint != "":
		return fmt.Errorf("restoring a checkpoint on top of another is not supported: %w", errdefs.ErrNotImplemented)
	case r.Checkpoint == "":
		return nil
	case !filepath.IsAbs(r.Checkpoint):
		return fmt.Errorf("the checkpoint directory must be an absolute path, not %q: %w", r.Checkpoint, errdefs.ErrInvalidArgument)
	}
	return nil
}

// byCRIU says whether the container goes on from images of CRIU.
func (t *Task) byCRIU() bool { return t.Checkpoint != "" && !t.Options.OwnKernel }

// making is how the runtime is told to make and start a container: anew, or from what a
// checkpoint has of it.
type making struct{ task *task }

func (v making) verb() (flags, args []string, err error) {
	switch {
	case v.task.journal.Checkpoint == "":
		return nil, []string{"run"}, nil
	case v.task.journal.byCRIU():
		args, err = criuRestore(v).prepare()
		return nil, args, err
	}
	flags, args = v.restoreWhole()
	return flags, args, nil
}

// restoreWhole is it for containers of a sandbox that is restored as one. The first of them
// makes the sandbox, which waits until all the others have followed; only then all of them
// go on.
func (v making) restoreWhole() (flags, args []string) {
	from := v.task.journal.Checkpoint
	args = []string{"restore", "--image-path", from}
	if readBundle(v.task.journal.Bundle).isMember() {
		return nil, args // how it is restored was said for the first one
	}
	if v.knows("-background", "help", "restore") {
		// Containers go on while their memory is still being read.
		args = append(args, "--background")
	}
	if v.knows("-restore-spec-validation", "flags") {
		// What must be the same was compared before. What the runtime compares beside it, such
		// as the OOM score, is this node's to say.
		flags = []string{"--restore-spec-validation=warning"}
	}
	return flags, args
}

// helpTimeout bounds the wait for a runtime's help.
const helpTimeout = 10 * time.Second

// knows says whether the runtime speaks of a flag in its help, some of which it writes to
// stderr.
func (v making) knows(flag string, help ...string) bool {
	ctx, cancel := context.WithTimeout(v.task.context(), helpTimeout)
	defer cancel()
	r, err := v.task.processes.begin(&call{options: &v.task.journal.Options, args: help})
	if err != nil {
		return false
	}
	defer r.close()
	select {
	case <-r.ended:
		_, err = r.reap()
	case <-ctx.Done():
		r.end()
		err = ctx.Err()
	}
	return err == nil && strings.Contains(string(captured(r.stdout))+string(captured(r.stderr)), flag)
}
