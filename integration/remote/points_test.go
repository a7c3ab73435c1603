package remote

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/uuid"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// subject is the pod of one call that is in progress when a daemon is struck: stopped or killed.
type subject struct {
	*kubelet
	gates     *gates
	image     string // the image to pull
	pod       string
	container string
}

// point is a state of a pod in which a daemon is struck.
type point struct {
	name string
	// network is whether the pod needs a network of its own.
	network bool
	// prepare brings the pod into the state before act.
	prepare func(t *testing.T, s *subject)
	// act is the call that is in progress when the daemon is struck; its result is ignored.
	act func(ctx context.Context, s *subject) error
	// begun is whether act is in progress; nil if that cannot be observed.
	begun func(s *subject) bool
	// settle is what a kubelet repeats until the pod is in the wanted state.
	settle func(ctx context.Context, s *subject) error
}

// term makes a container one that logs SIGTERM but does not exit.
func term(c *runtimeapi.ContainerConfig) {
	c.Command = []string{"sh", "-c", "trap 'echo asked' TERM; while :; do sleep 0.1; done"}
}

func withSandbox(t *testing.T, s *subject) {
	t.Helper()
	until(t, "run a sandbox", func(ctx context.Context) (err error) { s.pod, err = s.sandbox(ctx); return err })
}

func withContainer(t *testing.T, s *subject) {
	t.Helper()
	until(t, "run a pod", func(ctx context.Context) (err error) { s.pod, s.container, err = s.running(ctx); return err })
}

// works starts what is missing of the pod, and runs a command in its container.
func works(ctx context.Context, s *subject) error {
	var err error
	if s.pod, s.container, err = s.running(ctx); err != nil {
		return err
	}
	out, err := s.exec(ctx, s.container, "echo", "here")
	if err == nil && out != "here\n" {
		err = fmt.Errorf("exec in the container prints %q", out)
	}
	return err
}

func (s *subject) log() string {
	all, err := os.ReadFile(s.config.GetLogDirectory() + "/main/0.log")
	if err != nil {
		return ""
	}
	return string(all)
}

// points are the steps in the life of a pod.
var points = []point{
	{name: "idle", prepare: withContainer, settle: works},
	{
		name: "PullImage",
		prepare: func(t *testing.T, s *subject) {
			withSandbox(t, s)
			s.gates.hold(t, s.gate())
		},
		act:   func(ctx context.Context, s *subject) error { return s.pull(ctx) },
		begun: func(s *subject) bool { return s.gates.arrived(s.gate()) },
		settle: func(ctx context.Context, s *subject) error {
			if err := s.pull(ctx); err != nil {
				return err
			}
			_, err := s.client.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: s.spec()})
			return err
		},
	},
	{
		name: "RunPodSandbox", network: true,
		prepare: func(t *testing.T, s *subject) { s.gates.hold(t, "ADD-"+s.config.GetMetadata().GetName()) },
		act:     func(ctx context.Context, s *subject) error { _, err := s.run(ctx); return err },
		begun:   func(s *subject) bool { return s.gates.arrived("ADD-" + s.config.GetMetadata().GetName()) },
		settle:  works,
	},
	{
		name: "CreateContainer", prepare: withSandbox,
		act:    func(ctx context.Context, s *subject) error { _, err := s.create(ctx, s.pod, 0); return err },
		settle: works,
	},
	{
		name: "StartContainer",
		prepare: func(t *testing.T, s *subject) {
			withSandbox(t, s)
			until(t, "create a container", func(ctx context.Context) (err error) { s.container, err = s.create(ctx, s.pod, 0); return err })
			s.gates.hold(t, s.container)
		},
		act:    func(ctx context.Context, s *subject) error { return s.start(ctx, s.container) },
		begun:  func(s *subject) bool { return s.gates.arrived(s.container) },
		settle: works,
	},
	{
		name: "ExecSync", prepare: withContainer,
		act: func(ctx context.Context, s *subject) error {
			_, err := s.exec(ctx, s.container, "sh", "-c", "echo begun >/proc/1/fd/1; sleep 2")
			return err
		},
		begun:  func(s *subject) bool { return strings.Contains(s.log(), "begun") },
		settle: works,
	},
	{
		name: "StopContainer",
		prepare: func(t *testing.T, s *subject) {
			s.kubelet.container = term
			withContainer(t, s)
		},
		act:   func(ctx context.Context, s *subject) error { return s.stop(ctx) },
		begun: func(s *subject) bool { return strings.Contains(s.log(), "asked") },
		settle: func(ctx context.Context, s *subject) error {
			if err := s.stop(ctx); err != nil {
				return err
			}
			got, err := s.client.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: s.container})
			if err == nil && got.GetStatus().GetState() != runtimeapi.ContainerState_CONTAINER_EXITED {
				err = fmt.Errorf("the state is %v after the stop", got.GetStatus().GetState())
			}
			return err
		},
	},
	{
		name: "StopPodSandbox", network: true,
		prepare: func(t *testing.T, s *subject) {
			withContainer(t, s)
			s.gates.hold(t, "DEL-"+s.config.GetMetadata().GetName())
		},
		act: func(ctx context.Context, s *subject) error {
			_, err := s.client.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: s.pod})
			return err
		},
		begun: func(s *subject) bool { return s.gates.arrived("DEL-" + s.config.GetMetadata().GetName()) },
		settle: func(ctx context.Context, s *subject) error {
			if _, err := s.client.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: s.pod}); err != nil {
				return err
			}
			got, err := s.client.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: s.pod})
			if err == nil && got.GetStatus().GetState() != runtimeapi.PodSandboxState_SANDBOX_NOTREADY {
				err = fmt.Errorf("the state is %v after the stop", got.GetStatus().GetState())
			}
			return err
		},
	},
	{
		name: "RemovePodSandbox",
		prepare: func(t *testing.T, s *subject) {
			withContainer(t, s)
			until(t, "stop a sandbox", func(ctx context.Context) error {
				_, err := s.client.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: s.pod})
				return err
			})
		},
		act: func(ctx context.Context, s *subject) error {
			_, err := s.client.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: s.pod})
			return err
		},
		settle: func(ctx context.Context, s *subject) error { return s.gone(ctx) },
	},
	{
		name: "exit",
		prepare: func(t *testing.T, s *subject) {
			s.gates.hold(t, "end-"+s.config.GetMetadata().GetName())
			s.kubelet.container = s.ends
			withContainer(t, s)
		},
		settle: func(ctx context.Context, s *subject) error {
			got, err := s.client.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: s.container})
			if err == nil && got.GetStatus().GetState() != runtimeapi.ContainerState_CONTAINER_EXITED {
				err = fmt.Errorf("the state is %v after the exit", got.GetStatus().GetState())
			}
			return err
		},
	},
}

// ends makes a container one that exits when its gate is opened.
func (s *subject) ends(c *runtimeapi.ContainerConfig) {
	c.Command = []string{"sh", "-c", "while [ -e /gates/hold/end-" + s.config.GetMetadata().GetName() + " ]; do sleep 0.05; done; exit 7"}
	c.Mounts = append(c.Mounts, &runtimeapi.Mount{HostPath: s.gates.dir, ContainerPath: "/gates", Readonly: true})
}

func (s *subject) gate() string {
	_, repository, _ := strings.Cut(s.image, "/")
	repository, _, _ = strings.Cut(repository, ":")
	return "pull-" + strings.ReplaceAll(repository, "/", "-")
}

func (s *subject) spec() *runtimeapi.ImageSpec {
	return &runtimeapi.ImageSpec{Image: s.image, RuntimeHandler: s.handler}
}

func (s *subject) pull(ctx context.Context) error {
	_, err := s.client.PullImage(ctx, &runtimeapi.PullImageRequest{Image: s.spec(), SandboxConfig: s.config})
	return err
}

func (s *subject) stop(ctx context.Context) error {
	_, err := s.client.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: s.container, Timeout: 2})
	return err
}

// newSubject returns a pod that does not exist yet.
func (n *node) newSubject(t *testing.T, p point, handler string) *subject {
	t.Helper()
	n.made++
	k := &kubelet{client: n.client, handler: handler, image: n.image, config: n.client.SandboxConfig(fmt.Sprintf("%s-%s-%d", strings.ToLower(p.name), handler, n.made))}
	k.config.Metadata.Uid = uuid.NewString()
	k.config.Labels = map[string]string{uidLabel: k.config.GetMetadata().GetUid()}
	k.config.LogDirectory = n.client.LogRoot + "/" + k.config.GetMetadata().GetName()
	if !p.network { // starts faster
		k.config.Hostname = ""
		k.config.Linux.SecurityContext.NamespaceOptions.Network = runtimeapi.NamespaceMode_NODE
	}
	s := &subject{kubelet: k, gates: n.gates}
	if p.name == "PullImage" {
		s.image = n.registry.Push(t, fmt.Sprintf("chaos/image-%d:1", n.made), numbered(t, n.made))
	}
	return s
}
