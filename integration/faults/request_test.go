package faults

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// long is a name of one byte more than is allowed.
var long = strings.Repeat("x", 254)

// absent is the id of nothing.
var absent = strings.Repeat("0123456789abcdef", 4)

// TestBadRequests sends what makes no sense, or not now.
func TestBadRequests(t *testing.T) {
	b := newBed(t, testbed.Options{})
	atRest := b.Rest(t)
	t.Run("RunPodSandbox", b.badSandboxes)
	t.Run("CreateContainer", b.badContainers)
	t.Run("IDs", b.badIDs)
	t.Run("Order", b.badOrder)
	b.NothingLeft(t, atRest)
}

func (b *bed) badSandboxes(t *testing.T) {
	options := func(c *runtimeapi.PodSandboxConfig) *runtimeapi.NamespaceOption {
		return c.GetLinux().GetSecurityContext().GetNamespaceOptions()
	}
	for name, c := range map[string]struct {
		change func(*runtimeapi.PodSandboxConfig)
		says   string
	}{
		"no metadata":      {func(c *runtimeapi.PodSandboxConfig) { c.Metadata = nil }, "config.metadata"},
		"empty name":       {func(c *runtimeapi.PodSandboxConfig) { c.Metadata.Name = "" }, "config.metadata.name"},
		"empty namespace":  {func(c *runtimeapi.PodSandboxConfig) { c.Metadata.Namespace = "" }, "config.metadata.namespace"},
		"empty uid":        {func(c *runtimeapi.PodSandboxConfig) { c.Metadata.Uid = "" }, "config.metadata.uid"},
		"long name":        {func(c *runtimeapi.PodSandboxConfig) { c.Metadata.Name = long }, "at most 253"},
		"long namespace":   {func(c *runtimeapi.PodSandboxConfig) { c.Metadata.Namespace = long }, "at most 253"},
		"long uid":         {func(c *runtimeapi.PodSandboxConfig) { c.Metadata.Uid = long }, "at most 253"},
		"name is a path":   {func(c *runtimeapi.PodSandboxConfig) { c.Metadata.Name = "../../etc/passwd" }, "plain name"},
		"NUL in the name":  {func(c *runtimeapi.PodSandboxConfig) { c.Metadata.Name = "a\x00b" }, "config.metadata.name"},
		"long hostname":    {func(c *runtimeapi.PodSandboxConfig) { c.Hostname = strings.Repeat("h", 65) }, "config.hostname"},
		"relative logs":    {func(c *runtimeapi.PodSandboxConfig) { c.LogDirectory = "var/log/pods" }, "absolute"},
		"parent of cgroup": {func(c *runtimeapi.PodSandboxConfig) { c.Linux.CgroupParent = "/a/../../b" }, "cgroup_parent"},
		"forged resolver": {func(c *runtimeapi.PodSandboxConfig) {
			c.DnsConfig = &runtimeapi.DNSConfig{Servers: []string{"1.1.1.1\nnameserver 6.6.6.6"}}
		}, "dns_config"},
		"unknown protocol": {func(c *runtimeapi.PodSandboxConfig) {
			c.PortMappings = []*runtimeapi.PortMapping{{Protocol: 99, ContainerPort: 80, HostPort: 8080}}
		}, "one of"},
		"port out of range": {func(c *runtimeapi.PodSandboxConfig) {
			c.PortMappings = []*runtimeapi.PortMapping{{HostPort: 70000, ContainerPort: 1}}
		}, "port"},
		"unknown net mode":    {func(c *runtimeapi.PodSandboxConfig) { options(c).Network = 99 }, "network"},
		"unknown pid mode":    {func(c *runtimeapi.PodSandboxConfig) { options(c).Pid = 99 }, "pid"},
		"unknown ipc mode":    {func(c *runtimeapi.PodSandboxConfig) { options(c).Ipc = 99 }, "ipc"},
		"net of a container":  {func(c *runtimeapi.PodSandboxConfig) { options(c).Network = runtimeapi.NamespaceMode_CONTAINER }, "network"},
		"unknown userns mode": {func(c *runtimeapi.PodSandboxConfig) { options(c).UsernsOptions = &runtimeapi.UserNamespace{Mode: 99} }, "user"},
		"userns without a map": {func(c *runtimeapi.PodSandboxConfig) {
			options(c).UsernsOptions = &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: []*runtimeapi.IDMapping{{HostId: 5, ContainerId: 5, Length: 1}}}
		}, "user"},
		"unknown seccomp": {func(c *runtimeapi.PodSandboxConfig) {
			c.Linux.SecurityContext.Seccomp = &runtimeapi.SecurityProfile{ProfileType: 99}
		}, "seccomp"},
		"group without user": {func(c *runtimeapi.PodSandboxConfig) {
			c.Linux.SecurityContext.RunAsGroup = &runtimeapi.Int64Value{Value: 1}
		}, "run_as_user"},
		"sysctl of the host": {func(c *runtimeapi.PodSandboxConfig) {
			options(c).Network = runtimeapi.NamespaceMode_NODE
			c.Linux.Sysctls = map[string]string{"net.ipv4.ip_forward": "1"}
		}, "sysctl"},
	} {
		t.Run(name, func(t *testing.T) {
			config := b.Client.SandboxConfig("")
			c.change(config)
			_, err := b.Client.RunPodSandbox(testbed.Within(t, time.Minute), &runtimeapi.RunPodSandboxRequest{Config: config})
			testbed.Refused(t, err, codes.InvalidArgument, c.says)
		})
	}
	t.Run("no config", func(t *testing.T) {
		_, err := b.Client.RunPodSandbox(testbed.Within(t, time.Minute), &runtimeapi.RunPodSandboxRequest{})
		testbed.Refused(t, err, codes.InvalidArgument, "config")
	})
	t.Run("unknown handler", func(t *testing.T) {
		_, err := b.Client.RunPodSandbox(testbed.Within(t, time.Minute), &runtimeapi.RunPodSandboxRequest{
			Config: b.Client.SandboxConfig(""), RuntimeHandler: "rnuc",
		})
		testbed.Refused(t, err, codes.InvalidArgument, `"rnuc"`, "runc")
	})
	testbed.Same(t, b.listed(t), "", "after refused sandboxes there are")
}

func (b *bed) badContainers(t *testing.T) {
	pod := b.Client.RunSandbox(t, testbed.PodSpec{})
	mount := func(m *runtimeapi.Mount) func(*runtimeapi.ContainerConfig) {
		return func(c *runtimeapi.ContainerConfig) { c.Mounts = []*runtimeapi.Mount{m} }
	}
	security := func(change func(*runtimeapi.LinuxContainerSecurityContext)) func(*runtimeapi.ContainerConfig) {
		return func(c *runtimeapi.ContainerConfig) { change(c.Linux.SecurityContext) }
	}
	for name, c := range map[string]struct {
		change func(*runtimeapi.ContainerConfig)
		code   codes.Code
		says   string
	}{
		"no metadata":         {func(c *runtimeapi.ContainerConfig) { c.Metadata = nil }, codes.InvalidArgument, "config.metadata"},
		"empty name":          {func(c *runtimeapi.ContainerConfig) { c.Metadata.Name = "" }, codes.InvalidArgument, "config.metadata.name"},
		"long name":           {func(c *runtimeapi.ContainerConfig) { c.Metadata.Name = long }, codes.InvalidArgument, "at most 253"},
		"no image":            {func(c *runtimeapi.ContainerConfig) { c.Image = nil }, codes.InvalidArgument, "image"},
		"absent image":        {func(c *runtimeapi.ContainerConfig) { c.Image.Image = b.Registry.Host + "/never/pulled:1" }, codes.NotFound, "pull it"},
		"relative directory":  {func(c *runtimeapi.ContainerConfig) { c.WorkingDir = "home/app" }, codes.InvalidArgument, "absolute"},
		"log outside":         {func(c *runtimeapi.ContainerConfig) { c.LogPath = "../../../etc/cron.d/x" }, codes.InvalidArgument, "log_path"},
		"NUL in the command":  {func(c *runtimeapi.ContainerConfig) { c.Command = []string{"sh\x00"} }, codes.InvalidArgument, "NUL"},
		"bad variable":        {func(c *runtimeapi.ContainerConfig) { c.Envs = []*runtimeapi.KeyValue{{Key: "A=B"}} }, codes.InvalidArgument, "envs"},
		"unknown signal":      {func(c *runtimeapi.ContainerConfig) { c.StopSignal = 999 }, codes.InvalidArgument, "stop_signal"},
		"relative target":     {mount(&runtimeapi.Mount{HostPath: "/tmp", ContainerPath: "data"}), codes.InvalidArgument, "absolute"},
		"relative source":     {mount(&runtimeapi.Mount{HostPath: "tmp", ContainerPath: "/data"}), codes.InvalidArgument, "absolute"},
		"cover the root":      {mount(&runtimeapi.Mount{HostPath: "/tmp", ContainerPath: "/"}), codes.InvalidArgument, "root"},
		"unknown propagation": {mount(&runtimeapi.Mount{HostPath: "/tmp", ContainerPath: "/data", Propagation: 99}), codes.InvalidArgument, "one of"},
		"relative device": {func(c *runtimeapi.ContainerConfig) {
			c.Devices = []*runtimeapi.Device{{HostPath: "dev/null", ContainerPath: "/dev/x", Permissions: "rwm"}}
		}, codes.InvalidArgument, "absolute"},
		"unknown pid mode": {security(func(s *runtimeapi.LinuxContainerSecurityContext) {
			s.NamespaceOptions = &runtimeapi.NamespaceOption{Pid: 99}
		}), codes.InvalidArgument, "pid"},
		"no such capability": {security(func(s *runtimeapi.LinuxContainerSecurityContext) {
			s.Capabilities = &runtimeapi.Capability{AddCapabilities: []string{"NET ADMIN"}}
		}), codes.InvalidArgument, "capabilit"},
		"more than the sandbox": {security(func(s *runtimeapi.LinuxContainerSecurityContext) { s.Privileged = true }), codes.InvalidArgument, "privileged"},
		"unknown user":          {security(func(s *runtimeapi.LinuxContainerSecurityContext) { s.RunAsUsername = "nobody-knows" }), codes.FailedPrecondition, "nobody-knows"},
		"absent profile": {security(func(s *runtimeapi.LinuxContainerSecurityContext) {
			s.Seccomp = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: "/no/such/profile.json"}
		}), codes.FailedPrecondition, "/no/such/profile.json"},
	} {
		t.Run(name, func(t *testing.T) {
			config := b.Client.ContainerConfig("main", b.Image, "sleep", "3600")
			c.change(config)
			_, err := b.Client.CreateContainer(testbed.Within(t, time.Minute), &runtimeapi.CreateContainerRequest{
				PodSandboxId: pod.ID, Config: config, SandboxConfig: pod.Config,
			})
			testbed.Refused(t, err, c.code, c.says)
		})
	}
	for name, c := range map[string]struct {
		sandbox string
		config  *runtimeapi.ContainerConfig
		code    codes.Code
		says    string
	}{
		"no config":      {pod.ID, nil, codes.InvalidArgument, "config"},
		"no sandbox":     {absent, b.Client.ContainerConfig("main", b.Image), codes.NotFound, "sandbox"},
		"empty sandbox":  {"", b.Client.ContainerConfig("main", b.Image), codes.InvalidArgument, "the sandbox ID is empty"},
		"sandbox a path": {"../" + pod.ID, b.Client.ContainerConfig("main", b.Image), codes.NotFound, "does not exist"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := b.Client.CreateContainer(testbed.Within(t, time.Minute), &runtimeapi.CreateContainerRequest{
				PodSandboxId: c.sandbox, Config: c.config, SandboxConfig: pod.Config,
			})
			testbed.Refused(t, err, c.code, c.says)
		})
	}
	testbed.Same(t, b.listed(t), "SANDBOX_READY", "after refused containers there are")
	// Refused names are free.
	pod.RunContainer(t, "main", testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}})
	pod.Remove(t)
}

// badIDs calls everything that takes an id with ids of nothing.
func (b *bed) badIDs(t *testing.T) {
	r := b.Client.RuntimeServiceClient
	calls := map[string]func(context.Context, string) error{
		"PodSandboxStatus": func(ctx context.Context, id string) error {
			_, err := r.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id})
			return err
		},
		"PodSandboxStats": func(ctx context.Context, id string) error {
			_, err := r.PodSandboxStats(ctx, &runtimeapi.PodSandboxStatsRequest{PodSandboxId: id})
			return err
		},
		"StopPodSandbox": func(ctx context.Context, id string) error {
			_, err := r.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id})
			return err
		},
		"RemovePodSandbox": func(ctx context.Context, id string) error {
			_, err := r.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})
			return err
		},
		"ContainerStatus": func(ctx context.Context, id string) error {
			_, err := r.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
			return err
		},
		"ContainerStats": func(ctx context.Context, id string) error {
			_, err := r.ContainerStats(ctx, &runtimeapi.ContainerStatsRequest{ContainerId: id})
			return err
		},
		"StartContainer": func(ctx context.Context, id string) error {
			_, err := r.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: id})
			return err
		},
		"StopContainer": func(ctx context.Context, id string) error {
			_, err := r.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: id})
			return err
		},
		"RemoveContainer": func(ctx context.Context, id string) error {
			_, err := r.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: id})
			return err
		},
		"ExecSync": func(ctx context.Context, id string) error {
			_, err := r.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"true"}})
			return err
		},
		"ReopenContainerLog": func(ctx context.Context, id string) error {
			_, err := r.ReopenContainerLog(ctx, &runtimeapi.ReopenContainerLogRequest{ContainerId: id})
			return err
		},
		"UpdateContainerResources": func(ctx context.Context, id string) error {
			_, err := r.UpdateContainerResources(ctx, &runtimeapi.UpdateContainerResourcesRequest{
				ContainerId: id, Linux: &runtimeapi.LinuxContainerResources{CpuShares: 100},
			})
			return err
		},
	}
	// The CRI: what is to be stopped or removed and is not there is done.
	done := map[string]bool{"StopPodSandbox": true, "RemovePodSandbox": true, "StopContainer": true, "RemoveContainer": true}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			ctx := testbed.Within(t, time.Minute)
			testbed.Refused(t, call(ctx, ""), codes.InvalidArgument, "ID is empty")
			// What can be no id is no object's id.
			for _, bad := range []string{absent, "../../etc", "a/b", "a\x01b", long} {
				err := call(ctx, bad)
				if !done[name] {
					testbed.Refused(t, err, codes.NotFound, "does not exist")
				} else if err != nil {
					t.Errorf("%q, which is not there: %v", bad, err)
				}
			}
		})
	}
}

// badOrder calls what is possible only in another state.
func (b *bed) badOrder(t *testing.T) {
	pod := b.Client.RunSandbox(t, testbed.PodSpec{})
	spec := testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}}
	c := pod.CreateContainer(t, "main", spec)
	ctx := testbed.Within(t, time.Minute)

	_, err := b.Client.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: pod.Config})
	testbed.Refused(t, err, codes.AlreadyExists, "crictl rmp -f "+pod.ID)
	_, err = b.Client.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
		PodSandboxId: pod.ID, Config: b.Client.ContainerConfig("main", b.Image), SandboxConfig: pod.Config,
	})
	testbed.Refused(t, err, codes.AlreadyExists, "crictl rm -f "+c.ID)
	_, err = b.Client.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: c.ID, Cmd: []string{"true"}})
	testbed.Refused(t, err, codes.FailedPrecondition, c.ID)

	c.Start(t)
	_, err = b.Client.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: c.ID})
	testbed.Refused(t, err, codes.FailedPrecondition, "created")
	_, err = b.Client.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: c.ID})
	testbed.Refused(t, err, codes.InvalidArgument, "cmd")
	_, err = b.Client.UpdateContainerResources(ctx, &runtimeapi.UpdateContainerResourcesRequest{ContainerId: c.ID})
	testbed.Refused(t, err, codes.InvalidArgument, "linux")
	_, err = b.Client.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: c.ID, Cmd: []string{"sleep", "3600"}, Timeout: 1})
	testbed.Refused(t, err, codes.DeadlineExceeded)

	pod.Stop(t)
	_, err = b.Client.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
		PodSandboxId: pod.ID, Config: b.Client.ContainerConfig("late", b.Image), SandboxConfig: pod.Config,
	})
	testbed.Refused(t, err, codes.FailedPrecondition, pod.ID)
	_, err = b.Client.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: c.ID, Cmd: []string{"true"}})
	testbed.Refused(t, err, codes.FailedPrecondition, c.ID)
	pod.Remove(t)
}
