package processes

import (
	"fmt"
	"os"

	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/engine/procfs"
)

// assumeScore sets this process's oom_score_adj for the moment of a fork, and returns a function
// that restores it: a child inherits its parent's score, and a supervisor's own score would protect
// the child from the OOM killer. runc sets the spec's score in containers, but crun's execs keep
// the score that crun was started with, as do containers with score 0 before crun 1.9. A runtime
// that creates a container is in the container's cgroup, where the kernel must find a process to
// kill. No other code may fork before the score is restored.
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
