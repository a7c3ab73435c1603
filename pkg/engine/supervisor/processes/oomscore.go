package processes

import (
	"fmt"
	"os"

	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/engine/procfs"
)

// assumeScore sets this process's oom_score_adj for the moment of a fork, and returns a function
// that restores it: a child inherits its parent's score, and a supervisor's score protects it from
// the kernel. runc sets the score of the spec for containers, but crun's execs keep the score that
// crun was started with, and before 1.9 also containers with score 0. While a runtime creates a
// container it is in the container's cgroup, where the kernel must find a process to kill. Nothing
// else may fork meanwhile.
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
		// If the runtime tries to set a score, its own error is better.
		return func() {}, nil //nolint:nilerr // see above
	}
	return func() {
		if err := procfs.SetOOMScore(os.Getpid(), own); err != nil {
			log.L.WithError(err).WithField("score", own).Error("Failed to restore the supervisor's OOM score; the kernel may kill it before pods")
		}
	}, nil
}
