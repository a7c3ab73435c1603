// Package checkpoints has the commands that checkpoint pods, transfer and remove checkpoints, and
// restore pods.
package checkpoints

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/cmd/berth/internal/cli"
	"github.com/berth-cri/berth/internal/commandline"
	"github.com/berth-cri/berth/internal/output"
	"github.com/berth-cri/berth/pkg/admin/client"
	"github.com/berth-cri/berth/pkg/engine/podcheckpoint/directory"
	"github.com/berth-cri/berth/pkg/engine/podcheckpoint/manifest"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

// Command returns the command "berth checkpoint".
func Command() *cobra.Command {
	c := &cobra.Command{
		Use:     "checkpoint",
		Aliases: []string{"checkpoints"},
		Short:   "Manage checkpoints of pods",
		Long: `Manage checkpoints that "berth pod checkpoint" or a CRI client has written. CHECKPOINT is
a path that begins with "/" or ".", or a name of this node. Only names, and "list" and
"prune" without DIR, need a running daemon. A running daemon protects checkpoints in use.`,
		Example: "  berth checkpoint list\n  berth checkpoint inspect shop/notebook\n  berth checkpoint inspect /var/lib/checkpoints/notebook\n  berth checkpoint prune --keep 3",
	}
	c.AddCommand(checkpointListCommand(), checkpointInspectCommand(), checkpointPushCommand(), checkpointPullCommand(), checkpointRemoveCommand(),
		checkpointPruneCommand())
	return c
}

type listedCheckpoint struct {
	Directory  string    `json:"directory"`
	Name       string    `json:"name"`
	Namespace  string    `json:"namespace"`
	Pod        string    `json:"pod"`
	Handler    string    `json:"handler"`
	Runtime    string    `json:"runtime"`
	Created    time.Time `json:"created"`
	Size       int64     `json:"size"`
	Containers []string  `json:"containers"`
}

func listed(dir string, m *manifest.Manifest) (listedCheckpoint, error) {
	namespace, pod, err := m.PodName()
	if err != nil {
		return listedCheckpoint{}, err
	}
	l := listedCheckpoint{
		Namespace: namespace, Pod: pod,
		Directory: dir, Handler: m.Handler.Name, Runtime: m.Handler.Runtime, Created: m.Created, Size: m.Size(), Containers: []string{},
	}
	for _, b := range m.Handler.Binaries {
		l.Runtime += " " + b.Version
	}
	for _, c := range m.Containers {
		l.Containers = append(l.Containers, c.Name)
	}
	return l, nil
}

func checkpointListCommand() *cobra.Command {
	r := &cli.Remote{}
	c := &cobra.Command{
		Use:     "list [DIR]",
		Aliases: []string{"ls"},
		Short:   "List checkpoints",
		Long: `List the checkpoints directly below DIR (default: pod-checkpoints of the running
daemon), the newest first.`,
		Example: "  berth checkpoint list\n  berth checkpoint list /var/lib/checkpoints",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			_, all, err := checkpointsAt(r, c, args)
			if err != nil {
				return err
			}
			return output.Encode(c.OutOrStdout(), r.Output, map[string]any{"checkpoints": all}, r.Table(checkpointTable(all, r.Wide())))
		},
	}
	r.Flags(c)
	r.ListFlags(c, "the directories of checkpoints")
	return c
}

// checkpointsAt lists the checkpoints in the given directory, or else in the running daemon's,
// which exists from the first checkpoint on.
func checkpointsAt(r *cli.Remote, c *cobra.Command, args []string) (dir string, all []listedCheckpoint, err error) {
	if len(args) > 0 {
		all, err = checkpointsIn(args[0])
		return args[0], all, err
	}
	if dir, err = daemonsDirectory(r, c); err != nil {
		return "", nil, err
	}
	if all, err = checkpointsIn(dir); errors.Is(err, fs.ErrNotExist) {
		return "", []listedCheckpoint{}, nil
	}
	return dir, all, err
}

// locate returns the directory of a checkpoint, which is given by its path or by its name.
func locate(r *cli.Remote, c *cobra.Command, checkpoint string) (string, error) {
	if strings.HasPrefix(checkpoint, "/") || strings.HasPrefix(checkpoint, ".") {
		return filepath.Abs(checkpoint)
	}
	parent, err := daemonsDirectory(r, c)
	if err != nil {
		return "", err
	}
	return directory.Resolve(parent, checkpoint)
}

// completeNames completes names of checkpoints, or else paths.
func completeNames(r *cli.Remote) cobra.CompletionFunc {
	return func(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		parent, err := daemonsDirectory(r, c)
		if err != nil {
			return nil, cobra.ShellCompDirectiveDefault
		}
		names, _, _ := directory.Names(parent)
		return slices.Sorted(maps.Values(names)), cobra.ShellCompDirectiveDefault
	}
}

// daemonsDirectory returns the running daemon's directory for pod checkpoints.
func daemonsDirectory(r *cli.Remote, c *cobra.Command) (dir string, err error) {
	r.Timeout = cli.CallTimeout
	err = r.With(c, func(ctx context.Context, daemon *client.Client) error {
		status, err := daemon.GetStatus(ctx, &adminv1.GetStatusRequest{})
		dir = status.GetPodCheckpoints().GetDirectory()
		return err
	})
	return dir, err
}

// checkpointsIn lists a directory's checkpoints, and ignores other directories.
func checkpointsIn(dir string) ([]listedCheckpoint, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("%w; give a directory that has checkpoints", err)
	}
	names, _, err := directory.Names(dir)
	if err != nil {
		return nil, err
	}
	all := []listedCheckpoint{}
	for _, e := range entries {
		if !e.IsDir() || strings.HasPrefix(e.Name(), ".") { // a running removal
			continue
		}
		path := filepath.Join(dir, e.Name())
		m, err := manifest.Read(path)
		if err != nil {
			continue
		}
		if l, err := listed(path, m); err == nil {
			l.Name = names[path]
			all = append(all, l)
		}
	}
	slices.SortFunc(all, func(a, b listedCheckpoint) int {
		return cmp.Or(b.Created.Compare(a.Created), cmp.Compare(b.Directory, a.Directory))
	})
	return all, nil
}

func checkpointTable(all []listedCheckpoint, wide bool) *output.Table {
	t := &output.Table{Header: []string{"DIRECTORY", "NAME", "NAMESPACE", "POD", "HANDLER", "RUNTIME", "AGE", "SIZE", "CONTAINERS"}, Whole: wide}
	for _, l := range all {
		t.Add(l.Directory, l.Name, l.Namespace, l.Pod, l.Handler, l.Runtime, cli.Age(time.Since(l.Created)), cli.Size(l.Size), strings.Join(l.Containers, " "))
		t.Names = append(t.Names, l.Directory)
	}
	return t
}

func checkpointInspectCommand() *cobra.Command {
	r, verify := &cli.Remote{}, false
	c := &cobra.Command{
		Use:   "inspect CHECKPOINT",
		Short: "Show a checkpoint's pod, runtime and files",
		Long: `Show a checkpoint's pod, runtime and files. With --verify, also read all files. The exit
status is 3 if a file is damaged. -o json prints the whole manifest, including the
environment variables of the containers.`,
		Example: "  berth checkpoint inspect shop/notebook\n  berth checkpoint inspect /var/lib/checkpoints/notebook --verify",
		Args:    cobra.ExactArgs(1), ValidArgsFunction: completeNames(r),
		RunE: func(c *cobra.Command, args []string) error {
			ctx, stop := signal.NotifyContext(c.Context(), unix.SIGINT, unix.SIGTERM)
			defer stop()
			dir, err := locate(r, c, args[0])
			if err != nil {
				return err
			}
			release, err := directory.Use(dir)
			if err != nil {
				return err
			}
			defer release()
			m, err := manifest.Read(dir)
			if err != nil {
				return err
			}
			if verify {
				err := m.Verify(ctx, dir, manifest.Thoroughly)
				if errors.Is(err, manifest.ErrDamaged) {
					return commandline.Found("%s: %w", dir, err)
				}
				if err != nil {
					return err
				}
			}
			l, err := listed(dir, m)
			if err != nil {
				return err
			}
			return output.Encode(c.OutOrStdout(), r.Output, m, output.Fields(fieldsOf(l, m, verify)))
		},
	}
	r.Flags(c)
	c.Flags().BoolVar(&verify, "verify", false, "read all files, and compare them with their checksums")
	return c
}

func fieldsOf(l listedCheckpoint, m *manifest.Manifest, verified bool) [][2]string {
	fields := [][2]string{
		{"pod", l.Namespace + "/" + l.Pod},
		{"sandbox", m.Sandbox},
		{"created", cli.Ago(m.Created) + ", " + m.Created.Format(time.RFC3339)},
		{"handler", m.Handler.Name},
		{"definition", m.Handler.Digest},
	}
	for _, b := range m.Handler.Binaries {
		fields = append(fields, [2]string{"binary", strings.TrimSpace(b.Path + " " + b.Version)}, [2]string{"sha256", b.SHA256})
	}
	fields = append(fields, [2]string{"node", m.Node.Architecture + ", Linux " + m.Node.Kernel})
	for _, c := range m.Containers {
		fields = append(fields, [2]string{"container", c.Name + ", " + c.Image.Name + " (" + c.Image.ID + ")"})
	}
	for _, f := range m.Files {
		fields = append(fields, [2]string{"file", f.Name + ", " + cli.Size(f.Size)})
	}
	if verified {
		fields = append(fields, [2]string{"verified", "all files are as they were written"})
	}
	return fields
}

func checkpointRemoveCommand() *cobra.Command {
	r := &cli.Remote{}
	c := &cobra.Command{
		Use:     "rm CHECKPOINT...",
		Aliases: []string{"remove"},
		Short:   "Remove checkpoints and their directories",
		Long: `Remove checkpoints and their directories. A directory with other files is an error, and so
is a checkpoint in use: one that is being written, read or pushed, or one whose restored pod
has containers that have not started yet. Running pods do not need their checkpoint.`,
		Example: "  berth checkpoint rm shop/notebook\n  berth checkpoint rm /var/lib/checkpoints/notebook",
		Args:    cobra.MinimumNArgs(1), ValidArgsFunction: completeNames(r),
		RunE: func(c *cobra.Command, args []string) error {
			removed, lines := []string{}, []string(nil)
			var errs []error
			for _, one := range args {
				dir, err := locate(r, c, one)
				if err == nil {
					err = directory.Remove(dir, func() ([]string, error) { return inUse(r, c) })
				}
				if err != nil {
					errs = append(errs, err)
					continue
				}
				removed, lines = append(removed, one), append(lines, "removed "+one)
			}
			err := output.Encode(c.OutOrStdout(), r.Output, map[string]any{"removed": removed}, output.Lines(lines))
			return errors.Join(append(errs, err)...)
		},
	}
	r.Flags(c)
	return c
}

// inUse returns the checkpoints that restored pods still read; none if no daemon runs.
func inUse(r *cli.Remote, c *cobra.Command) (all []string, err error) {
	r.Timeout = cli.CallTimeout
	err = r.With(c, func(ctx context.Context, daemon *client.Client) error {
		status, err := daemon.GetStatus(ctx, &adminv1.GetStatusRequest{})
		switch {
		case err != nil && daemon.Absent():
			return nil
		case status.GetRecovering():
			return errors.New("the daemon is still recovering its pods; try again later")
		}
		all = status.GetPodCheckpoints().GetInUse()
		return err
	})
	return all, err
}

func checkpointPruneCommand() *cobra.Command {
	r, keep, older, dryRun := &cli.Remote{}, 0, time.Duration(0), false
	c := &cobra.Command{
		Use:   "prune [DIR]",
		Short: "Remove old checkpoints",
		Long: `Remove old checkpoints directly below DIR (default: pod-checkpoints of the running daemon):
all but the newest of each pod (--keep), those that are too old (--older-than), or both. A
checkpoint with a name, or in use, stays. berth-checkpoint-prune.timer runs this every hour.`,
		Example: "  berth checkpoint prune --keep 3 --older-than 168h\n  berth checkpoint prune /var/lib/checkpoints --keep 1 --dry-run",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if keep < 0 || older < 0 || keep == 0 && older == 0 {
				return commandline.Misused(c, errors.New("give --keep, --older-than or both, each more than 0"))
			}
			dir, all, err := checkpointsAt(r, c, args)
			if err != nil {
				return err
			}
			if !dryRun && dir != "" {
				at, err := filepath.EvalSymlinks(dir)
				if err != nil {
					return err
				}
				// Finish interrupted removals.
				if err := directory.Finish(at); err != nil {
					return err
				}
			}
			pruned, names, freed := []listedCheckpoint{}, []string(nil), int64(0)
			var errs []error
			for _, l := range expired(all, keep, older, time.Now()) {
				if !dryRun {
					err = directory.Remove(l.Directory, func() ([]string, error) {
						used, err := inUse(r, c)
						names, _, nerr := directory.Names(dir) // again, because a new one may exist
						return slices.AppendSeq(used, maps.Keys(names)), errors.Join(err, nerr)
					})
				}
				switch {
				case err == nil:
					pruned, names, freed = append(pruned, l), append(names, l.Directory), freed+l.Size
				case !errors.Is(err, directory.ErrInUse):
					errs = append(errs, err)
				}
			}
			err = output.Encode(c.OutOrStdout(), r.Output, map[string]any{"checkpoints": pruned, "dryRun": dryRun},
				output.Lines(cli.PrunedLines(names, cli.Size(freed), dryRun)))
			return errors.Join(append(errs, err)...)
		},
	}
	r.Flags(c)
	c.Flags().IntVar(&keep, "keep", 0, "`number` of checkpoints of each pod to keep")
	c.Flags().DurationVar(&older, "older-than", 0, "`age` from which checkpoints are removed")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "only show what would be removed")
	return c
}

// expired returns the checkpoints without a name to remove, oldest first: all but the newest keep of
// each pod, and those that are at least olderThan old. 0 means no bound. all is newest first. Pure.
func expired(all []listedCheckpoint, keep int, olderThan time.Duration, now time.Time) (removed []listedCheckpoint) {
	seen := map[[2]string]int{}
	for _, l := range all {
		if l.Name != "" {
			continue
		}
		pod := [2]string{l.Namespace, l.Pod}
		seen[pod]++
		if keep > 0 && seen[pod] > keep || olderThan > 0 && now.Sub(l.Created) >= olderThan {
			removed = append(removed, l)
		}
	}
	slices.Reverse(removed)
	return removed
}
