package daemon

import (
	"context"
	"fmt"

	"github.com/berth-cri/berth/pkg/admin"
	"github.com/berth-cri/berth/pkg/config"
	"github.com/berth-cri/berth/pkg/engine/podcheckpoint/retention"
)

// checkpointSettings is which checkpoints of pods are kept. Pure.
func checkpointSettings(cfg *config.Config) retention.Settings {
	p := cfg.PodCheckpoints
	return retention.Settings{
		Directory: cfg.PodCheckpointsDir(),
		Bounds:    retention.Bounds{Keep: p.Keep, MaxAge: p.MaxAge, MaxTotalSize: int64(p.MaxTotalSize)},
	}
}

// adminCheckpoints shows checkpoints of pods to the management API.
type adminCheckpoints struct{ keeper *retention.Keeper }

// State implements admin.PodCheckpoints.
func (a adminCheckpoints) State(ctx context.Context) admin.CheckpointState {
	s := a.keeper.State(ctx)
	return admin.CheckpointState{
		Directory: s.Directory, Count: s.Count, Bytes: s.Bytes, Oldest: s.Oldest, Damaged: len(s.Damaged), Faults: checkpointFaults(s),
		Waiting: a.keeper.Waiting(),
	}
}

// checkpointFaults are what an operator should mend. That more is kept than allowed is none: it is
// in use. Pure.
func checkpointFaults(s retention.State) (lines []string) {
	if s.Fault != nil {
		lines = append(lines, fmt.Sprintf("cannot look after the checkpoints of pods in %s: %s", s.Directory, s.Fault))
	}
	if n := len(s.Damaged); n > 0 {
		lines = append(lines, fmt.Sprintf("directories that are not whole checkpoints of pods below %s: %d, such as %s (%s); berth does not remove them",
			s.Directory, n, s.Damaged[0].Directory, s.Damaged[0].Err))
	}
	return lines
}
