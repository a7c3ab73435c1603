package testbed

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/patience"
)

// PodSpec is the short form of a pod with one container.
type PodSpec struct {
	// Handler is the runtime handler; empty is the default.
	Handler string
	// Image is pulled if the daemon does not have it.
	Image string
	// Command and Args are those of the container; if empty, those of the image.
	Command, Args []string
	// Name is the pod's name; if empty, it is a new one.
	Name string
	// Sandbox and Container, if set, change the configs that are sent.
	Sandbox   func(*runtimeapi.PodSandboxConfig)
	Container func(*runtimeapi.ContainerConfig)
}

// Pod is a sandbox that a helper of Client has created.
type Pod struct {
	// ID is the sandbox's id.
	ID string
	// Handler is the runtime handler that was requested.
	Handler string
	// Config is the config that was sent.
	Config *runtimeapi.PodSandboxConfig
	// Container is the container that RunPod started; nil after RunSandbox.
	Container *Container
	// Ready is the time from RunPodSandbox to the answer of StartContainer, without the pull.
	Ready time.Duration

	client *Client
}

// Container is a container that a helper has created.
type Container struct {
	// ID is the container's id.
	ID string
	// LogPath is the absolute path of its log.
	LogPath string

	client *Client
}

var pods atomic.Int64

// SandboxConfig returns a config as a kubelet would send it for a small pod: with a log directory
// and new namespaces, except for the user namespace.
func (c *Client) SandboxConfig(name string) *runtimeapi.PodSandboxConfig {
	if name == "" {
		name = fmt.Sprintf("pod-%d-%d", os.Getpid(), pods.Add(1))
	}
	config := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "testbed", Uid: uuid.NewString()},
		Hostname: name,
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
				NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
			},
		},
	}
	if c.CgroupParent != "" {
		config.Linux.CgroupParent = filepath.Join(c.CgroupParent, name)
	}
	config.LogDirectory = c.logDirectory(config.GetMetadata())
	return config
}

// ContainerConfig returns a container's config as a kubelet would send it.
func (c *Client) ContainerConfig(name, image string, command ...string) *runtimeapi.ContainerConfig {
	return &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: name},
		Image:    &runtimeapi.ImageSpec{Image: image, UserSpecifiedImage: image},
		Command:  command,
		LogPath:  filepath.Join(name, "0.log"),
		Linux: &runtimeapi.LinuxContainerConfig{
			Resources: &runtimeapi.LinuxContainerResources{},
			SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
				NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
			},
		},
	}
}

// RunSandbox runs a sandbox without containers. A cleanup removes it.
func (c *Client) RunSandbox(t T, spec PodSpec) *Pod {
	t.Helper()
	config := c.SandboxConfig(spec.Name)
	if spec.Sandbox != nil {
		spec.Sandbox(config)
	}
	ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
	defer cancel()
	begin := time.Now()
	response, err := c.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: config, RuntimeHandler: spec.Handler})
	Mustf(t, err, "run a sandbox under handler %q", spec.Handler)
	pod := &Pod{ID: response.GetPodSandboxId(), Handler: spec.Handler, Config: config, Ready: time.Since(begin), client: c}
	t.Cleanup(func() {
		err := c.removePod(context.Background(), pod.ID)
		// A test may have killed the daemon; then the testbed's own cleanup removes the pod.
		if err != nil && status.Code(err) != codes.Unavailable {
			t.Errorf("remove pod %s: %v", config.GetMetadata().GetName(), err)
		}
	})
	return pod
}

// RunPod pulls the image if it is missing, runs a sandbox and starts a container in it. A cleanup
// removes both.
func (c *Client) RunPod(t T, spec PodSpec) *Pod {
	t.Helper()
	c.needImage(t, spec.Handler, spec.Image)
	pod := c.RunSandbox(t, spec)
	begin := time.Now()
	pod.Container = pod.RunContainer(t, "main", spec)
	pod.Ready += time.Since(begin)
	return pod
}

func (c *Client) needImage(t T, handler, image string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
	defer cancel()
	response, err := c.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{
		Image: &runtimeapi.ImageSpec{Image: image, RuntimeHandler: handler},
	})
	Mustf(t, err, "look for image %s", image)
	if response.GetImage() == nil {
		c.Pull(t, handler, image)
	}
}

// CreateContainer creates a container from the spec's image, command and
// Container function.
func (p *Pod) CreateContainer(t T, name string, spec PodSpec) *Container {
	t.Helper()
	config := p.client.ContainerConfig(name, spec.Image, spec.Command...)
	config.Args = spec.Args
	if spec.Container != nil {
		spec.Container(config)
	}
	// With CRI-O, the kubelet must create the directory.
	if log := config.GetLogPath(); p.Config.GetLogDirectory() != "" && filepath.IsLocal(log) {
		Mustf(t, os.MkdirAll(filepath.Dir(filepath.Join(p.Config.GetLogDirectory(), log)), 0o755), "make the log's directory")
	}
	ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
	defer cancel()
	response, err := p.client.RuntimeServiceClient.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
		PodSandboxId: p.ID, Config: config, SandboxConfig: p.Config,
	})
	Mustf(t, err, "create container %s under handler %q", name, p.Handler)
	return &Container{
		ID:      response.GetContainerId(),
		LogPath: filepath.Join(p.Config.GetLogDirectory(), config.GetLogPath()),
		client:  p.client,
	}
}

// TryCreate creates a container that may be refused.
func (p *Pod) TryCreate(t T, config *runtimeapi.ContainerConfig) (id string, err error) {
	t.Helper()
	r, err := p.client.RuntimeServiceClient.CreateContainer(Within(t, time.Minute), &runtimeapi.CreateContainerRequest{
		PodSandboxId: p.ID, Config: config, SandboxConfig: p.Config,
	})
	return r.GetContainerId(), err
}

// RunContainer is CreateContainer and Start.
func (p *Pod) RunContainer(t T, name string, spec PodSpec) *Container {
	t.Helper()
	container := p.CreateContainer(t, name, spec)
	container.Start(t)
	return container
}

// IP returns the pod's address; empty in the host's network.
func (p *Pod) IP(t T) string {
	t.Helper()
	return p.Status(t).GetNetwork().GetIp()
}

// Status returns the sandbox's status.
func (p *Pod) Status(t T) *runtimeapi.PodSandboxStatus {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
	defer cancel()
	response, err := p.client.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: p.ID})
	Mustf(t, err, "status of sandbox %s", p.ID)
	return response.GetStatus()
}

// Stop stops the sandbox and all that runs in it.
func (p *Pod) Stop(t T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
	defer cancel()
	if _, err := p.client.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: p.ID}); err != nil {
		t.Fatalf("stop sandbox %s: %v", p.ID, err)
	}
}

// TryStop is Stop with a time limit, and returns the error.
func (p *Pod) TryStop(t T, within time.Duration) error {
	t.Helper()
	_, err := p.client.StopPodSandbox(Within(t, within), &runtimeapi.StopPodSandboxRequest{PodSandboxId: p.ID})
	return err
}

// WaitNotReady waits until the sandbox is NOTREADY.
func (p *Pod) WaitNotReady(t T) {
	t.Helper()
	Eventually(t, stateTimeout, func() error {
		if state := p.Status(t).GetState(); state != runtimeapi.PodSandboxState_SANDBOX_NOTREADY {
			return fmt.Errorf("the sandbox is %s", state)
		}
		return nil
	})
}

// Remove stops and removes the sandbox with its containers.
func (p *Pod) Remove(t T) {
	t.Helper()
	Mustf(t, p.client.removePod(t.Context(), p.ID), "remove pod %s", p.Config.GetMetadata().GetName())
}

// Start starts the container.
func (c *Container) Start(t T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
	defer cancel()
	if _, err := c.client.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: c.ID}); err != nil {
		t.Fatalf("start container %s: %v", c.ID, err)
	}
}

// Stop stops the container; the daemon kills it after the grace period.
func (c *Container) Stop(t T, grace time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
	defer cancel()
	_, err := c.client.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: c.ID, Timeout: int64(grace.Seconds())})
	Mustf(t, err, "stop container %s", c.ID)
}

// Remove removes the container.
func (c *Container) Remove(t T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
	defer cancel()
	if _, err := c.client.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: c.ID}); err != nil {
		t.Fatalf("remove container %s: %v", c.ID, err)
	}
}

// Status returns the container's status.
func (c *Container) Status(t T) *runtimeapi.ContainerStatus {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
	defer cancel()
	response, err := c.client.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: c.ID})
	Mustf(t, err, "status of container %s", c.ID)
	return response.GetStatus()
}

// ExecResult is the result of a command in a container.
type ExecResult struct {
	Stdout, Stderr string
	ExitCode       int32
}

// TryExec runs a command in the container.
func (c *Container) TryExec(t T, command ...string) ExecResult {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
	defer cancel()
	response, err := c.client.ExecSync(ctx, &runtimeapi.ExecSyncRequest{
		ContainerId: c.ID, Cmd: command, Timeout: int64(callTimeout.Seconds()),
	})
	Mustf(t, err, "exec %q in container %s", command, c.ID)
	return ExecResult{
		Stdout:   string(response.GetStdout()),
		Stderr:   string(response.GetStderr()),
		ExitCode: response.GetExitCode(),
	}
}

// Exec runs a command in the container, which must succeed, and returns what it
// wrote to stdout.
func (c *Container) Exec(t T, command ...string) string {
	t.Helper()
	result := c.TryExec(t, command...)
	if result.ExitCode != 0 {
		t.Fatalf("exec %q in container %s: exit code %d: %s", command, c.ID, result.ExitCode, result.Stderr)
	}
	return result.Stdout
}

// WaitState waits until the container is in a state, and returns its status.
func (c *Container) WaitState(t T, state runtimeapi.ContainerState) *runtimeapi.ContainerStatus {
	t.Helper()
	var last *runtimeapi.ContainerStatus
	Eventually(t, stateTimeout, func() error {
		last = c.Status(t)
		if last.GetState() != state {
			return fmt.Errorf("container %s is in state %s, not %s", c.ID, last.GetState(), state)
		}
		return nil
	})
	return last
}

// WaitExit waits until the container has exited, and returns its status.
func (c *Container) WaitExit(t T) *runtimeapi.ContainerStatus {
	t.Helper()
	return c.WaitState(t, runtimeapi.ContainerState_CONTAINER_EXITED)
}

// stateTimeout limits the wait for a state of a container or sandbox.
const stateTimeout = 2 * time.Minute

// Eventually calls check until it returns nil, and fails with its last error after the timeout,
// which is longer on a slow machine.
func Eventually(t T, timeout time.Duration, check func() error) {
	t.Helper()
	Poll(t, timeout, 100*time.Millisecond, check)
}

// Poll is Eventually with another longest time between two checks. That time is a millisecond at
// first and doubles.
func Poll(t T, timeout, longest time.Duration, check func() error) {
	t.Helper()
	timeout = patience.Of(timeout)
	deadline := time.Now().Add(timeout)
	for wait := time.Millisecond; ; wait = min(2*wait, longest) {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %v: %v", timeout, err)
		}
		select {
		case <-time.After(wait):
		case <-t.Context().Done():
			t.Fatalf("%v: %v", context.Cause(t.Context()), err)
		}
	}
}

// Container returns a container that was not created by a Pod.
func (c *Client) Container(id, logPath string) *Container {
	return &Container{ID: id, LogPath: logPath, client: c}
}
