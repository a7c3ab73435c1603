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
		{"the first sample has none", 0, cgroup.Known(1e9), cgroup.Value{}},
		{"nor has one too close to it", time.Millisecond, cgroup.Known(2e9), cgroup.Value{}},
		{"half a core for two seconds", 2 * time.Second, cgroup.Known(2e9), cgroup.Known(5e8)},
		{"too close: the last one stands", 2500 * time.Millisecond, cgroup.Known(9e9), cgroup.Known(5e8)},
		{"nothing was used", 4 * time.Second, cgroup.Known(2e9), cgroup.Known(0)},
		{"not told", 5 * time.Second, cgroup.Value{}, cgroup.Value{}},
		{"the sample before it counts", 6 * time.Second, cgroup.Known(6e9), cgroup.Known(2e9)},
		{"it began anew", 8 * time.Second, cgroup.Known(1e9), cgroup.Value{}},
		{"and goes on", 10 * time.Second, cgroup.Known(3e9), cgroup.Known(1e9)},
		{"no call for long", 20 * time.Minute, cgroup.Known(4e9), cgroup.Value{}},
		{"and the next", 20*time.Minute + 10*time.Second, cgroup.Known(5e9), cgroup.Known(1e8)},
	} {
		if got := r.Next(begin.Add(step.after), step.used); got != step.want {
			t.Errorf("%s: got %+v, want %+v", step.name, got, step.want)
		}
	}
}
