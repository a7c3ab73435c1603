package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// cpuTime is the time of CPUs that the threads of a process have had which are
// there. Other than the time on the clock it is the same on a busy machine.
func cpuTime(pid int) (time.Duration, error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil {
		return 0, err
	}
	var sum time.Duration
	for _, name := range files {
		content, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // that thread has ended
		}
		if err != nil {
			return 0, err
		}
		on, _, _ := strings.Cut(string(content), " ")
		ns, err := strconv.ParseInt(on, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", name, err)
		}
		sum += time.Duration(ns)
	}
	return sum, nil
}
