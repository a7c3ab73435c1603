package conformance

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

var containerInputChecks = []check{
	{name: "an absent image is an error and is never pulled", run: absentImage},
	{name: "a missing sandbox", run: createInMissingSandbox},
	{name: "a group without a user", run: containerGroupWithoutUser},
	{name: "an unknown user name", run: unknownUserName},
	{name: "recursive read-only that makes no sense", run: badRecursiveReadOnly},
	{name: "an unknown CDI device", run: unknownCDIDevice},
	{name: "a missing device", run: missingDevice},
	{name: "a missing seccomp profile", run: missingSeccompProfile},
	{name: "user namespace options that differ from the sandbox's", run: otherUserNamespace},
	{name: "no command at all", run: noCommand},
	{name: "calls for a missing container", run: missingContainerCalls},
}

func absentImage(t *testing.T, n *node) {
	p := n.pod(t)
	for _, ref := range []string{n.Image.Absent, n.Image.User, "sha256:" + strings.Repeat("1", 64)} {
		_, _ = n.Images.RemoveImage(call(t), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}})
		_, err := p.tryCreate(t, p.containerConfig(forever(), func(c *runtimeapi.ContainerConfig) {
			c.Image = &runtimeapi.ImageSpec{Image: ref}
		}))
		n.rejects(t, err, "CreateContainer with the absent image "+ref, codes.NotFound)
		if n.imageStatus(t, ref) != nil {
			t.Errorf("CreateContainer pulled %s", ref)
		}
	}
	testbed.Empty(t, n.listContainers(t, &runtimeapi.ContainerFilter{PodSandboxId: p.ID}), "refused containers are listed")
}

func createInMissingSandbox(t *testing.T, n *node) {
	gone := &pod{node: n, ID: strings.Repeat("cd", 32), Config: n.podConfig(t)}
	_, err := gone.tryCreate(t, gone.containerConfig(forever()))
	n.rejects(t, err, "CreateContainer in a missing sandbox", codes.NotFound)
}

// refused tries to create a container that must be refused.
func (p *pod) refused(t *testing.T, what string, opts ...containerOption) {
	t.Helper()
	_, err := p.tryCreate(t, p.containerConfig(forever(), opts...))
	p.rejects(t, err, "CreateContainer with "+what, codes.InvalidArgument, codes.FailedPrecondition, codes.NotFound)
	if got := p.listContainers(t, &runtimeapi.ContainerFilter{PodSandboxId: p.ID}); len(got) != 0 {
		t.Errorf("the container with %s is listed", what)
	}
}

func containerGroupWithoutUser(t *testing.T, n *node) {
	n.pod(t).refused(t, "run_as_group alone", security(func(s *runtimeapi.LinuxContainerSecurityContext) {
		s.RunAsGroup = &runtimeapi.Int64Value{Value: 1000}
	}))
}

func unknownUserName(t *testing.T, n *node) {
	n.pod(t).refused(t, "an unknown user name", security(func(s *runtimeapi.LinuxContainerSecurityContext) {
		s.RunAsUsername = "nobody-knows-me"
	}))
}

func badRecursiveReadOnly(t *testing.T, n *node) {
	p, dir := n.pod(t), t.TempDir()
	p.refused(t, "a recursive read-only mount that is writable",
		mount(&runtimeapi.Mount{ContainerPath: "/m", HostPath: dir, RecursiveReadOnly: true}))
	p.refused(t, "a recursive read-only mount that propagates",
		mount(&runtimeapi.Mount{ContainerPath: "/m", HostPath: dir, RecursiveReadOnly: true, Readonly: true,
			Propagation: runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER}))
}

func unknownCDIDevice(t *testing.T, n *node) {
	n.pod(t).refused(t, "an unknown CDI device", func(c *runtimeapi.ContainerConfig) {
		c.CDIDevices = []*runtimeapi.CDIDevice{{Name: "vendor.test/class=missing"}}
	})
}

func missingDevice(t *testing.T, n *node) {
	n.pod(t).refused(t, "a missing device", func(c *runtimeapi.ContainerConfig) {
		c.Devices = []*runtimeapi.Device{{HostPath: "/dev/no-such-device", ContainerPath: "/dev/x", Permissions: "rw"}}
	})
}

func missingSeccompProfile(t *testing.T, n *node) {
	n.pod(t).refused(t, "a missing seccomp profile", security(func(s *runtimeapi.LinuxContainerSecurityContext) {
		s.Seccomp = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: "/no/such/profile.json"}
	}))
}

func otherUserNamespace(t *testing.T, n *node) {
	n.pod(t).refused(t, "user namespace options that the sandbox does not have", security(func(s *runtimeapi.LinuxContainerSecurityContext) {
		m := []*runtimeapi.IDMapping{{HostId: 100000, ContainerId: 0, Length: 65536}}
		s.NamespaceOptions = &runtimeapi.NamespaceOption{
			Pid:           runtimeapi.NamespaceMode_CONTAINER,
			UsernsOptions: &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: m, Gids: m},
		}
	}))
}

// noCommand needs an image without entry point and command.
func noCommand(t *testing.T, n *node) {
	n.pod(t).refused(t, "no command", func(c *runtimeapi.ContainerConfig) {
		c.Command, c.Args = nil, nil
		c.Image = &runtimeapi.ImageSpec{Image: n.pull(t, n.Image.Other)}
	})
}

func missingContainerCalls(t *testing.T, n *node) {
	ctx, id := call(t), strings.Repeat("be", 32)
	_, err := n.Runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
	mustFail(t, err, "ContainerStatus", codes.NotFound)
	_, err = n.Runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: id})
	must(t, err, "StopContainer of a missing container")
	_, err = n.Runtime.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: id})
	must(t, err, "RemoveContainer of a missing container")
	_, err = n.Runtime.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: id})
	n.rejects(t, err, "StartContainer", codes.NotFound)
	_, err = n.Runtime.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"true"}})
	n.rejects(t, err, "ExecSync", codes.NotFound)
	_, err = n.Runtime.UpdateContainerResources(ctx, &runtimeapi.UpdateContainerResourcesRequest{ContainerId: id, Linux: &runtimeapi.LinuxContainerResources{}})
	n.rejects(t, err, "UpdateContainerResources", codes.NotFound)
	_, err = n.Runtime.ReopenContainerLog(ctx, &runtimeapi.ReopenContainerLogRequest{ContainerId: id})
	n.rejects(t, err, "ReopenContainerLog", codes.NotFound)
	if _, lacks := n.Lacks[Stats]; !lacks {
		_, err = n.Runtime.ContainerStats(ctx, &runtimeapi.ContainerStatsRequest{ContainerId: id})
		n.rejects(t, err, "ContainerStats", codes.NotFound)
	}
}
