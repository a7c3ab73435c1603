package task

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	tasktypes "github.com/containerd/containerd/api/types/task"

	"github.com/berth-cri/berth/internal/test"
)

func TestStateOfTask(t *testing.T) {
	const created, running, stopped = tasktypes.Status_CREATED, tasktypes.Status_RUNNING, tasktypes.Status_STOPPED
	for name, c := range map[string]struct {
		journal string // empty for a foreign shim
		answer  tasktypes.Status
		want    State
	}{
		"never started":               {"created", created, Unstarted},
		"being started":               {"starting", created, Starting},
		"ran after the answer":        {"running", created, Starting},
		"runs":                        {"running", running, Started},
		"is paused":                   {"running", tasktypes.Status_PAUSED, Started},
		"has run":                     {"running", stopped, Started},
		"did not start":               {"starting", stopped, Failed},
		"foreign, created":            {"", created, Unstarted},
		"foreign, running":            {"", running, Started},
		"foreign, stopped":            {"", stopped, Started},
		"created, journal unreadable": {"?", created, Unstarted},
		"runs, journal unreadable":    {"?", running, Started},
	} {
		t.Run(name, func(t *testing.T) {
			dir := ""
			if c.journal != "" {
				dir = t.TempDir()
				task := filepath.Join(dir, "tasks", "one")
				test.Must(t, os.MkdirAll(task, 0o700))
				text := fmt.Sprintf(`{"format":1,"id":"one","state":%q}`, c.journal)
				if c.journal == "?" {
					text = "{"
				}
				test.Must(t, os.WriteFile(filepath.Join(task, "task.json"), []byte(text), 0o600))
			}
			test.Equal(t, "the state", stateOf(dir, &taskapi.StateResponse{ID: "one", Status: c.answer}), c.want)
		})
	}
}
