package supervisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	runcapi "github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// CRIUConfigFile is, in a bundle, what the annotation org.criu.config of the
// container names. It is there while a checkpoint is made.
const CRIUConfigFile = "criu.conf"

// checkpointOptions decodes what a checkpoint is to be like; nil has the defaults.
func checkpointOptions(a *anypb.Any, into proto.Message) error {
	if a == nil {
		return nil
	}
	return decode("checkpoint options", a, into)
}

// checkpointArgs is the runtime's command line for a checkpoint after which the
// container goes on.
func checkpointArgs(id, images string, o *runcapi.CheckpointOptions) []string {
	args := []string{"checkpoint", "--leave-running", "--image-path", images}
	if o.GetWorkPath() != "" {
		args = append(args, "--work-path", o.GetWorkPath())
	}
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"--tcp-established", o.GetOpenTcp()},
		{"--ext-unix-sk", o.GetExternalUnixSockets()},
		{"--shell-job", o.GetTerminal()},
		{"--file-locks", o.GetFileLocks()},
	} {
		if f.set {
			args = append(args, f.name)
		}
	}
	return append(args, id)
}

// checkpoint writes the state of the container's processes into a directory. It
// takes as long as ctx allows.
func (t *task) checkpoint(ctx context.Context, images string, o *runcapi.CheckpointOptions) error {
	if o.GetExit() {
		return fmt.Errorf("a checkpoint that stops the container is not supported: %w", errdefs.ErrNotImplemented)
	}
	if !filepath.IsAbs(images) {
		return fmt.Errorf("the checkpoint directory must be an absolute path, not %q: %w", images, errdefs.ErrInvalidArgument)
	}
	// A runtime that is killed while CRIU is inside of the processes may damage
	// them: only the deadline ends it, not a caller that leaves.
	deadline, bounded := ctx.Deadline()
	return t.whenRunning(ctx, func(ctx context.Context) error {
		if bounded {
			var cancel context.CancelFunc
			ctx, cancel = context.WithDeadline(ctx, deadline)
			defer cancel()
		}
		pipes, err := pipesOf(&t.journal)
		if err != nil {
			return err
		}
		system, err := systemCRIUConfig(t.journal.Options.Runtime)
		if err != nil {
			return err
		}
		ctx, giveUp := context.WithCancel(ctx)
		defer giveUp()
		t.giveUpCRIU.Store(&giveUp)
		defer t.giveUpCRIU.Store(nil)
		config := filepath.Join(t.journal.Bundle, CRIUConfigFile)
		text, err := onceConfig(dumpConfig(system, pipes, o.GetOpenTcp()))
		if err != nil {
			return err
		}
		if err := os.WriteFile(config, text, 0o600); err != nil {
			return err
		}
		err = criuWrite{t}.run(ctx, checkpointArgs(t.id, images, o), criuConfigEnv+"="+config)
		if err == nil {
			err = writePipes(images, pipes)
		}
		return errors.Join(ExplainCheckpoint(err, o.GetWorkPath()), os.Remove(config))
	})
}

// killedWritingTimeout is how long CRIU may take to see that the container which it writes is killed.
const killedWritingTimeout = 2 * time.Second

// endCRIU ends a checkpoint of a container that is killed: CRIU may wait for its processes for
// ever.
func endCRIU(t *task) {
	if giveUp := t.giveUpCRIU.Load(); giveUp != nil {
		time.AfterFunc(killedWritingTimeout, *giveUp)
	}
}

// ExplainCheckpoint adds what CRIU itself says, in the directory that it worked in:
// runtimes, and shims, only say that it failed.
func ExplainCheckpoint(err error, workPath string) error {
	return explainCRIU(err, filepath.Join(workPath, "dump.log"))
}

// ExplainRestore does so for a container that was to be restored.
func ExplainRestore(err error, workPath string) error {
	return explainCRIU(err, filepath.Join(workPath, "restore.log"))
}

func explainCRIU(err error, logFile string) error {
	if err == nil {
		return nil
	}
	if reason := criuErrors(readTail(logFile)); reason != "" {
		return fmt.Errorf("%w: CRIU says: %s", err, reason)
	}
	return err
}

// criuErrors finds in CRIU's log the error before the last, which only says that
// it failed.
func criuErrors(log []byte) string {
	var last string
	for line := range bytes.Lines(log) {
		_, text, isError := strings.Cut(string(line), " Error (")
		if !isError || strings.Contains(text, "Dumping FAILED") || strings.Contains(text, "Restoring FAILED") {
			continue
		}
		if _, said, ok := strings.Cut(text, "): "); ok {
			text = said
		}
		// What follows the first error is its consequence.
		if last = strings.TrimSpace(text); !isPassing(last) {
			break
		}
	}
	return shorten(last)
}

// isPassing knows errors that CRIU goes on after, or that say no more than that another process
// of it is gone.
func isPassing(said string) bool {
	return slices.ContainsFunc([]string{"rlimit:", "cg: cgroupd:"}, func(words string) bool { return strings.HasPrefix(said, words) })
}
