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

// A runtime that takes back nothing must not keep the spec from being put back,
// nor hold up the roll-back past its time.
func TestFailedUpdateLeavesTheOldSpec(t *testing.T) {
	k := enginetest.NewUnresponsive(t)
	c := k.Container(t, handler.Definition{ContainerCreateTimeout: time.Second})
	limit := func(n int64) *specs.LinuxResources {
		return &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &n}}
	}
	spec := &specs.Spec{Linux: &specs.Linux{Resources: limit(1)}}
	u := &pod.Undo{}
	if err := (&Resources{k.Pods, k.Tasks, k.Settings}).setResources(t.Context(), u, c, spec, limit(2)); err == nil || !strings.Contains(err.Error(), context.DeadlineExceeded.Error()) {
		t.Fatalf("the update: %v", err)
	}
	holds := func(want int64) {
		t.Helper()
		now := test.Value(pod.ReadSpec(k.Pods.ContainerDir(c.ID())))(t)
		test.Equal(t, "the spec has", *now.Linux.Resources.Memory.Limit, want)
	}
	holds(2)
	test.Fails(t, u.Run(), "a deaf runtime put the limits back")
	holds(1)
	over, end := context.WithCancel(t.Context())
	end()
	var failed error
	for _, s := range u.Steps {
		failed = errors.Join(failed, s.Back(over))
	}
	test.Says(t, failed, context.Canceled.Error())
}
