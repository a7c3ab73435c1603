package conformance

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

var sandboxInputChecks = []check{
	{name: "unknown handler names the known ones", run: unknownHandler},
	{name: "an unknown handler takes no name", run: unknownHandlerNoSideEffect},
	{name: "user namespace options that make no sense", run: badUserNamespaces},
	{name: "a group without a user", run: sandboxGroupWithoutUser},
	{name: "privileged container in a plain sandbox", run: privilegedInPlainSandbox},
	{name: "empty ids", berth: true, run: emptyIDs},
}

func unknownHandler(t *testing.T, n *node) {
	near := n.Handler + "x"
	_, err := n.Runtime.RunPodSandbox(call(t), &runtimeapi.RunPodSandboxRequest{Config: n.podConfig(t), RuntimeHandler: near})
	n.rejects(t, err, "RunPodSandbox with an unknown handler", codes.InvalidArgument)
	if status.Code(err) == codes.NotFound {
		t.Error("an unknown handler must not answer NotFound")
	}
	text := status.Convert(err).Message()
	testbed.Contains(t, text, near, "the message does not name the handler")
	if n.Berth && (!strings.Contains(text, `"`+n.Handler+`"`) && !strings.Contains(text, n.Handler+",") && !strings.Contains(text, n.Handler+" ")) {
		t.Errorf("the message does not name the known handlers: %s", text)
	}
	if len(text) > 1024 {
		t.Errorf("the message has %d bytes, want at most 1024", len(text))
	}
}

func unknownHandlerNoSideEffect(t *testing.T, n *node) {
	cfg := n.podConfig(t)
	_, err := n.Runtime.RunPodSandbox(call(t), &runtimeapi.RunPodSandboxRequest{Config: cfg, RuntimeHandler: "no-such-handler"})
	mustFail(t, err, "RunPodSandbox with an unknown handler")
	testbed.Empty(t, n.listSandboxes(t, &runtimeapi.PodSandboxFilter{LabelSelector: cfg.GetLabels()}), "a refused sandbox is listed")
	_, err = n.tryPod(t, cfg)
	must(t, err, "RunPodSandbox of the same attempt with a known handler")
}

func badUserNamespaces(t *testing.T, n *node) {
	one := []*runtimeapi.IDMapping{{HostId: 100000, ContainerId: 0, Length: 65536}}
	two := []*runtimeapi.IDMapping{one[0], {HostId: 200000, ContainerId: 65536, Length: 65536}}
	for name, u := range map[string]*runtimeapi.UserNamespace{
		"CONTAINER":         {Mode: runtimeapi.NamespaceMode_CONTAINER, Uids: one, Gids: one},
		"TARGET":            {Mode: runtimeapi.NamespaceMode_TARGET, Uids: one, Gids: one},
		"NODE and mappings": {Mode: runtimeapi.NamespaceMode_NODE, Uids: one, Gids: one},
		"two mappings":      {Mode: runtimeapi.NamespaceMode_POD, Uids: two, Gids: two},
		"no length": {Mode: runtimeapi.NamespaceMode_POD,
			Uids: []*runtimeapi.IDMapping{{HostId: 1}}, Gids: []*runtimeapi.IDMapping{{HostId: 1}}},
		"uids only": {Mode: runtimeapi.NamespaceMode_POD, Uids: one},
	} {
		cfg := n.podConfig(t)
		cfg.Linux.SecurityContext.NamespaceOptions.UsernsOptions = u
		_, err := n.tryPod(t, cfg)
		if err == nil {
			t.Errorf("%s: accepted", name)
		} else if n.Berth && status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v, want InvalidArgument", name, err)
		}
	}
}

func sandboxGroupWithoutUser(t *testing.T, n *node) {
	cfg := n.podConfig(t)
	cfg.Linux.SecurityContext.RunAsGroup = &runtimeapi.Int64Value{Value: 1000}
	_, err := n.tryPod(t, cfg)
	n.rejects(t, err, "RunPodSandbox with run_as_group alone", codes.InvalidArgument)
}

func privilegedInPlainSandbox(t *testing.T, n *node) {
	p := n.pod(t)
	_, err := p.tryCreate(t, p.containerConfig(forever(), security(func(s *runtimeapi.LinuxContainerSecurityContext) {
		s.Privileged = true
	})))
	n.rejects(t, err, "a privileged container in a sandbox that is not privileged", codes.InvalidArgument, codes.FailedPrecondition)
}

func emptyIDs(t *testing.T, n *node) {
	p := n.pod(t)
	ctx := call(t)
	_, err := n.Runtime.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{})
	mustFail(t, err, "PodSandboxStatus with an empty id", codes.InvalidArgument, codes.NotFound)
	_, err = n.Runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{})
	mustFail(t, err, "ContainerStatus with an empty id", codes.InvalidArgument, codes.NotFound)
	_, err = n.Runtime.StartContainer(ctx, &runtimeapi.StartContainerRequest{})
	mustFail(t, err, "StartContainer with an empty id", codes.InvalidArgument, codes.NotFound)
	_, err = n.Runtime.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{Config: p.containerConfig(forever()), SandboxConfig: p.Config})
	mustFail(t, err, "CreateContainer with an empty sandbox id", codes.InvalidArgument, codes.NotFound)
	// An empty id is a prefix of every id: nothing must be stopped or removed by it.
	_, _ = n.Runtime.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{})
	_, _ = n.Runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{})
	testbed.Same(t, p.status(t).GetState(), runtimeapi.PodSandboxState_SANDBOX_READY, "a call with an empty id changed a sandbox to")
}
