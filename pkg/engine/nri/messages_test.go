package nri

import (
	"errors"
	"slices"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/nri/pkg/api"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
)

func TestPodMessage(t *testing.T) {
	labels := map[string]string{"app": "web"}
	m := Pod{
		ID: "id", Handler: "runc", PID: 7, IPs: []string{"10.0.0.1", "fd00::1"}, NetNS: "/ns/net", UTSNS: "/ns/uts",
		Config: &runtimeapi.PodSandboxConfig{
			Metadata: &runtimeapi.PodSandboxMetadata{Name: "web", Namespace: "default", Uid: "u-1"}, Labels: labels,
			Linux: &runtimeapi.LinuxPodSandboxConfig{CgroupParent: "/kubepods"},
		},
		Resources: &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 5},
	}.message()
	want := &api.PodSandbox{
		Id: "id", Name: "web", Namespace: "default", Uid: "u-1", Labels: labels, RuntimeHandler: "runc", Pid: 7, Ips: []string{"10.0.0.1", "fd00::1"},
		Linux: &api.LinuxPodSandbox{
			CgroupParent: "/kubepods", PodResources: &api.LinuxResources{Cpu: &api.LinuxCPU{}, Memory: &api.LinuxMemory{Limit: api.Int64(int64(5))}},
			Namespaces: []*api.LinuxNamespace{{Type: "network", Path: "/ns/net"}, {Type: "uts", Path: "/ns/uts"}},
		},
	}
	if !proto.Equal(m, want) {
		t.Errorf("got  %v\nwant %v", m, want)
	}
	m.Labels["app"] = "changed"
	if labels["app"] != "web" {
		t.Error("a plugin's answer can change the record")
	}
}

func spec() *specs.Spec {
	adj, pids := 5, int64(100)
	return &specs.Spec{
		Process: &specs.Process{
			Args: []string{"sleep"}, Env: []string{"PATH=/bin", "GONE=1"}, OOMScoreAdj: &adj,
			User:    specs.User{UID: 1, GID: 2, AdditionalGids: []uint32{3}},
			Rlimits: []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 1, Hard: 2}},
		},
		Mounts:      []specs.Mount{{Destination: "/proc", Type: "proc", Source: "proc"}},
		Annotations: map[string]string{"both": "spec", "spec": "1"},
		Linux: &specs.Linux{
			CgroupsPath: "/kubepods/ctr",
			Namespaces:  []specs.LinuxNamespace{{Type: specs.PIDNamespace}},
			Resources:   &specs.LinuxResources{Pids: &specs.LinuxPids{Limit: &pids}},
			Sysctl:      map[string]string{"a": "b"},
			Seccomp:     &specs.LinuxSeccomp{DefaultAction: specs.ActAllow},
		},
	}
}

func TestContainerMessage(t *testing.T) {
	m := Container{
		ID: "c", Sandbox: "s", Spec: spec(), State: State(runtimeapi.ContainerState_CONTAINER_RUNNING), PID: 9, StartedAt: 4,
		ImageName: "busybox:1", ImageDigest: "sha256:aa", ImageID: "sha256:bb",
		Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "main"}, Annotations: map[string]string{"both": "cri"},
			CDIDevices: []*runtimeapi.CDIDevice{{Name: "vendor.com/gpu=0"}},
		},
	}.message()
	for name, ok := range map[string]bool{
		"identity":    m.Id == "c" && m.PodSandboxId == "s" && m.Name == "main",
		"state":       m.State == api.ContainerState_CONTAINER_RUNNING && m.Pid == 9 && m.StartedAt == 4,
		"annotations": m.Annotations["both"] == "cri" && m.Annotations["spec"] == "1",
		"process":     slices.Equal(m.Args, []string{"sleep"}) && m.Env[0] == "PATH=/bin" && m.User.Uid == 1 && m.User.AdditionalGids[0] == 3,
		"rlimits":     m.Rlimits[0].Type == "RLIMIT_NOFILE" && m.Rlimits[0].Hard == 2,
		"oom":         m.Linux.OomScoreAdj.GetValue() == 5,
		"resources":   m.Linux.Resources.Pids.GetLimit() == 100 && m.Linux.CgroupsPath == "/kubepods/ctr",
		"namespaces":  m.Linux.Namespaces[0].Type == "pid" && m.Mounts[0].Destination == "/proc" && m.Linux.Sysctl["a"] == "b",
		"seccomp":     m.Linux.SeccompPolicy.GetDefaultAction() == "SCMP_ACT_ALLOW",
		"image":       m.Image.Name == "busybox:1" && m.Image.Digest == "sha256:aa" && m.Image.ConfigDigest == "sha256:bb",
		"devices":     m.CDIDevices[0].Name == "vendor.com/gpu=0",
	} {
		if !ok {
			t.Errorf("%s: got %v", name, m)
		}
	}
	if got := (Container{ID: "c"}).message(); got.Id != "c" || got.Image != nil {
		t.Errorf("a container whose spec cannot be read: %v", got)
	}
}

func TestResourcesThereAndBack(t *testing.T) {
	want := &runtimeapi.LinuxContainerResources{
		CpuShares: 2, CpuQuota: -1, CpuPeriod: 3, CpusetCpus: "0-1", CpusetMems: "0", MemoryLimitInBytes: 4, MemorySwapLimitInBytes: 5,
		HugepageLimits: []*runtimeapi.HugepageLimit{{PageSize: "2MB", Limit: 6}}, Unified: map[string]string{"memory.high": "7"},
	}
	if got := ToCRI(fromCRI(want)); !proto.Equal(got, want) {
		t.Errorf("got %v", got)
	}
	if r := fromCRI(&runtimeapi.LinuxContainerResources{}); r.Cpu.Quota != nil || r.Cpu.Shares != nil || r.Memory.Limit != nil {
		t.Errorf("a resource that the CRI does not set got a value: %v", r)
	}
	if fromCRI(nil) != nil || ToCRI(nil) != nil || Pids(nil) != nil {
		t.Error("nil was converted to a value")
	}
	for limit, want := range map[int64]int64{5: 5, -1: -1, -7: -1} {
		if got := Pids(&api.LinuxResources{Pids: &api.LinuxPids{Limit: limit}}); got == nil || *got != want {
			t.Errorf("pids %d: got %v", limit, got)
		}
	}
}

func TestAdjust(t *testing.T) {
	a := &api.ContainerAdjustment{}
	a.AddEnv("NEW", "1")
	a.RemoveEnv("GONE")
	a.AddAnnotation("note", "x")
	a.AddMount(&api.Mount{Destination: "/data", Source: "/srv", Type: "bind", Options: []string{"bind", "ro"}})
	a.AddDevice(&api.LinuxDevice{Path: "/dev/null2", Type: "c", Major: 1, Minor: 3})
	a.AddRlimit("RLIMIT_NOFILE", 20, 10)
	a.SetLinuxMemoryLimit(1 << 20)
	a.SetLinuxPidLimits(9)
	a.SetLinuxRDTClass("gold")
	a.SetLinuxCgroupsPath("/kubepods/ctr") // the present path
	a.AddCDIDevice(&api.CDIDevice{Name: "vendor.com/gpu=0"})
	var injected []string
	s := spec()
	test.Must(t, Adjust(s, a, func(_ *specs.Spec, names []string) error { injected = names; return nil }))
	for name, ok := range map[string]bool{
		"env":        slices.Equal(s.Process.Env, []string{"PATH=/bin", "NEW=1"}),
		"annotation": s.Annotations["note"] == "x" && s.Annotations["spec"] == "1",
		"mount":      len(s.Mounts) == 2 && s.Mounts[0].Destination == "/data",
		"device":     s.Linux.Devices[0].Path == "/dev/null2" && len(s.Linux.Resources.Devices) == 1 && s.Linux.Resources.Devices[0].Allow,
		"rlimit":     len(s.Process.Rlimits) == 1 && s.Process.Rlimits[0] == specs.POSIXRlimit{Type: "RLIMIT_NOFILE", Soft: 10, Hard: 20},
		"memory":     *s.Linux.Resources.Memory.Limit == 1<<20,
		"pids":       *s.Linux.Resources.Pids.Limit == 9,
		"rdt":        s.Linux.IntelRdt.ClosID == "gold",
		"cdi":        slices.Equal(injected, []string{"vendor.com/gpu=0"}),
	} {
		if !ok {
			t.Errorf("%s: got %+v, linux %+v, process %+v", name, s, s.Linux, s.Process)
		}
	}
}

func TestAdjustRefuses(t *testing.T) {
	moved, class, cdi := &api.ContainerAdjustment{}, &api.ContainerAdjustment{}, &api.ContainerAdjustment{}
	moved.SetLinuxCgroupsPath("/elsewhere")
	class.SetLinuxBlockIOClass("slow")
	cdi.AddCDIDevice(&api.CDIDevice{Name: "vendor.com/gpu=9"})
	none := func(*specs.Spec, []string) error { return errors.New("no such device") }
	for word, a := range map[string]*api.ContainerAdjustment{"/elsewhere": moved, "slow": class, "no such device": cdi} {
		test.Refused(t, Adjust(spec(), a, none), errdefs.IsFailedPrecondition, word)
	}
	test.Checkf(t, Adjust(spec(), nil, none), "without an adjustment")
}
