package remote

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

const uidLabel = "io.kubernetes.pod.uid"

// tryTimeout limits one attempt.
const tryTimeout = 30 * time.Second

// kubelet syncs one pod as a kubelet does: it lists, takes the next missing step, and lists again
// after a failure.
type kubelet struct {
	client  *testbed.Client
	handler string
	image   string
	config  *runtimeapi.PodSandboxConfig
	// container changes the configuration of the pod's container; may be nil.
	container func(*runtimeapi.ContainerConfig)
}

// errDoubled is an error that no retry corrects.
var errDoubled = errors.New("doubled")

// until repeats a step until it succeeds.
func until(t *testing.T, what string, step func(context.Context) error) {
	t.Helper()
	testbed.Eventually(t, patience, func() error {
		ctx, cancel := context.WithTimeout(t.Context(), tryTimeout)
		defer cancel()
		err := step(ctx)
		if errors.Is(err, errDoubled) {
			t.Fatalf("%s: %v", what, err)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		return nil
	})
}

func (k *kubelet) sandboxes(ctx context.Context) ([]*runtimeapi.PodSandbox, error) {
	l, err := k.client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{
		Filter: &runtimeapi.PodSandboxFilter{LabelSelector: map[string]string{uidLabel: k.config.GetMetadata().GetUid()}},
	})
	return l.GetItems(), err
}

func (k *kubelet) containers(ctx context.Context) ([]*runtimeapi.Container, error) {
	l, err := k.client.ListContainers(ctx, &runtimeapi.ListContainersRequest{
		Filter: &runtimeapi.ContainerFilter{LabelSelector: map[string]string{uidLabel: k.config.GetMetadata().GetUid()}},
	})
	return l.GetContainers(), err
}

func (k *kubelet) run(ctx context.Context) (string, error) {
	resp, err := k.client.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: k.config, RuntimeHandler: k.handler})
	return resp.GetPodSandboxId(), err
}

// sandbox removes the pod's sandboxes that are not READY, and runs one if none is READY.
func (k *kubelet) sandbox(ctx context.Context) (string, error) {
	all, err := k.sandboxes(ctx)
	if err != nil {
		return "", err
	}
	ready := ""
	for _, s := range all {
		if s.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY {
			if ready != "" {
				return "", fmt.Errorf("%w: sandboxes %s and %s are both READY", errDoubled, ready, s.GetId())
			}
			ready = s.GetId()
			continue
		}
		if err := k.remove(ctx, s.GetId()); err != nil {
			return "", err
		}
		k.config.Metadata.Attempt = max(k.config.GetMetadata().GetAttempt(), s.GetMetadata().GetAttempt()+1)
	}
	if ready != "" {
		return ready, nil
	}
	return k.run(ctx)
}

func (k *kubelet) remove(ctx context.Context, id string) error {
	if _, err := k.client.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id}); err != nil {
		return err
	}
	_, err := k.client.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})
	return err
}

// gone removes all sandboxes of the pod.
func (k *kubelet) gone(ctx context.Context) error {
	all, err := k.sandboxes(ctx)
	if err != nil {
		return err
	}
	for _, s := range all {
		if err := k.remove(ctx, s.GetId()); err != nil {
			return err
		}
	}
	if all, err := k.sandboxes(ctx); err != nil || len(all) > 0 {
		return fmt.Errorf("after the removal the sandboxes %v are listed, %w", all, err)
	}
	return nil
}

func (k *kubelet) create(ctx context.Context, sandbox string, attempt uint32) (string, error) {
	c := k.client.ContainerConfig("main", k.image, "sleep", "3600")
	c.Labels = map[string]string{uidLabel: k.config.GetMetadata().GetUid()}
	c.Metadata.Attempt = attempt
	if k.container != nil {
		k.container(c)
	}
	resp, err := k.client.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: sandbox, Config: c, SandboxConfig: k.config})
	return resp.GetContainerId(), err
}

func (k *kubelet) start(ctx context.Context, container string) error {
	_, err := k.client.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: container})
	return err
}

// running gives the pod one READY sandbox with one running container, and returns both IDs.
func (k *kubelet) running(ctx context.Context) (sandbox, container string, err error) {
	if sandbox, err = k.sandbox(ctx); err != nil {
		return "", "", err
	}
	all, err := k.containers(ctx)
	if err != nil {
		return "", "", err
	}
	attempt := uint32(0)
	for _, c := range all {
		if c.GetPodSandboxId() == sandbox && c.GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING {
			if container != "" {
				return "", "", fmt.Errorf("%w: containers %s and %s both run", errDoubled, container, c.GetId())
			}
			container = c.GetId()
			continue
		}
		if _, err := k.client.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: c.GetId()}); err != nil {
			return "", "", err
		}
		attempt = max(attempt, c.GetMetadata().GetAttempt()+1)
	}
	if container != "" {
		return sandbox, container, nil
	}
	if container, err = k.create(ctx, sandbox, attempt); err != nil {
		return "", "", err
	}
	return sandbox, container, k.start(ctx, container)
}

func (k *kubelet) exec(ctx context.Context, container string, command ...string) (string, error) {
	resp, err := k.client.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: container, Cmd: command, Timeout: 20})
	if err == nil && resp.GetExitCode() != 0 {
		err = fmt.Errorf("exit code %d: %s", resp.GetExitCode(), resp.GetStderr())
	}
	return string(resp.GetStdout()), err
}
