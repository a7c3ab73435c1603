package supervisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	runcapi "github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// CRIUConfigFile is, in a bundle, what the annotation org.criu.config of the
// container names. It is there while a checkpoint is made.
const CRIUConfigFile = "criu.conf"

// criuConfigDir has a file <runtime>.conf for CRIU, of which ours takes the place.
const criuConfigDir = "/etc/criu"

func checkpointOptions(a *anypb.Any) (*runcapi.CheckpointOptions, error) {
	o := &runcapi.CheckpointOptions{}
	if a == nil {
		return o, nil
	}
	if want := o.ProtoReflect().Descriptor().FullName(); a.MessageName() != want {
		return nil, fmt.Errorf("checkpoint options must be of type %s, not %q: %w", want, a.GetTypeUrl(), errdefs.ErrInvalidArgument)
	}
	if err := proto.Unmarshal(a.GetValue(), o); err != nil {
		return nil, fmt.Errorf("decode checkpoint options: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	return o, nil
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
		config := filepath.Join(t.journal.Bundle, CRIUConfigFile)
		text, err := criuConfig(&t.journal)
		if err != nil {
			return err
		}
		if err := os.WriteFile(config, text, 0o600); err != nil {
			return err
		}
		_, err = t.processes.invokeForever(ctx, &call{options: &t.journal.Options, args: checkpointArgs(t.id, images, o)})
		return errors.Join(ExplainCheckpoint(err, o.GetWorkPath()), os.Remove(config))
	})
}

// criuConfig is what CRIU must know beside the runtime's arguments: the pipes of
// the container are files of this host, which it would look for in the container.
func criuConfig(j *Task) ([]byte, error) {
	text, err := os.ReadFile(filepath.Join(criuConfigDir, filepath.Base(j.Options.Runtime)+".conf"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("write CRIU configuration: %w", err)
	}
	out := bytes.NewBuffer(text)
	for _, pipe := range []string{j.Stdin, j.Stdout, j.Stderr} {
		if pipe == "" {
			continue
		}
		var st unix.Statx_t
		if err := unix.Statx(unix.AT_FDCWD, pipe, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_INO|unix.STATX_MNT_ID, &st); err != nil {
			return nil, fmt.Errorf("statx %s: %w", pipe, err)
		}
		fmt.Fprintf(out, "\nexternal file[%x:%x]", st.Mnt_id, st.Ino)
	}
	return append(out.Bytes(), '\n'), nil
}

// ExplainCheckpoint adds what CRIU itself says, in the directory that it worked in:
// runtimes, and shims, only say that it failed.
func ExplainCheckpoint(err error, workPath string) error {
	if err == nil {
		return nil
	}
	if reason := criuErrors(readTail(filepath.Join(workPath, "dump.log"))); reason != "" {
		return fmt.Errorf("%w: CRIU says: %s", err, reason)
	}
	return err
}

// criuErrors finds in CRIU's log the error before the last, which only says that
// the dump failed.
func criuErrors(log []byte) string {
	var last string
	for line := range bytes.Lines(log) {
		_, text, isError := strings.Cut(string(line), ") Error (")
		if !isError || strings.Contains(text, "Dumping FAILED") {
			continue
		}
		if _, said, ok := strings.Cut(text, "): "); ok {
			text = said
		}
		// What follows the first error of the dump is its consequence.
		if last = strings.TrimSpace(text); !strings.HasPrefix(last, "rlimit:") {
			break
		}
	}
	return shorten(last)
}
