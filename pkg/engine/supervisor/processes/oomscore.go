package processes

import (
	"fmt"
	"os"

	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/engine/procfs"
)

// assumeScore gives this process an oom_score_adj for the moment in which it forks, and
// returns what takes it back: a child has its parent's score, and a supervisor's is one
// that the kernel spares. runc gives containers the score of their spec, but crun's execs
// have the one that crun was started with, and before 1.9 also containers whose score is
// 0; and while it makes a container, a runtime is in its cgroup, where the kernel must
// find a process to kill. Nothing else may fork meanwhile.
func assumeScore(score *int) (restore func(), err error) {
	if score == nil {
		return func() {}, nil
	}
	own, err := procfs.OOMScore()
	if err != nil {
		return nil, fmt.Errorf("assume the score of a container: %w", err)
	}
	if own == *score {
		return func() {}, nil
	}
	if err := procfs.SetOOMScore(os.Getpid(), *score); err != nil {
		// The runtime's own error is better, if it tries to set one.
		return func() {}, nil //nolint:nilerr // see above
	}
	return func() {
		if err := procfs.SetOOMScore(os.Getpid(), own); err != nil {
			log.L.WithError(err).WithField("score", own).Error("Failed to restore the supervisor's OOM score; the kernel may kill it before pods")
		}
	}, nil
}
