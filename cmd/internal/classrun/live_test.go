package classrun

import (
	"testing"

	"github.com/berth-cri/berth/pkg/probe/capability"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

// What the daemon says of a handler is taken as it is.
func TestHandlersAsTheDaemonKnowsThem(t *testing.T) {
	h := handlerOf(&adminv1.GetHandlerResponse{Handler: &adminv1.Handler{
		Name: "x", IsDefault: true, State: adminv1.State_STATE_NOT_READY, Reason: "it is gone",
		Capabilities: &adminv1.Capabilities{
			Isolation: "user-space-kernel", IsolationSource: "declared", SeccompActions: []string{"SCMP_ACT_ALLOW"},
			Capabilities: []*adminv1.Capability{{Name: "exec", Answer: "yes", Source: "ran"}, {Name: "sysctls", Answer: "no", Source: "declared", Note: "left out"}},
		},
	}})
	if h.Name != "x" || !h.Default || h.State != "not-ready" || h.Reason != "it is gone" {
		t.Errorf("got %+v", h)
	}
	if h.Isolation != capability.UserSpaceKernel || h.IsolationSource != capability.Declared || len(h.SeccompActions) != 1 {
		t.Errorf("got %+v", h.Table)
	}
	for n, want := range map[capability.Name]capability.Known{
		capability.Exec:    {Answer: capability.Yes, Source: capability.Ran},
		capability.Sysctls: {Answer: capability.No, Source: capability.Declared, Note: "left out"},
		capability.HostPID: {Answer: capability.Unknown},
	} {
		if got := h.Of(n); got != want {
			t.Errorf("%s is %+v", n, got)
		}
	}
	if err := h.Table.Validate(); err != nil {
		t.Error(err)
	}
	if h := handlerOf(&adminv1.GetHandlerResponse{Handler: &adminv1.Handler{Name: "new"}}); !h.Table.Empty() {
		t.Errorf("of a handler that was not asked: %+v", h.Table)
	}
}

func TestMeasuredOverhead(t *testing.T) {
	if got := handlerOf(&adminv1.GetHandlerResponse{}).Overhead; got != nil {
		t.Errorf("without data it is %+v", got)
	}
	d := func(p50, p95, most uint64) *adminv1.OverheadDistribution {
		return &adminv1.OverheadDistribution{P50: p50, P95: p95, Max: most}
	}
	h := handlerOf(&adminv1.GetHandlerResponse{Overhead: &adminv1.Overhead{
		Best: &adminv1.OverheadEstimate{Pods: 3, MemoryBytes: d(1<<20, 5<<19, 3<<20), CpuNanocores: d(1, 2_500_000, 3_000_000)},
	}})
	m := h.Overhead
	if m.Pods != 3 || m.Memory.P50.String() != "1Mi" || m.Memory.P95.Value() != 5<<19 || m.CPU.P95.MilliValue() != 3 || m.CPU.Max.String() != "3m" {
		t.Errorf("got %+v", m)
	}
}
