package validate

import (
	"strings"
	"testing"
	"unicode"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
)

// long is a value that would make a long message if it were repeated in full.
var long = strings.Repeat("é", 4000)

// checkRefused checks that a mistake is reported at its field, in the class and
// the shape that the package promises.
func checkRefused(t *testing.T, err error, field string) {
	t.Helper()
	if !errdefs.IsInvalidArgument(err) {
		t.Fatalf("got %v, want an invalid argument", err)
	}
	text := err.Error()
	if !strings.Contains(text, field+": ") {
		t.Errorf("%q does not name %s", text, field)
	}
	if !strings.Contains(text, "; ") {
		t.Errorf("%q does not advise what to do", text)
	}
	if len(text) > 1024 {
		t.Errorf("the message has %d bytes", len(text))
	}
	if strings.ContainsFunc(text, unicode.IsControl) {
		t.Errorf("%q has control characters", text)
	}
}

// sandboxRequest is what a kubelet sends for an ordinary pod.
func sandboxRequest() *runtimeapi.RunPodSandboxRequest {
	return &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: "web-0", Namespace: "shop", Uid: "5b3f7e7c-2a4b-4a55-9d59-5e2f34a4f6a1", Attempt: 1},
		Hostname:     "web-0",
		LogDirectory: "/var/log/pods/shop_web-0_5b3f7e7c",
		DnsConfig: &runtimeapi.DNSConfig{
			Servers: []string{"10.96.0.10"}, Searches: []string{"shop.svc.cluster.local", "."}, Options: []string{"ndots:5"},
		},
		PortMappings: []*runtimeapi.PortMapping{
			{Protocol: runtimeapi.Protocol_TCP, ContainerPort: 80},
			{Protocol: runtimeapi.Protocol_UDP, ContainerPort: 53, HostPort: 5353, HostIp: "::1"},
		},
		Labels: map[string]string{"io.kubernetes.pod.name": "web-0"},
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			CgroupParent: "/kubepods/burstable/pod5b3f7e7c",
			Sysctls:      map[string]string{"net.ipv4.ip_local_port_range": "1024 65535", "kernel/shmmax": "1"},
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
				NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
				RunAsUser:        &runtimeapi.Int64Value{Value: 1000}, RunAsGroup: &runtimeapi.Int64Value{Value: 1000},
				SupplementalGroups: []int64{2000},
				Seccomp:            &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
			},
		},
	}}
}

// containerRequest is what a kubelet sends for an ordinary container of that pod.
func containerRequest() *runtimeapi.CreateContainerRequest {
	return &runtimeapi.CreateContainerRequest{
		PodSandboxId:  strings.Repeat("0a", 32),
		SandboxConfig: sandboxRequest().GetConfig(),
		Config: &runtimeapi.ContainerConfig{
			Metadata:   &runtimeapi.ContainerMetadata{Name: "nginx"},
			Image:      &runtimeapi.ImageSpec{Image: "sha256:" + strings.Repeat("b", 64)},
			Command:    []string{"/bin/sh", "-c", "echo $X\n"},
			WorkingDir: "/srv",
			Envs:       []*runtimeapi.KeyValue{{Key: "X", Value: []byte{0xff, '='}}, {Key: "my.key-1"}},
			LogPath:    "nginx/0.log",
			Mounts: []*runtimeapi.Mount{
				{ContainerPath: "/etc/hosts", HostPath: "/var/lib/kubelet/pods/1/etc-hosts"},
				{ContainerPath: "/data", HostPath: "/srv/data", Readonly: true, RecursiveReadOnly: true, MountOptions: []string{"noexec", "nodev"}, ImageSubPath: "sub"},
				{ContainerPath: "/model", Image: &runtimeapi.ImageSpec{Image: "registry.test/models/a:1"}, ImageSubPath: "weights", Readonly: true},
			},
			Devices:    []*runtimeapi.Device{{HostPath: "/dev/fuse", ContainerPath: "/dev/fuse", Permissions: "mrw"}},
			CDIDevices: []*runtimeapi.CDIDevice{{Name: "vendor.test/gpu=0"}},
			Linux: &runtimeapi.LinuxContainerConfig{
				Resources: &runtimeapi.LinuxContainerResources{
					CpuPeriod: 100000, CpuQuota: 20000, CpuShares: 2, MemoryLimitInBytes: 64 << 20, MemorySwapLimitInBytes: 64 << 20, OomScoreAdj: 1000,
					CpusetCpus: "0-3,8", CpusetMems: "0", HugepageLimits: []*runtimeapi.HugepageLimit{{PageSize: "2MB"}},
					Unified: map[string]string{"memory.high": "50M"},
				},
				SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
					NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
					RunAsUsername:    "www-data", RunAsGroup: &runtimeapi.Int64Value{Value: 33},
					Capabilities: &runtimeapi.Capability{AddCapabilities: []string{"NET_ADMIN"}, DropCapabilities: []string{"all"}},
					MaskedPaths:  []string{"/proc/kcore"}, ReadonlyPaths: []string{"/proc/sys"},
					Apparmor: &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: "localhost/web"},
				},
			},
		},
	}
}

func TestOrdinaryRequests(t *testing.T) {
	test.Checkf(t, RunPodSandbox(sandboxRequest()), "sandbox")
	test.Checkf(t, CreateContainer(containerRequest(), sandboxRequest().GetConfig()), "container")
}

// Clients may leave out all other fields.
func TestSmallestRequests(t *testing.T) {
	test.Checkf(t, RunPodSandbox(&runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: "a", Namespace: "b", Uid: "c"},
	}}), "sandbox")
	test.Checkf(t, CreateContainer(&runtimeapi.CreateContainerRequest{PodSandboxId: "1", Config: &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "a"}, Image: &runtimeapi.ImageSpec{Image: "busybox"},
	}}, nil), "container")
}

func TestEmptyRequests(t *testing.T) {
	for field, err := range map[string]error{
		"config":         RunPodSandbox(nil),
		"pod_sandbox_id": CreateContainer(nil, nil),
		"container_id":   UpdateContainerResources(nil),
		"cmd":            ExecSync(&runtimeapi.ExecSyncRequest{ContainerId: "1"}),
		"image":          PullImage(nil),
		"linux":          UpdateContainerResources(&runtimeapi.UpdateContainerResourcesRequest{ContainerId: "1"}),
	} {
		checkRefused(t, err, field)
	}
	checkRefused(t, Exec(nil), "container_id")
	checkRefused(t, Attach(nil), "container_id")
	checkRefused(t, PortForward(nil), "pod_sandbox_id")
	checkRefused(t, CreateContainer(&runtimeapi.CreateContainerRequest{PodSandboxId: "1"}, nil), "config")
}

func TestUpdateContainerResources(t *testing.T) {
	req := &runtimeapi.UpdateContainerResourcesRequest{ContainerId: "1", Linux: &runtimeapi.LinuxContainerResources{}}
	test.Checkf(t, UpdateContainerResources(req), "nothing to change")
	req.Linux.CpuPeriod = 1
	checkRefused(t, UpdateContainerResources(req), "linux.cpu_period")
}
