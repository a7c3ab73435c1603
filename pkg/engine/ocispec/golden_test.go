package ocispec

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/handler"
)

var update = flag.Bool("update", false, "write the golden files anew; read the difference before you commit it")

// golden compares a spec with its file. The default seccomp filter differs
// between architectures and kernels, so the file records only that there is one.
func golden(t *testing.T, name string, s *specs.Spec) {
	t.Helper()
	shown := *s
	if s.Linux.Seccomp != nil && s.Process.Capabilities != nil && reflect.DeepEqual(s.Linux.Seccomp, defaultSeccomp(s.Process.Capabilities.Bounding)) {
		l := *s.Linux
		l.Seccomp = &specs.LinuxSeccomp{DefaultAction: "the default filter"}
		shown.Linux = &l
	}
	got := test.Value(json.MarshalIndent(shown, "", "  "))(t)
	got = append(got, '\n')
	file := filepath.Join("testdata", name+".json")
	if *update {
		test.Must(t, os.WriteFile(file, got, 0o644))
		return
	}
	want := test.Value(os.ReadFile(file))(t)
	if !bytes.Equal(got, want) {
		t.Errorf("the spec differs from %s (run with -update and read git diff)\n%s", file, got)
	}
}

func TestContainerSpecs(t *testing.T) {
	for name, situation := range map[string]func(*Container, *Node){
		"plain": func(*Container, *Node) {},
		"nothing-asked": func(c *Container, _ *Node) {
			// crictl and critest leave out all that can be left out. The
			// sandbox then shares its PID namespace, so it has a process.
			c.Config = &runtimeapi.ContainerConfig{}
			c.Sandbox.Config = &runtimeapi.PodSandboxConfig{}
			c.Sandbox.PID = 77
			c.Image = imagespec.ImageConfig{Cmd: []string{"sh"}}
			c.CgroupsPath = "/" + containerID
			c.User = User{AdditionalGids: []uint32{0}}
		},
		"tty-readonly-nnp": func(c *Container, _ *Node) {
			c.Config.Tty = true
			c.Config.Command, c.Config.Args, c.Config.WorkingDir = []string{"sh", "-c"}, []string{"true"}, "/tmp"
			c.security().ReadonlyRootfs = true
			c.security().NoNewPrivs = true
			c.security().MaskedPaths, c.security().ReadonlyPaths = nil, nil
			c.security().Seccomp = &runtimeapi.SecurityProfile{}
		},
		"host-everything": func(c *Container, _ *Node) {
			host := &runtimeapi.NamespaceOption{
				Network: runtimeapi.NamespaceMode_NODE, Pid: runtimeapi.NamespaceMode_NODE, Ipc: runtimeapi.NamespaceMode_NODE,
			}
			c.podSecurity().NamespaceOptions, c.security().NamespaceOptions = host, host
			c.Sandbox.NetNS, c.Sandbox.IPCNS, c.Sandbox.UTSNS, c.Sandbox.Hostname = "", "", "", ""
		},
		"shared-pid": func(c *Container, _ *Node) {
			c.podSecurity().NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
			c.security().NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
			c.Sandbox.PID = 4711
		},
		"ephemeral-target": func(c *Container, _ *Node) {
			c.security().NamespaceOptions.Pid = runtimeapi.NamespaceMode_TARGET
			c.security().NamespaceOptions.TargetId = "app"
			c.TargetPID = 4712
		},
		"namespaces-of-the-process": func(c *Container, _ *Node) {
			c.Sandbox.NetNS, c.Sandbox.IPCNS, c.Sandbox.UTSNS = "", "", ""
			c.Sandbox.PID = 4711
		},
		"privileged": func(c *Container, _ *Node) {
			c.security().Privileged = true
			c.podSecurity().Privileged = true
			c.security().Seccomp = &runtimeapi.SecurityProfile{}
			c.ProcessLabel, c.MountLabel = "system_u:system_r:container_t:s0:c1,c2", "system_u:object_r:container_file_t:s0:c1,c2"
		},
		"privileged-without-host-devices": func(c *Container, n *Node) {
			c.security().Privileged = true
			c.podSecurity().Privileged = true
			c.Sandbox.Definition = &handler.Definition{PrivilegedWithoutHostDevices: true}
			*n = bareNode()
			c.Config.Linux.Resources.Unified = nil
		},
		"confined": func(c *Container, _ *Node) {
			c.security().Capabilities = &runtimeapi.Capability{
				AddCapabilities: []string{"net_admin", "CAP_SYS_TIME"}, DropCapabilities: []string{"ALL", "SYS_TIME"},
				AddAmbientCapabilities: []string{"NET_BIND_SERVICE"},
			}
			c.security().Seccomp = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: "/profiles/audit.json"}
			c.security().Apparmor = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: "k8s-nginx"}
			c.ProcessLabel, c.MountLabel = "system_u:system_r:container_t:s0:c1,c2", "system_u:object_r:container_file_t:s0:c1,c2"
		},
		"volumes": func(c *Container, _ *Node) {
			c.ImageMounts = map[string]string{"/models": "/run/berth/images/1"}
			c.mount(
				&runtimeapi.Mount{ContainerPath: "/data/deep/er", HostPath: "/data/link"},
				&runtimeapi.Mount{ContainerPath: "relative/path/", HostPath: "/data/a", Readonly: true},
				&runtimeapi.Mount{ContainerPath: "/data", HostPath: "/data/b", Propagation: runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER},
				&runtimeapi.Mount{ContainerPath: "/both", HostPath: "/data/c", Propagation: runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL},
				&runtimeapi.Mount{ContainerPath: "/after", HostPath: "/data/d", Propagation: runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER},
				&runtimeapi.Mount{ContainerPath: "/rro", HostPath: "/data/e", Readonly: true, RecursiveReadOnly: true, MountOptions: []string{"nosuid", "noexec", "nosuid"}},
				&runtimeapi.Mount{ContainerPath: "/models/", Readonly: true, Image: &runtimeapi.ImageSpec{Image: "sha256:def"}, MountOptions: []string{"nodev"}},
				&runtimeapi.Mount{ContainerPath: "/mapped", HostPath: "/data/f",
					UidMappings: []*runtimeapi.IDMapping{{HostId: 100000, Length: 65536}}, GidMappings: []*runtimeapi.IDMapping{{HostId: 200000, Length: 65536}}},
			)
		},
		"mounts-over-defaults": func(c *Container, _ *Node) {
			c.mount(
				&runtimeapi.Mount{ContainerPath: "/dev", HostPath: "/dev"},
				&runtimeapi.Mount{ContainerPath: "/sys", HostPath: "/sys"},
				&runtimeapi.Mount{ContainerPath: "/dev/shm", HostPath: "/data/shm"},
				&runtimeapi.Mount{ContainerPath: "/etc/resolv.conf", HostPath: "/data/resolv"},
				&runtimeapi.Mount{ContainerPath: "/etc/hostname", HostPath: "/data/hostname"},
			)
		},
		"devices": func(c *Container, _ *Node) {
			c.Config.Devices = []*runtimeapi.Device{
				{HostPath: "/dev/link", ContainerPath: "/dev/fuse", Permissions: "rw"},
				{HostPath: "/dev/dri", ContainerPath: "/dev/dri", Permissions: "rwm"},
			}
		},
		"cgroup-v1": func(c *Container, n *Node) {
			*n = bareNode()
			c.Config.Linux.Resources.Unified = nil
			c.Config.Linux.Resources.OomScoreAdj = -997
			c.CgroupsPath = "/kubepods/pod1/" + containerID
		},
		"resources": func(c *Container, _ *Node) {
			c.Config.Linux.Resources = &runtimeapi.LinuxContainerResources{
				CpuQuota: -1, CpusetCpus: "0-3", CpusetMems: "0", MemoryLimitInBytes: 1 << 30, MemorySwapLimitInBytes: 2 << 30, OomScoreAdj: -5000,
				HugepageLimits: []*runtimeapi.HugepageLimit{{PageSize: "2MB", Limit: 4 << 20}, {PageSize: "1GB"}},
				Unified:        map[string]string{"memory.high": "900000000", "memory.swap.max": "0"},
			}
		},
		"annotations": func(c *Container, _ *Node) {
			c.Sandbox.Definition = &handler.Definition{
				PodAnnotations: []string{"team", "io.example/*"}, ContainerAnnotations: []string{"io.*/*", "io.kubernetes.*"},
				DefaultAnnotations: map[string]string{"team": "default", "dev.gvisor.spec.cgroup": "x"},
			}
		},
		"old-crun": func(c *Container, _ *Node) { c.Runtime = oldCrun(t) },
		"user-namespace": func(c *Container, _ *Node) {
			inUserNS(c, 65536)
			for _, m := range c.Config.GetMounts() {
				m.UidMappings, m.GidMappings = mapped(100000, 65536).GetUids(), mapped(100000, 65536).GetGids()
			}
			c.ImageMounts = map[string]string{"/models": "/run/berth/images/1"}
			c.mount(&runtimeapi.Mount{ContainerPath: "/models", Readonly: true, Image: &runtimeapi.ImageSpec{Image: "sha256:def"},
				UidMappings: mapped(100000, 65536).GetUids(), GidMappings: mapped(100000, 65536).GetGids()})
		},
		"user-namespace-on-host-network": func(c *Container, _ *Node) {
			inUserNS(c, 65536)
			for _, o := range []*runtimeapi.NamespaceOption{c.podSecurity().NamespaceOptions, c.security().NamespaceOptions} {
				o.Network = runtimeapi.NamespaceMode_NODE
			}
			c.Sandbox.NetNS, c.Sandbox.UTSNS, c.Sandbox.Hostname = "", "", ""
		},
		"gvisor": func(c *Container, _ *Node) {
			c.Runtime = runsc(t)
			c.Sandbox.PID = 4711
			c.ProcessLabel = "system_u:system_r:container_t:s0:c1,c2"
		},
		"base-spec": func(c *Container, _ *Node) {
			c.Base = &specs.Spec{
				Process: &specs.Process{
					Env: []string{"FROM_BASE=1", "LANG=base"}, Rlimits: []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 1024, Hard: 4096}},
					Capabilities: &specs.LinuxCapabilities{Bounding: []string{"CAP_CHOWN", "CAP_KILL"}},
					IOPriority:   &specs.LinuxIOPriority{Class: specs.IOPRIO_CLASS_BE, Priority: 4},
				},
				Hooks:       &specs.Hooks{CreateRuntime: []specs.Hook{{Path: "/usr/bin/hook"}}},
				Annotations: map[string]string{"from": "base"},
				Mounts: []specs.Mount{
					{Destination: "/proc", Type: "proc", Source: "proc"}, {Destination: "/run", Type: "tmpfs", Source: "tmpfs"},
					{Destination: "/dev/shm", Type: "tmpfs", Source: "shm"}, {Destination: "/opt/tools", Type: "bind", Source: "/opt/tools", Options: []string{"ro", "rbind"}},
				},
				Linux: &specs.Linux{
					MaskedPaths: []string{"/proc/base"}, Seccomp: &specs.LinuxSeccomp{DefaultAction: specs.ActLog},
					Resources:  &specs.LinuxResources{Pids: &specs.LinuxPids{Limit: new(int64(100))}},
					Namespaces: []specs.LinuxNamespace{{Type: specs.TimeNamespace}},
				},
			}
			c.security().Seccomp = nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, n := testContainer(t), modernNode()
			situation(&c, &n)
			s := test.Value(Build(c, n))(t)
			golden(t, "container-"+name, s)
		})
	}
}

func TestSandboxSpecs(t *testing.T) {
	for name, situation := range map[string]func(*SandboxProcess, *Node){
		"plain": func(*SandboxProcess, *Node) {},
		"host": func(sp *SandboxProcess, _ *Node) {
			sp.Config.Linux.SecurityContext.NamespaceOptions = &runtimeapi.NamespaceOption{
				Network: runtimeapi.NamespaceMode_NODE, Ipc: runtimeapi.NamespaceMode_NODE,
			}
			sp.NetNS, sp.IPCNS, sp.UTSNS, sp.Hostname = "", "", "", ""
		},
		"user-namespace": func(sp *SandboxProcess, _ *Node) {
			sp.Config.Linux.SecurityContext.NamespaceOptions.UsernsOptions = mapped(100000, 4096)
			sp.Config.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
			sp.UserNS = "/run/berth/sandboxes/" + sandboxID + "/ns/user"
		},
		"gvisor": func(sp *SandboxProcess, n *Node) {
			*n = bareNode()
			sp.Config.Linux.SecurityContext.Seccomp = nil
			sp.Runtime = runsc(t)
			sp.Config.Linux.Sysctls = map[string]string{"net.core.somaxconn": "1024"}
			sp.Config.Linux.Resources = &runtimeapi.LinuxContainerResources{CpuPeriod: 100000, CpuQuota: 200000, CpuShares: 2048, MemoryLimitInBytes: 1 << 30}
			sp.Definition = &handler.Definition{PodAnnotations: []string{"io.example/*"}, Type: handler.OCI}
			sp.MemoryLimit = 1<<30 + 128<<20
		},
		"shim": func(sp *SandboxProcess, _ *Node) {
			sp.ShowsResolver = true
			sp.PausePath = "/bin/pause"
			sp.Config.Linux.Sysctls = map[string]string{"net.core.somaxconn": "1024", "kernel/shm_rmid_forced": "1"}
			sp.Config.Linux.SecurityContext.RunAsUser = &runtimeapi.Int64Value{Value: 1000}
			sp.Config.Linux.SecurityContext.RunAsGroup = &runtimeapi.Int64Value{Value: 1001}
			sp.Config.Linux.SecurityContext.SupplementalGroups = []int64{5}
			sp.Base = &specs.Spec{
				Process: &specs.Process{Rlimits: []specs.POSIXRlimit{{Type: "RLIMIT_CORE"}}, Env: []string{"NOT=FOR_PAUSE"}},
				Hooks:   &specs.Hooks{Poststop: []specs.Hook{{Path: "/usr/bin/hook"}}},
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			sp := SandboxProcess{Sandbox: testSandbox(), PausePath: "/pause", CgroupsPath: "/kubepods/pod1/" + sandboxID, Runtime: runc(t)}
			n := modernNode()
			situation(&sp, &n)
			s := test.Value(BuildSandboxProcess(sp, n))(t)
			golden(t, "sandbox-"+name, s)
		})
	}
}
