package ocispec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
)

func TestUpdateResourcesMerges(t *testing.T) {
	n := modernNode()
	start := &runtimeapi.LinuxContainerResources{
		CpuPeriod: 100000, CpuQuota: 50000, CpuShares: 512, CpusetCpus: "0-1", CpusetMems: "0",
		MemoryLimitInBytes: 64 << 20, MemorySwapLimitInBytes: 64 << 20,
		HugepageLimits: []*runtimeapi.HugepageLimit{{PageSize: "2MB", Limit: 1}, {PageSize: "1GB", Limit: 2}},
		Unified:        map[string]string{"memory.high": "1", "memory.low": "2"},
	}
	current := test.Value(UpdateResources(&specs.LinuxResources{Pids: &specs.LinuxPids{Limit: new(int64(9))}}, start, n))(t)
	before := test.Value(json.Marshal(current))(t)
	for name, c := range map[string]struct {
		req    *runtimeapi.LinuxContainerResources
		change func(*runtimeapi.LinuxContainerResources)
	}{
		"nothing":     {nil, func(*runtimeapi.LinuxContainerResources) {}},
		"zeros":       {&runtimeapi.LinuxContainerResources{}, func(*runtimeapi.LinuxContainerResources) {}},
		"cpu manager": {&runtimeapi.LinuxContainerResources{CpusetCpus: "3"}, func(r *runtimeapi.LinuxContainerResources) { r.CpusetCpus = "3" }},
		"cpu":         {&runtimeapi.LinuxContainerResources{CpuQuota: -1, CpuShares: 2}, func(r *runtimeapi.LinuxContainerResources) { r.CpuQuota, r.CpuShares = -1, 2 }},
		"memory keeps swap off": {&runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 1 << 30}, func(r *runtimeapi.LinuxContainerResources) {
			r.MemoryLimitInBytes, r.MemorySwapLimitInBytes = 1<<30, 1<<30
		}},
		"swap alone": {&runtimeapi.LinuxContainerResources{MemorySwapLimitInBytes: 1 << 31}, func(r *runtimeapi.LinuxContainerResources) { r.MemorySwapLimitInBytes = 1 << 31 }},
		"one huge page size": {&runtimeapi.LinuxContainerResources{HugepageLimits: []*runtimeapi.HugepageLimit{{PageSize: "1GB", Limit: 5}}}, func(r *runtimeapi.LinuxContainerResources) {
			r.HugepageLimits[1].Limit = 5
		}},
		"one unified key": {&runtimeapi.LinuxContainerResources{Unified: map[string]string{"memory.low": "7"}}, func(r *runtimeapi.LinuxContainerResources) {
			r.Unified["memory.low"] = "7"
		}},
	} {
		t.Run(name, func(t *testing.T) {
			got := test.Value(UpdateResources(current, c.req, n))(t)
			want := proto.Clone(start).(*runtimeapi.LinuxContainerResources)
			c.change(want)
			if status := ContainerResources(&specs.Spec{Linux: &specs.Linux{Resources: got}}).GetLinux(); !proto.Equal(status, want) {
				t.Errorf("got  %v\nwant %v", status, want)
			}
			if deref(got.Pids.Limit) != 9 {
				t.Error("a limit that the CRI does not have was removed")
			}
			if after, err := json.Marshal(current); err != nil || !bytes.Equal(after, before) {
				t.Fatalf("the current resources were changed: %v", err)
			}
		})
	}
}

func TestUpdateResourcesWithoutControllers(t *testing.T) {
	n := bareNode()
	req := &runtimeapi.LinuxContainerResources{
		MemoryLimitInBytes: 1 << 20, MemorySwapLimitInBytes: 1 << 21,
		HugepageLimits: []*runtimeapi.HugepageLimit{{PageSize: "2MB", Limit: 1}},
	}
	got, err := UpdateResources(nil, req, n)
	if err != nil || got.Memory.Swap != nil || got.HugepageLimits != nil {
		t.Errorf("got %+v, %v: swap and huge pages have no controller here", got, err)
	}
}

func TestContainerResources(t *testing.T) {
	c, n := testContainer(t), modernNode()
	s := test.Value(Build(c, n))(t)
	want := proto.Clone(c.Config.GetLinux().GetResources()).(*runtimeapi.LinuxContainerResources)
	want.MemorySwapLimitInBytes = want.GetMemoryLimitInBytes()
	if got := ContainerResources(s).GetLinux(); !proto.Equal(got, want) {
		t.Errorf("the status differs from the request:\ngot  %v\nwant %v", got, want)
	}
	for _, s := range []*specs.Spec{nil, {}, {Linux: &specs.Linux{}}} {
		if got := ContainerResources(s); got.GetLinux() == nil {
			t.Error("resources of a spec without any must not be nil")
		}
	}
}

func TestClampOOMScoreAdj(t *testing.T) {
	for _, c := range []struct {
		ask  int64
		low  int
		want int
	}{{-998, -1000, -998}, {-998, 0, 0}, {-998, -500, -500}, {500, 0, 500}, {5000, 0, 1000}, {-5000, -1000, -1000}} {
		test.Equal(t, fmt.Sprintf("%d with at least %d", c.ask, c.low), *clampOOMScoreAdj(c.ask, Node{MinOOMScoreAdj: c.low}), c.want)
	}
}
