package ocispec

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/opencontainers/runtime-spec/specs-go/features"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/probe"
)

const (
	sandboxID   = "5a1d000000000000000000000000000000000000000000000000000000000001"
	containerID = "c0de000000000000000000000000000000000000000000000000000000000002"
)

// recorded returns a runtime with the features that pkg/probe recorded.
func recorded(t testing.TB, dir, name string) *probe.Runtime {
	t.Helper()
	rt := &probe.Runtime{Path: "/usr/bin/" + name, Name: name}
	b, err := os.ReadFile(filepath.Join("..", "..", "probe", "testdata", dir, "features.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return rt
	}
	test.Must(t, err)
	rt.Features = &features.Features{}
	test.Must(t, json.Unmarshal(b, rt.Features))
	return rt
}

func runc(t testing.TB) *probe.Runtime    { return recorded(t, "runc-1.5.2", probe.Runc) }
func oldCrun(t testing.TB) *probe.Runtime { return recorded(t, "crun-1.8.1", probe.Crun) }
func runsc(t testing.TB) *probe.Runtime   { return recorded(t, "runsc-2025", probe.Runsc) }

// modernNode has everything: cgroup v2, seccomp, AppArmor, SELinux.
func modernNode() Node {
	return Node{
		CgroupUnified: true, Seccomp: true, AppArmor: true, SELinux: true,
		MinOOMScoreAdj: -1000, HugetlbController: true, SwapController: true, KernelRRO: true,
		UnprivilegedPorts: true, UnprivilegedICMP: true,
		CgroupMountOptions: []string{"nsdelegate", "memory_recursiveprot"},
		Hostname:           "node-1",
		HostDevices: func() ([]specs.LinuxDevice, error) {
			return []specs.LinuxDevice{device("/dev/sda", "b", 8, 0), device("/dev/fuse", "c", 10, 229)}, nil
		},
		Devices: func(host, container string) ([]specs.LinuxDevice, error) {
			switch host {
			case "/dev/fuse":
				return []specs.LinuxDevice{device(container, "c", 10, 229)}, nil
			case "/dev/dri":
				return []specs.LinuxDevice{device(container+"/card0", "c", 226, 0), device(container+"/renderD128", "c", 226, 128)}, nil
			}
			return nil, &fs.PathError{Op: "stat", Path: host, Err: fs.ErrNotExist}
		},
		ResolvePath: func(p string) (string, error) {
			switch p {
			case "/data/link":
				return "/data/target", nil
			case "/dev/link":
				return "/dev/fuse", nil
			case "/data/loop":
				return "", errors.New("too many links")
			}
			return filepath.Clean(p), nil
		},
		ReadFile: func(p string) ([]byte, error) {
			if b, ok := seccompFiles[p]; ok {
				return []byte(b), nil
			}
			return nil, &fs.PathError{Op: "open", Path: p, Err: fs.ErrNotExist}
		},
		AppArmorLoaded: func(name string) (bool, error) { return name == "k8s-nginx", nil },
	}
}

// bareNode is the opposite of modernNode: cgroup v1 and nothing else, without CAP_SYS_RESOURCE.
func bareNode() Node {
	return Node{
		MinOOMScoreAdj: 0,
		Hostname:       "node-2",
		Capabilities:   without(knownCapabilities, []string{"CAP_SYS_RESOURCE"}),
		ResolvePath:    func(p string) (string, error) { return filepath.Clean(p), nil },
	}
}

var seccompFiles = map[string]string{
	"/profiles/audit.json":   `{"defaultAction":"SCMP_ACT_LOG","architectures":["SCMP_ARCH_X86_64"],"syscalls":[{"names":["mkdir"],"action":"SCMP_ACT_ERRNO"}]}`,
	"/profiles/docker.json":  `{"defaultAction":"SCMP_ACT_ERRNO","syscalls":[{"names":["read"],"action":"SCMP_ACT_ALLOW","includes":{"users":["root"]}}]}`,
	"/profiles/broken.json":  `{"defaultAction":`,
	"/profiles/two.json":     `{"defaultAction":"SCMP_ACT_LOG"}{}`,
	"/profiles/nothing.json": `{}`,
	"/profiles/flags.json":   `{"defaultAction":"SCMP_ACT_LOG","flags":["SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV"]}`,
}

func device(path, kind string, major, minor int64) specs.LinuxDevice {
	mode := os.FileMode(0o660)
	return specs.LinuxDevice{Path: path, Type: kind, Major: major, Minor: minor, FileMode: &mode, UID: new(uint32(0)), GID: new(uint32(6))}
}

// podConfig is what a kubelet sends for an ordinary pod.
func podConfig() *runtimeapi.PodSandboxConfig {
	return &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: "web", Namespace: "shop", Uid: "11111111-2222-3333-4444-555555555555"},
		Hostname:     "web",
		LogDirectory: "/var/log/pods/shop_web_1111",
		Annotations:  map[string]string{"team": "blue", "io.example/pod": "p", "secret": "s"},
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			CgroupParent: "/kubepods/pod1",
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
				NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
				Seccomp:          &runtimeapi.SecurityProfile{},
			},
		},
	}
}

func testSandbox() Sandbox {
	const dir = "/run/berth/sandboxes/" + sandboxID
	return Sandbox{
		ID: sandboxID, Config: podConfig(), Definition: &handler.Definition{Name: "test", Type: handler.OCI},
		NetNS: dir + "/ns/net", IPCNS: dir + "/ns/ipc", UTSNS: dir + "/ns/uts",
		Hostname: "web", HostsPath: dir + "/hosts", HostnamePath: dir + "/hostname",
		ResolvConfPath: dir + "/resolv.conf", ShmPath: dir + "/shm",
	}
}

// testContainer is what a kubelet sends for an ordinary container.
func testContainer(t testing.TB) Container {
	return Container{
		ID: containerID, Name: "nginx", Sandbox: testSandbox(), Runtime: runc(t),
		ImageName: "docker.io/library/nginx:1.27", ImageID: "sha256:abc",
		Image: imagespec.ImageConfig{
			Entrypoint: []string{"/entrypoint.sh"}, Cmd: []string{"nginx"}, WorkingDir: "/srv",
			Env: []string{"PATH=/opt/bin:/bin", "LANG=C", "NOTVAR"},
		},
		User:        User{UID: 101, GID: 101, AdditionalGids: []uint32{101, 2000}, Username: "nginx"},
		CgroupsPath: "kubepods-pod1.slice:berth:" + containerID,
		Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "nginx"},
			Envs:     []*runtimeapi.KeyValue{{Key: "LANG", Value: []byte("C.UTF-8")}, {Key: "MODE", Value: []byte("a=b")}},
			Mounts: []*runtimeapi.Mount{
				{ContainerPath: "/etc/hosts", HostPath: "/var/lib/kubelet/pods/1/etc-hosts"},
				{ContainerPath: "/dev/termination-log", HostPath: "/var/lib/kubelet/pods/1/containers/nginx/0"},
			},
			Annotations: map[string]string{"io.example/container": "c", "io.kubernetes.cri.sandbox-id": "forged"},
			Linux: &runtimeapi.LinuxContainerConfig{
				Resources: &runtimeapi.LinuxContainerResources{
					CpuPeriod: 100000, CpuQuota: 50000, CpuShares: 512, MemoryLimitInBytes: 64 << 20, OomScoreAdj: 992,
					HugepageLimits: []*runtimeapi.HugepageLimit{{PageSize: "2MB"}},
					Unified:        map[string]string{"memory.oom.group": "1"},
				},
				SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
					NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
					MaskedPaths:      []string{"/proc/kcore", "/proc/keys"},
					ReadonlyPaths:    []string{"/proc/sys"},
					Seccomp:          &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined},
				},
			},
		},
	}
}

// security returns the security context, which most situations change.
func (c Container) security() *runtimeapi.LinuxContainerSecurityContext {
	return c.Config.GetLinux().GetSecurityContext()
}

func (c Container) podSecurity() *runtimeapi.LinuxSandboxSecurityContext {
	return c.Sandbox.Config.GetLinux().GetSecurityContext()
}

func (c *Container) mount(m ...*runtimeapi.Mount) { c.Config.Mounts = append(c.Config.Mounts, m...) }

// mapped returns the options of a pod with a user namespace.
func mapped(host, length uint32) *runtimeapi.UserNamespace {
	return &runtimeapi.UserNamespace{
		Mode: runtimeapi.NamespaceMode_POD,
		Uids: []*runtimeapi.IDMapping{{HostId: host, Length: length}}, Gids: []*runtimeapi.IDMapping{{HostId: host * 2, Length: length}},
	}
}

// inUserNS puts the container into a pod with a user namespace.
func inUserNS(c *Container, length uint32) {
	c.podSecurity().NamespaceOptions.UsernsOptions = mapped(100000, length)
	c.security().NamespaceOptions.UsernsOptions = mapped(100000, length)
	c.Sandbox.UserNS = "/run/berth/sandboxes/" + sandboxID + "/ns/user"
}
