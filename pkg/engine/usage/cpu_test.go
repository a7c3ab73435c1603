package usage

import (
	"testing"
	"time"

	"github.com/berth-cri/berth/pkg/engine/cgroup"
)

func TestCPURate(t *testing.T) {
	begin := time.Now()
	var r CPURate
	for _, step := range []struct {
		name  string
		after time.Duration // since begin
		used  cgroup.Value
		want  cgroup.Value
	}{
		{"the first sample gives no rate", 0, cgroup.Known(1e9), cgroup.Value{}},
		{"a sample too close to the first gives no rate", time.Millisecond, cgroup.Known(2e9), cgroup.Value{}},
		{"half a core for two seconds", 2 * time.Second, cgroup.Known(2e9), cgroup.Known(5e8)},
		{"a sample too close keeps the last rate", 2500 * time.Millisecond, cgroup.Known(9e9), cgroup.Known(5e8)},
		{"nothing was used", 4 * time.Second, cgroup.Known(2e9), cgroup.Known(0)},
		{"unknown usage", 5 * time.Second, cgroup.Value{}, cgroup.Value{}},
		{"the rate since the last known usage", 6 * time.Second, cgroup.Known(6e9), cgroup.Known(2e9)},
		{"the counter started again", 8 * time.Second, cgroup.Known(1e9), cgroup.Value{}},
		{"the counter continues", 10 * time.Second, cgroup.Known(3e9), cgroup.Known(1e9)},
		{"no call for a long time", 20 * time.Minute, cgroup.Known(4e9), cgroup.Value{}},
		{"the call after that", 20*time.Minute + 10*time.Second, cgroup.Known(5e9), cgroup.Known(1e8)},
	} {
		if got := r.Next(begin.Add(step.after), step.used); got != step.want {
			t.Errorf("%s: got %+v, want %+v", step.name, got, step.want)
		}
	}
}
