// Package retention looks after checkpoints of pods that are kept directly below one
// directory: which of them go, and that none goes that somebody uses.
//
//	gone := retention.Expired(all, bounds, now)    // pure; the daemon and "berth checkpoint prune"
//	release, err := retention.Use(ctx, dir)        // whoever writes, reads or sends one
//	err = retention.Remove(dir, waiting)           // fails with ErrInUse if somebody does
//	keeper := retention.New(settings, waiting)     // the daemon's: keeper.Run(ctx)
//
// A removal renames the directory first, to a name that begins with a dot. What a kill or a power
// cut leaves under such a name is removed by whoever comes next. No checkpoint is ever
// half there.
package retention

import (
	"cmp"
	"slices"
	"time"
)

// Bounds are how much is kept. 0 is no bound.
type Bounds struct {
	// Keep is how many of each pod, by namespace and name.
	Keep int
	// MaxAge is the age from which they go.
	MaxAge time.Duration
	// MaxTotalSize is how many bytes all may have. The newest one stays in any case: it
	// would be gone as soon as it was made.
	MaxTotalSize int64
}

// Checkpoint is a whole one.
type Checkpoint struct {
	Directory       string
	Namespace, Name string // of its pod
	Created         time.Time
	// Size is the bytes of its files.
	Size int64
	// Stays says that it cannot be removed now: somebody uses it, or it was tried.
	Stays bool
}

// Reason is the bound that a checkpoint is over, by its key in the configuration.
type Reason string

// The bounds.
const (
	OverKeep  Reason = "keep"
	OverAge   Reason = "max_age"
	OverTotal Reason = "max_total_size"
)

// Reasons are all of them.
var Reasons = []Reason{OverKeep, OverAge, OverTotal}

// Removal is a checkpoint that goes.
type Removal struct {
	Checkpoint

	Reason Reason
}

// Expired are the checkpoints that go, the oldest first. Those that stay count like the others.
// Pure.
func Expired(all []Checkpoint, b Bounds, now time.Time) (gone []Removal) {
	sorted := slices.Clone(all)
	slices.SortFunc(sorted, newestFirst)
	reasons, of := make([]Reason, len(sorted)), map[[2]string]int{}
	for i, c := range sorted {
		pod := [2]string{c.Namespace, c.Name}
		of[pod]++
		switch {
		case c.Stays:
		case b.Keep > 0 && of[pod] > b.Keep:
			reasons[i] = OverKeep
		case b.MaxAge > 0 && now.Sub(c.Created) >= b.MaxAge:
			reasons[i] = OverAge
		}
	}
	left := int64(0)
	for i, c := range sorted {
		if reasons[i] == "" {
			left += c.Size
		}
	}
	for i := len(sorted) - 1; i > 0 && b.MaxTotalSize > 0 && left > b.MaxTotalSize; i-- {
		if c := sorted[i]; reasons[i] == "" && !c.Stays {
			reasons[i] = OverTotal
			left -= c.Size
		}
	}
	for i, c := range slices.Backward(sorted) {
		if reasons[i] != "" {
			gone = append(gone, Removal{c, reasons[i]})
		}
	}
	return gone
}

// Exceeded says whether more is kept than the bounds allow, whatever the reason. Pure.
func Exceeded(all []Checkpoint, b Bounds, now time.Time) bool {
	free, total := slices.Clone(all), int64(0)
	for i := range free {
		free[i].Stays = false
		total += free[i].Size
	}
	return b.MaxTotalSize > 0 && total > b.MaxTotalSize || len(Expired(free, b, now)) > 0
}

func newestFirst(a, b Checkpoint) int {
	return cmp.Or(b.Created.Compare(a.Created), cmp.Compare(b.Directory, a.Directory))
}
