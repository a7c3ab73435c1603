package checkpoints

import (
	"cmp"
	"errors"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-cri/berth/cmd/berth/internal/cli"
	"github.com/berth-cri/berth/internal/commandline"
	"github.com/berth-cri/berth/internal/output"
	"github.com/berth-cri/berth/pkg/engine/podcheckpoint/directory"
)

func checkpointPruneCommand() *cobra.Command {
	r, keep, older, dryRun := &cli.Remote{}, 0, time.Duration(0), false
	c := &cobra.Command{
		Use:   "prune [DIR]",
		Short: "Remove old checkpoints",
		Long: `Remove checkpoints directly below DIR, or without DIR below the running daemon's directory: of each
pod, by its namespace and name, all but the newest ones (--keep), and those that are too old (--older-than). With both,
what one of them names is removed. A checkpoint in use stays. With --dry-run, only show them.
berth-checkpoint-prune.timer runs this every hour.`,
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
				// What interrupted removals left.
				if err := directory.Finish(at); err != nil {
					return err
				}
			}
			pruned, errs := []listedCheckpoint{}, []error(nil)
			for _, l := range expired(all, keep, older, time.Now()) {
				if !dryRun {
					err = directory.Remove(l.Directory, inUse(r, c))
				}
				switch {
				case err == nil:
					pruned = append(pruned, l)
				case !errors.Is(err, directory.ErrInUse):
					errs = append(errs, err)
				}
			}
			err = output.Encode(c.OutOrStdout(), r.Output, map[string]any{"checkpoints": pruned, "dryRun": dryRun}, output.Lines(prunedLines(pruned, dryRun)))
			return errors.Join(append(errs, err)...)
		},
	}
	r.Flags(c)
	c.Flags().IntVar(&keep, "keep", 0, "how many checkpoints of each pod stay")
	c.Flags().DurationVar(&older, "older-than", 0, "age from which checkpoints are removed")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "only show what would be removed")
	return c
}

// expired returns the checkpoints to remove, the oldest first: all but keep of each pod, and those
// of an age. 0 is no bound. Pure.
func expired(all []listedCheckpoint, keep int, olderThan time.Duration, now time.Time) (removed []listedCheckpoint) {
	newestFirst := slices.SortedFunc(slices.Values(all), func(a, b listedCheckpoint) int {
		return cmp.Or(b.Created.Compare(a.Created), cmp.Compare(b.Directory, a.Directory))
	})
	seen := map[[2]string]int{}
	for _, l := range newestFirst {
		pod := [2]string{l.Namespace, l.Name}
		seen[pod]++
		if keep > 0 && seen[pod] > keep || olderThan > 0 && now.Sub(l.Created) >= olderThan {
			removed = append(removed, l)
		}
	}
	slices.Reverse(removed)
	return removed
}

func prunedLines(pruned []listedCheckpoint, dryRun bool) (lines []string) {
	if len(pruned) == 0 {
		return []string{"no checkpoint to remove"}
	}
	done := "removed"
	if dryRun {
		done = "would remove"
	}
	freed := int64(0)
	for _, l := range pruned {
		freed += l.Size
		lines = append(lines, done+" "+l.Directory)
	}
	return append(lines, done+" "+cli.Size(freed))
}
