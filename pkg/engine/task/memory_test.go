package task

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/cgroup"
	"github.com/berth-cri/berth/pkg/handler"
)

// If a pod hits its memory limit during a start, the error names the limit and is not attributed
// to the runtime. Hits before the start do not count.
func TestMemoryExplains(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"memory.events.local": "low 0\nhigh 0\nmax 3\noom 1\noom_kill 1\n", "memory.max": "25165824\n", "memory.current": "1\n"} {
		test.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	broken := errors.New("connection refused")
	before := PodMemory{paths: cgroup.Paths{Unified: dir}, hits: 2}
	err := before.Explain(broken)
	if !errors.Is(err, broken) || !strings.Contains(err.Error(), "memory limit of 24Mi") || handler.IsRuntimeFault((&supervised{}).Attribute(err)) {
		t.Errorf("after a hit: %v, attributed to the runtime: %v", err, handler.IsRuntimeFault((&supervised{}).Attribute(err)))
	}
	for name, m := range map[string]PodMemory{
		"an earlier hit": {paths: cgroup.Paths{Unified: dir}, hits: 3}, "no limit": {}, "a cgroup that is gone": {paths: cgroup.Paths{Unified: dir + "/gone"}},
	} {
		if got := m.Explain(broken); !errors.Is(broken, got) {
			t.Errorf("%s: %v", name, got)
		}
	}
	test.Checkf(t, before.Explain(nil), "a start that succeeded")
}
