package main

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-cri/berth/pkg/engine/podcheckpoint/retention"
)

func checkpointPruneCommand() *cobra.Command {
	r, keep, older, dryRun := &remote{}, 0, time.Duration(0), false
	c := &cobra.Command{
		Use:   "prune [DIR]",
		Short: "Remove old checkpoints",
		Long: `Remove checkpoints in the directories directly below DIR, or without DIR those that the
running daemon keeps: of each pod, by its namespace and name, all but the newest ones (--keep), and those that are too old (--older-than). With
both, what one of them names goes. Those that "rm" refuses stay. With --dry-run, only show them.
What the daemon keeps it prunes itself: pod_checkpoints in its configuration.`,
		Example: "  berth checkpoint prune /var/lib/checkpoints --keep 3 --older-than 168h",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if keep < 0 || older < 0 || keep == 0 && older == 0 {
				return misused(c, errors.New("give --keep, --older-than or both, each more than 0"))
			}
			dir, all, err := r.checkpointsAt(c, args)
			if err != nil {
				return err
			}
			var errs []error
			if !dryRun && dir != "" {
				errs = append(errs, finishRemovals(dir))
			}
			pruned := []listedCheckpoint{}
			for _, l := range expired(all, retention.Bounds{Keep: keep, MaxAge: older}, time.Now()) {
				if !dryRun {
					if err := retention.Remove(l.Directory, r.waiting(c)); err != nil {
						errs = append(errs, err)
						continue
					}
				}
				pruned = append(pruned, l)
			}
			err = encode(c.OutOrStdout(), r.output, struct {
				Checkpoints []listedCheckpoint `json:"checkpoints"`
				DryRun      bool               `json:"dryRun"`
			}{pruned, dryRun}, func(w io.Writer) error { return showPruned(w, pruned, dryRun) })
			return errors.Join(append(errs, err)...)
		},
	}
	r.flags(c)
	c.Flags().IntVar(&keep, "keep", 0, "how many checkpoints of each pod stay")
	c.Flags().DurationVar(&older, "older-than", 0, "age from which checkpoints go")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "only show what would be removed")
	return c
}

// finishRemovals removes what interrupted removals left in a directory, by whatever path.
func finishRemovals(path string) error {
	dir, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	_, err = retention.Finish(dir)
	return err
}

// expired are those of a list that go, the oldest first. Pure.
func expired(all []listedCheckpoint, b retention.Bounds, now time.Time) (gone []listedCheckpoint) {
	var known []retention.Checkpoint
	by := map[string]listedCheckpoint{}
	for _, l := range all {
		known = append(known, retention.Checkpoint{Directory: l.Directory, Namespace: l.Namespace, Name: l.Name, Created: l.Created, Size: l.Size})
		by[l.Directory] = l
	}
	for _, r := range retention.Expired(known, b, now) {
		gone = append(gone, by[r.Directory])
	}
	return gone
}

func showPruned(w io.Writer, pruned []listedCheckpoint, dryRun bool) (err error) {
	if len(pruned) == 0 {
		_, err = fmt.Fprintln(w, "no checkpoint to remove")
		return err
	}
	done := "removed"
	if dryRun {
		done = "would remove"
	}
	freed := int64(0)
	for _, l := range pruned {
		freed += l.Size
		_, werr := fmt.Fprintln(w, done, l.Directory)
		err = errors.Join(err, werr)
	}
	_, werr := fmt.Fprintf(w, "%s %s\n", done, size(freed))
	return errors.Join(err, werr)
}
