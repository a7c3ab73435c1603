package container

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/enginetest"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/handler"
)

// If the runtime does not respond, the roll-back still restores the spec, and ends when
// its context does.
func TestFailedUpdateLeavesTheOldSpec(t *testing.T) {
	k := enginetest.NewUnresponsive(t)
	c := k.Container(t, handler.Definition{ContainerCreateTimeout: time.Second})
	limit := func(n int64) *specs.LinuxResources {
		return &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &n}}
	}
	spec := &specs.Spec{Linux: &specs.Linux{Resources: limit(1)}}
	u := &pod.Undo{}
	if err := (&Resources{k.Pods, k.Tasks, k.Settings}).setResources(t.Context(), u, c, spec, limit(2)); err == nil || !strings.Contains(err.Error(), context.DeadlineExceeded.Error()) {
		t.Fatalf("the update failed with %v, want a timeout", err)
	}
	holds := func(want int64) {
		t.Helper()
		now := test.Value(pod.ReadSpec(k.Pods.ContainerDir(c.ID())))(t)
		test.Equal(t, "the memory limit of the spec", *now.Linux.Resources.Memory.Limit, want)
	}
	holds(2)
	test.Fails(t, u.Run(), "the roll-back succeeded although the runtime does not respond")
	holds(1)
	over, end := context.WithCancel(t.Context())
	end()
	var failed error
	for _, s := range u.Steps {
		failed = errors.Join(failed, s.Back(over))
	}
	test.Says(t, failed, context.Canceled.Error())
}
