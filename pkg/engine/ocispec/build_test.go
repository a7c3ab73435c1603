package ocispec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	crierrors "k8s.io/cri-api/pkg/errors"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/probe"
)

// Build refuses each situation with an error of the given class that contains the text says.
func TestBuildRefuses(t *testing.T) {
	invalidArgument, failedPrecondition := errdefs.ErrInvalidArgument, errdefs.ErrFailedPrecondition
	for name, c := range map[string]struct {
		situation func(*Container, *Node)
		class     error
		says      string
	}{
		"no command":     {func(c *Container, _ *Node) { c.Image = imagespec.ImageConfig{Entrypoint: []string{""}} }, invalidArgument, "command"},
		"NUL in command": {func(c *Container, _ *Node) { c.Config.Command = []string{"a\x00b"} }, invalidArgument, "NUL"},
		"env that JSON cannot carry": {func(c *Container, _ *Node) {
			c.Config.Envs = []*runtimeapi.KeyValue{{Key: "A", Value: []byte{0xff}}}
		}, failedPrecondition, "UTF-8"},
		"user namespace that was not created": {func(c *Container, _ *Node) {
			inUserNS(c, 65536)
			c.Sandbox.UserNS = ""
		}, failedPrecondition, "no user namespace"},
		"user beyond the user namespace": {func(c *Container, _ *Node) {
			inUserNS(c, 65536)
			c.User.UID = 65536
		}, invalidArgument, "user 65536"},
		"group beyond the user namespace": {func(c *Container, _ *Node) { inUserNS(c, 2000) }, invalidArgument, "group 2000"},
		"user namespace for a runtime that does not support them": {func(c *Container, _ *Node) {
			inUserNS(c, 65536)
			c.Runtime = runsc(t)
		}, failedPrecondition, "user namespace"},
		"host pid in a pod without host pid": {func(c *Container, _ *Node) {
			c.security().NamespaceOptions.Pid = runtimeapi.NamespaceMode_NODE
		}, invalidArgument, "host's PID namespace"},
		"shared pid without a process": {func(c *Container, _ *Node) {
			c.security().NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
		}, failedPrecondition, "PID namespace"},
		"target that does not run": {func(c *Container, _ *Node) {
			c.security().NamespaceOptions = &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_TARGET, TargetId: "gone"}
		}, failedPrecondition, "gone"},
		"network namespace lost": {func(c *Container, _ *Node) { c.Sandbox.NetNS = "" }, failedPrecondition, "network namespace"},
		"ipc namespace lost":     {func(c *Container, _ *Node) { c.Sandbox.IPCNS = "" }, failedPrecondition, "ipc namespace"},
		"unknown capability": {func(c *Container, _ *Node) {
			c.security().Capabilities = &runtimeapi.Capability{AddCapabilities: []string{"FLY"}}
		}, invalidArgument, "FLY"},
		"unknown capability dropped": {func(c *Container, _ *Node) {
			c.security().Capabilities = &runtimeapi.Capability{DropCapabilities: []string{"CAP_SWIM"}}
		}, invalidArgument, "CAP_SWIM"},
		"capability that the node lacks": {func(c *Container, n *Node) {
			n.Capabilities = []string{"CAP_CHOWN"}
			c.security().Capabilities = &runtimeapi.Capability{AddCapabilities: []string{"SYS_ADMIN"}}
		}, failedPrecondition, "CAP_SYS_ADMIN"},
		"seccomp on a kernel without seccomp": {func(c *Container, n *Node) {
			n.Seccomp = false
			c.security().Seccomp = &runtimeapi.SecurityProfile{}
		}, failedPrecondition, "kernel"},
		"seccomp on a runtime without seccomp": {func(c *Container, _ *Node) {
			c.Runtime = &probe.Runtime{Path: "/opt/tiny", BuildTags: []string{"-SECCOMP"}}
			c.security().Seccomp = &runtimeapi.SecurityProfile{}
		}, failedPrecondition, "/opt/tiny"},
		"seccomp file missing": {func(c *Container, _ *Node) { c.security().Seccomp = local("/profiles/none.json") }, failedPrecondition, "/profiles/none.json"},
		"seccomp file broken":  {func(c *Container, _ *Node) { c.security().Seccomp = local("/profiles/broken.json") }, failedPrecondition, "neither OCI nor Docker"},
		"seccomp file with a condition on users": {func(c *Container, _ *Node) {
			c.security().Seccomp = local("/profiles/docker.json")
		}, failedPrecondition, "users"},
		"seccomp file with two documents": {func(c *Container, _ *Node) { c.security().Seccomp = local("/profiles/two.json") }, failedPrecondition, "more than one"},
		"seccomp file without action":     {func(c *Container, _ *Node) { c.security().Seccomp = local("/profiles/nothing.json") }, failedPrecondition, "defaultAction"},
		"seccomp flag unknown to runc":    {func(c *Container, _ *Node) { c.security().Seccomp = local("/profiles/flags.json") }, failedPrecondition, "WAIT_KILLABLE"},
		"apparmor profile not loaded":     {func(c *Container, _ *Node) { c.security().Apparmor = local("absent") }, failedPrecondition, "not loaded"},
		"apparmor on a node without AppArmor": {func(c *Container, n *Node) {
			n.AppArmor = false
			c.security().Apparmor = local("k8s-nginx")
		}, failedPrecondition, "no AppArmor"},
		"apparmor profiles unreadable": {func(c *Container, n *Node) {
			n.AppArmorLoaded = func(string) (bool, error) { return false, errors.New("no securityfs") }
			c.security().Apparmor = local("k8s-nginx")
		}, failedPrecondition, "no securityfs"},
		"mount of a link to itself": {func(c *Container, _ *Node) { c.mount(&runtimeapi.Mount{HostPath: "/data/loop", ContainerPath: "/a"}) }, failedPrecondition, "too many links"},
		"mapped mount on an old runtime": {func(c *Container, _ *Node) {
			c.Runtime = oldCrun(t)
			c.mount(&runtimeapi.Mount{HostPath: "/a", ContainerPath: "/a", UidMappings: []*runtimeapi.IDMapping{{Length: 1}}, GidMappings: []*runtimeapi.IDMapping{{Length: 1}}})
		}, failedPrecondition, "mapping IDs"},
		"rro on an old runtime": {func(c *Container, _ *Node) {
			c.Runtime = oldCrun(t)
			c.mount(&runtimeapi.Mount{HostPath: "/a", ContainerPath: "/a", Readonly: true, RecursiveReadOnly: true})
		}, crierrors.ErrRROUnsupported, "rro"},
		"rro on an old kernel": {func(c *Container, n *Node) {
			n.KernelRRO = false
			c.mount(&runtimeapi.Mount{HostPath: "/a", ContainerPath: "/a", Readonly: true, RecursiveReadOnly: true})
		}, crierrors.ErrRROUnsupported, "5.12"},
		"shared mount in gVisor": {func(c *Container, _ *Node) {
			c.Runtime = runsc(t)
			c.mount(&runtimeapi.Mount{HostPath: "/a", ContainerPath: "/a", Propagation: runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL})
		}, failedPrecondition, "Bidirectional"},
		"image that is not mounted": {func(c *Container, _ *Node) {
			c.mount(&runtimeapi.Mount{ContainerPath: "/i", Readonly: true, Image: &runtimeapi.ImageSpec{Image: "x"}})
		}, crierrors.ErrImageVolumeMountFailed, "not mounted"},
		"device missing": {func(c *Container, _ *Node) {
			c.Config.Devices = []*runtimeapi.Device{{HostPath: "/dev/none", ContainerPath: "/dev/none", Permissions: "r"}}
		}, failedPrecondition, "/dev/none"},
		"host devices unreadable": {func(c *Container, n *Node) {
			c.security().Privileged, c.podSecurity().Privileged = true, true
			n.HostDevices = func() ([]specs.LinuxDevice, error) { return nil, errdefs.ErrPermissionDenied }
		}, errdefs.ErrPermissionDenied, "devices"},
		"unified on cgroup v1": {func(_ *Container, n *Node) { n.CgroupUnified = false }, failedPrecondition, "v2"},
		"network device on an old runtime": {func(c *Container, _ *Node) {
			c.Runtime = oldCrun(t)
			c.Base = &specs.Spec{Linux: &specs.Linux{NetDevices: map[string]specs.LinuxNetDevice{"eth1": {}}}}
		}, failedPrecondition, "network devices"},
		"memory policy on an old runtime": {func(c *Container, _ *Node) {
			c.Runtime = oldCrun(t)
			c.Base = &specs.Spec{Linux: &specs.Linux{MemoryPolicy: &specs.LinuxMemoryPolicy{}}}
		}, failedPrecondition, "1.3"},
	} {
		t.Run(name, func(t *testing.T) {
			ctr, n := testContainer(t), modernNode()
			c.situation(&ctr, &n)
			_, err := Build(ctr, n)
			if !errors.Is(err, c.class) {
				t.Fatalf("got error %v, want class %v", err, c.class)
			}
			if !strings.Contains(err.Error(), c.says) {
				t.Errorf("%q does not contain %q", err, c.says)
			}
			if len(err.Error()) > 1024 {
				t.Errorf("the error has %d bytes", len(err.Error()))
			}
		})
	}
}

func local(ref string) *runtimeapi.SecurityProfile {
	return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: ref}
}

// Build must not need fields of the request or the node that may be unset.
func TestBuildOfNothing(t *testing.T) {
	c := Container{Image: imagespec.ImageConfig{Cmd: []string{"sh"}}, Sandbox: Sandbox{PID: 9}}
	s := test.Value(Build(c, Node{}))(t)
	if s.Version != "1.0.2" || len(s.Linux.Namespaces) != 5 {
		t.Errorf("got ociVersion %s, namespaces %v", s.Version, s.Linux.Namespaces)
	}
}

// With OwnIPC a container gets its own IPC namespace, and the pod's other namespaces.
func TestOwnIPC(t *testing.T) {
	c := testContainer(t)
	c.OwnIPC = true
	s := test.Value(Build(c, modernNode()))(t)
	joined := map[specs.LinuxNamespaceType]bool{}
	for _, n := range s.Linux.Namespaces {
		joined[n.Type] = n.Path != ""
	}
	if own, there := joined[specs.IPCNamespace]; own || !there || !joined[specs.UTSNamespace] || !joined[specs.NetworkNamespace] {
		t.Errorf("the namespaces are %v", s.Linux.Namespaces)
	}
}

// A spec that Build returns shares no memory with Build's input, and none with another
// spec except the seccomp filter.
func TestBuildSharesNothing(t *testing.T) {
	c, n := testContainer(t), modernNode()
	c.Base = &specs.Spec{Process: &specs.Process{Env: []string{"A=1"}}, Mounts: defaultMounts(), Annotations: map[string]string{"k": "v"}}
	before := test.Value(json.Marshal(c))(t)
	first := test.Value(Build(c, n))(t)
	want := test.Value(json.Marshal(first))(t)
	scribble(reflect.ValueOf(first).Elem())
	second := test.Value(Build(c, n))(t)
	if got, err := json.Marshal(second); err != nil || !bytes.Equal(got, want) {
		t.Errorf("a change of one spec shows in the next: %v\n%s\n%s", err, want, got)
	}
	if after, err := json.Marshal(c); err != nil || !bytes.Equal(after, before) {
		t.Errorf("a change of the spec shows in Build's input: %v", err)
	}
}

// scribble changes every string, number and map that can be reached.
func scribble(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			scribble(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			scribble(v.Field(i))
		}
	case reflect.Slice:
		for i := range v.Len() {
			scribble(v.Index(i))
		}
	case reflect.Map:
		for _, k := range v.MapKeys() {
			v.SetMapIndex(k, reflect.Zero(v.Type().Elem()))
		}
	case reflect.String:
		v.SetString("scribble")
	case reflect.Int64, reflect.Int:
		v.SetInt(-7)
	case reflect.Uint32, reflect.Uint64:
		v.SetUint(7)
	default:
	}
}

func TestDeprecatedProfileNames(t *testing.T) {
	for deprecated, want := range map[string]string{
		"": "", "unconfined": "", "runtime/default": "default", "docker/default": "default", "localhost//profiles/audit.json": "SCMP_ACT_LOG",
	} {
		c, n := testContainer(t), modernNode()
		c.security().Seccomp, c.security().SeccompProfilePath = nil, deprecated //nolint:staticcheck // Old clients send it.
		s, err := Build(c, n)
		if err != nil {
			t.Errorf("%q: %v", deprecated, err)
			continue
		}
		got := ""
		if f := s.Linux.Seccomp; f != nil {
			got = string(f.DefaultAction)
			if reflect.DeepEqual(f, defaultSeccomp(s.Process.Capabilities.Bounding)) {
				got = "default"
			}
		}
		test.Equal(t, fmt.Sprintf("%q: the filter", deprecated), got, want)
	}
	for deprecated, want := range map[string]string{
		"": defaultAppArmorProfile, "runtime/default": defaultAppArmorProfile, "unconfined": "", "localhost/k8s-nginx": "k8s-nginx",
	} {
		c, n := testContainer(t), modernNode()
		c.security().ApparmorProfile = deprecated //nolint:staticcheck // Old clients send it.
		s, err := Build(c, n)
		if err != nil || s.Process.ApparmorProfile != want {
			t.Errorf("apparmor %q: got %q, %v, want %q", deprecated, s.Process.ApparmorProfile, err, want)
		}
	}
	// The structured field has precedence.
	c, n := testContainer(t), modernNode()
	c.security().ApparmorProfile = "localhost/absent" //nolint:staticcheck // Old clients send it.
	c.security().Apparmor = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
	if s, err := Build(c, n); err != nil || s.Process.ApparmorProfile != "" {
		t.Errorf("the structured field must have precedence, got %v, %v", s, err)
	}
}

// A node without AppArmor runs containers that request the default profile or none.
func TestNoAppArmor(t *testing.T) {
	for _, p := range []*runtimeapi.SecurityProfile{nil, {}, {ProfileType: runtimeapi.SecurityProfile_Unconfined}} {
		c, n := testContainer(t), modernNode()
		n.AppArmor = false
		c.security().Apparmor = p
		if s, err := Build(c, n); err != nil || s.Process.ApparmorProfile != "" {
			t.Errorf("profile %v: got %v, %v", p, s, err)
		}
	}
}

func TestCapabilities(t *testing.T) {
	all := knownCapabilities
	for name, c := range map[string]struct {
		req  *runtimeapi.Capability
		node []string
		want []string
	}{
		"default": {nil, nil, defaultCapabilities},
		"default on a node with few capabilities": {nil, []string{"CAP_KILL", "CAP_CHOWN"}, []string{"CAP_CHOWN", "CAP_KILL"}},
		"add all": {&runtimeapi.Capability{AddCapabilities: []string{"all"}}, nil, all},
		"add all on a node with few capabilities": {&runtimeapi.Capability{AddCapabilities: []string{"ALL"}}, []string{"CAP_KILL"}, []string{"CAP_KILL"}},
		"drop all":         {&runtimeapi.Capability{DropCapabilities: []string{"ALL"}}, nil, nil},
		"add all drop one": {&runtimeapi.Capability{AddCapabilities: []string{"ALL"}, DropCapabilities: []string{"CHOWN"}}, nil, without(all, []string{"CAP_CHOWN"})},
		"drop all add one": {&runtimeapi.Capability{AddCapabilities: []string{"chown"}, DropCapabilities: []string{"All"}}, nil, []string{"CAP_CHOWN"}},
		"both all":         {&runtimeapi.Capability{AddCapabilities: []string{"ALL", "KILL"}, DropCapabilities: []string{"ALL"}}, nil, []string{"CAP_KILL"}},
		"drop beats add":   {&runtimeapi.Capability{AddCapabilities: []string{"SYS_TIME"}, DropCapabilities: []string{"ALL", "CAP_SYS_TIME"}}, nil, nil},
	} {
		sc := &runtimeapi.LinuxContainerSecurityContext{Capabilities: c.req}
		got, err := capabilities(nil, sc, Node{Capabilities: c.node}, nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for set, names := range map[string][]string{"bounding": got.Bounding, "effective": got.Effective, "permitted": got.Permitted} {
			if strings.Join(names, " ") != strings.Join(c.want, " ") {
				t.Errorf("%s: %s is %v, want %v", name, set, names, c.want)
			}
		}
		if len(got.Inheritable)+len(got.Ambient) > 0 {
			t.Errorf("%s: inheritable %v and ambient %v must be empty", name, got.Inheritable, got.Ambient)
		}
	}
}

// A runtime with a separate kernel can give every capability, whatever the daemon has.
func TestCapabilitiesOfSeparateKernel(t *testing.T) {
	sc := &runtimeapi.LinuxContainerSecurityContext{Capabilities: &runtimeapi.Capability{AddCapabilities: []string{"SYS_ADMIN"}, DropCapabilities: []string{"ALL"}}}
	got, err := capabilities(nil, sc, bareNode(), runsc(t))
	if err != nil || strings.Join(got.Effective, " ") != "CAP_SYS_ADMIN" {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestCommandLine(t *testing.T) {
	img := imagespec.ImageConfig{Entrypoint: []string{"ep", "1"}, Cmd: []string{"cmd"}}
	for want, cfg := range map[string]*runtimeapi.ContainerConfig{
		"ep 1 cmd": {}, "ep 1 a b": {Args: []string{"a", "b"}}, "c": {Command: []string{"c"}}, "c a": {Command: []string{"c"}, Args: []string{"a"}},
	} {
		if got, err := commandLine(cfg, img); err != nil || strings.Join(got, " ") != want {
			t.Errorf("%v: got %v, %v, want %s", cfg, got, err, want)
		}
	}
}

func TestHostPathsToCreate(t *testing.T) {
	c := testContainer(t)
	c.mount(
		&runtimeapi.Mount{ContainerPath: "/a", HostPath: "/data/a"}, &runtimeapi.Mount{ContainerPath: "/b", HostPath: "/data/a"},
		&runtimeapi.Mount{ContainerPath: "/i", Image: &runtimeapi.ImageSpec{Image: "x"}},
	)
	got := strings.Join(HostPathsToCreate(c.Config), " ")
	test.Equal(t, "the result", got, "/var/lib/kubelet/pods/1/etc-hosts /var/lib/kubelet/pods/1/containers/nginx/0 /data/a")
}

func TestExecProcess(t *testing.T) {
	c, n := testContainer(t), modernNode()
	c.Config.Tty = true
	c.Config.Envs = append(c.Config.Envs, &runtimeapi.KeyValue{Key: "TERM", Value: []byte("vt100")})
	s := test.Value(Build(c, n))(t)
	s.Process.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 7}}
	before := test.Value(json.Marshal(s))(t)
	for _, tty := range []bool{false, true} {
		p := test.Value(ExecProcess(s, []string{"id", "-u"}, tty))(t)
		term := "TERM=vt100"
		if tty {
			term = "TERM=xterm"
		}
		if !strings.Contains(strings.Join(p.Env, " "), term) || p.Terminal != tty || strings.Join(p.Args, " ") != "id -u" {
			t.Errorf("tty %v: got %v, terminal %v, args %v", tty, p.Env, p.Terminal, p.Args)
		}
		same := *p
		same.Args, same.Env, same.Terminal = s.Process.Args, s.Process.Env, s.Process.Terminal
		if !reflect.DeepEqual(&same, s.Process) {
			t.Errorf("tty %v: the rest differs from the container's process:\n%+v\n%+v", tty, same, s.Process)
		}
		scribble(reflect.ValueOf(p).Elem())
	}
	if after, err := json.Marshal(s); err != nil || !bytes.Equal(after, before) {
		t.Errorf("exec changed the container's spec: %v", err)
	}
}

func TestFitDropsTuning(t *testing.T) {
	s := &specs.Spec{Process: &specs.Process{Scheduler: &specs.Scheduler{}, IOPriority: &specs.LinuxIOPriority{}, ExecCPUAffinity: &specs.CPUAffinity{}}}
	test.Must(t, Fit(s, oldCrun(t)))
	if s.Process.Scheduler != nil || s.Process.IOPriority != nil || s.Process.ExecCPUAffinity != nil || s.Version != "1.0.2" {
		t.Errorf("for an old runtime are left %+v, ociVersion %s", s.Process, s.Version)
	}
}

func TestDefaultSeccompDependsOnCapabilities(t *testing.T) {
	if a, b := defaultSeccomp(nil), defaultSeccomp([]string{"CAP_SYS_ADMIN"}); reflect.DeepEqual(a, b) {
		t.Error("the filter does not depend on capabilities")
	}
}

// The first sysfs of a network namespace decides whether later mounts can be writable.
func TestSysfsOfSandboxProcessIsWritableForPrivilegedPods(t *testing.T) {
	for privileged, want := range map[bool]string{true: "rw", false: "ro"} {
		sp := SandboxProcess{Sandbox: testSandbox(), Runtime: runc(t)}
		sp.Config.Linux.SecurityContext.Privileged = privileged
		s := test.Value(BuildSandboxProcess(sp, modernNode()))(t)
		i := slices.IndexFunc(s.Mounts, func(m specs.Mount) bool { return m.Type == "sysfs" })
		if i < 0 || !slices.Contains(s.Mounts[i].Options, want) {
			t.Errorf("privileged %v: the mounts are %v, want a sysfs that is %s", privileged, s.Mounts, want)
		}
	}
}

func TestBuildSandboxProcessRefuses(t *testing.T) {
	for name, situation := range map[string]func(*SandboxProcess){
		"no network namespace": func(sp *SandboxProcess) { sp.NetNS = "" },
		"user namespace that was not created": func(sp *SandboxProcess) {
			sp.Config.Linux.SecurityContext.NamespaceOptions.UsernsOptions = mapped(100000, 65536)
		},
		"seccomp file missing": func(sp *SandboxProcess) { sp.Config.Linux.SecurityContext.Seccomp = local("/none") },
	} {
		sp := SandboxProcess{Sandbox: testSandbox(), Runtime: runc(t)}
		situation(&sp)
		test.Is(t, test.Err(BuildSandboxProcess(sp, modernNode())), errdefs.IsFailedPrecondition, "%s", name)
	}
}
