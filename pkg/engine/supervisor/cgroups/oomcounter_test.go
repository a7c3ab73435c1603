package cgroups

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/supervisor/processes"
)

// What systemd removes as soon as it is empty is gone when it is read.
func TestCounterOfARemovedCgroup(t *testing.T) {
	p := test.Value(processes.New())(t)
	kills := uint64(0)
	logged := func() uint64 { return kills }
	// The kernel answers a read of a removed cgroup's file by an error, as it does
	// one of a directory.
	o := &OOMCounter{processes: p, logged: logged}
	test.Must(t, o.open(t.TempDir()))
	never := CountOOM(t.Context(), p, Cgroup{Unified: filepath.Join(t.TempDir(), "gone")}, logged)
	nowhere := CountOOM(t.Context(), p, Cgroup{}, logged)
	for name, o := range map[string]*OOMCounter{"read too late": o, "opened too late": never, "found too late": nowhere} {
		kills = 0
		if o.Killed() {
			t.Errorf("%s: a kill before any", name)
		}
		kills = 1
		if !o.Killed() {
			t.Errorf("%s: the kill is not seen", name)
		}
		o.Close()
		kills = 2
		if o.Count() != 1 {
			t.Errorf("%s: a closed counter counts on", name)
		}
	}
	if o := CountOOM(t.Context(), p, Cgroup{}, nil); o.Killed() {
		t.Error("nothing to count by has seen a kill")
	}
	// One that can be read is believed.
	file := filepath.Join(t.TempDir(), "memory.events")
	test.Must(t, os.WriteFile(file, []byte("max 7\noom_kill 0\n"), 0o600))
	o = &OOMCounter{processes: p, logged: logged}
	test.Must(t, o.open(file))
	if o.Killed() {
		t.Error("the log is asked although the counter can be read")
	}
	o.Close()
}
