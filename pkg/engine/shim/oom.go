package shim

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// maxOOMScore is the highest score that the kernel takes.
const maxOOMScore = 1000

// diesBefore has the kernel that is out of memory take a process rather than this one,
// by as little as there is: both come after all pods, and the daemon can replace a
// supervisor, which is how its pods' exit codes and output survive.
func diesBefore(pid int) error {
	own, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		return fmt.Errorf("read the daemon's oom_score_adj: %w", err)
	}
	score, err := strconv.Atoi(strings.TrimSpace(string(own)))
	if err != nil {
		return fmt.Errorf("read the daemon's oom_score_adj: %w", err)
	}
	path := fmt.Sprintf("/proc/%d/oom_score_adj", pid)
	if err := os.WriteFile(path, []byte(strconv.Itoa(min(score+1, maxOOMScore))), 0); err != nil {
		return fmt.Errorf("set oom_score_adj of process %d: %w", pid, err)
	}
	return nil
}
