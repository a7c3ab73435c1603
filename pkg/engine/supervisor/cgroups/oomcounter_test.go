package cgroups

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/supervisor/processes"
)

// systemd removes a cgroup as soon as it is empty, before its counter is read. OOM kills are then
// counted in the kernel's log.
func TestCounterOfARemovedCgroup(t *testing.T) {
	p := test.Value(processes.New())(t)
	kills := uint64(0)
	logged := func() uint64 { return kills }
	// A read of a directory fails, as does a read of a removed cgroup's file.
	o := &OOMCounter{processes: p, logged: logged}
	test.Must(t, o.open(t.TempDir()))
	never := CountOOM(t.Context(), p, Cgroup{Unified: filepath.Join(t.TempDir(), "gone")}, logged)
	nowhere := CountOOM(t.Context(), p, Cgroup{}, logged)
	for name, o := range map[string]*OOMCounter{"read too late": o, "opened too late": never, "found too late": nowhere} {
		kills = 0
		if o.Killed() {
			t.Errorf("%s: Killed is true before any kill", name)
		}
		kills = 1
		if !o.Killed() {
			t.Errorf("%s: Killed is false after a kill", name)
		}
		o.Close()
		kills = 2
		if o.Count() != 1 {
			t.Errorf("%s: a closed counter counts %d kills, want 1", name, o.Count())
		}
	}
	if o := CountOOM(t.Context(), p, Cgroup{}, nil); o.Killed() {
		t.Error("Killed is true without a cgroup and without a log")
	}
	// The log is not used if the cgroup's counter can be read.
	file := filepath.Join(t.TempDir(), "memory.events")
	test.Must(t, os.WriteFile(file, []byte("max 7\noom_kill 0\n"), 0o600))
	o = &OOMCounter{processes: p, logged: logged}
	test.Must(t, o.open(file))
	if o.Killed() {
		t.Error("Killed uses the log although the counter can be read")
	}
	o.Close()
}
