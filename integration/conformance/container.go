package conformance

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// container is a container that a check created, with the config that was sent.
type container struct {
	*pod
	ID     string
	Config *runtimeapi.ContainerConfig
}

type containerOption func(*runtimeapi.ContainerConfig)

// forever is a command that runs until it is killed. It exits at once on SIGTERM, which a shell as
// process 1 would ignore without the trap.
func forever() []string { return sh("trap 'exit 143' TERM; while :; do sleep 3600 & wait $!; done") }

func sh(script string) []string { return []string{"/bin/sh", "-c", script} }

// containerConfig is what a kubelet sends for a plain container of the pod.
func (p *pod) containerConfig(cmd []string, opts ...containerOption) *runtimeapi.ContainerConfig {
	name := fmt.Sprintf("c%d", serial.Add(1))
	c := &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: name},
		Image:    &runtimeapi.ImageSpec{Image: p.imageID, UserSpecifiedImage: p.Image.Busybox},
		Command:  cmd,
		LogPath:  name + "/0.log",
		Labels:   map[string]string{"io.kubernetes.container.name": name},
		Linux: &runtimeapi.LinuxContainerConfig{
			Resources: &runtimeapi.LinuxContainerResources{},
			SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
				NamespaceOptions: p.Config.GetLinux().GetSecurityContext().GetNamespaceOptions(),
			},
		},
	}
	for _, o := range opts {
		o(c)
	}
	return c
}

// create creates a container and does not start it.
func (p *pod) create(t *testing.T, cmd []string, opts ...containerOption) *container {
	t.Helper()
	c, err := p.tryCreate(t, p.containerConfig(cmd, opts...))
	must(t, err, "CreateContainer")
	return c
}

// tryCreate is create for containers that may be refused.
func (p *pod) tryCreate(t *testing.T, cfg *runtimeapi.ContainerConfig) (*container, error) {
	t.Helper()
	if p.Config.GetLogDirectory() != "" && cfg.GetLogPath() != "" {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(p.Config.LogDirectory, cfg.LogPath)), 0o755), "log directory")
	}
	r, err := p.Runtime.CreateContainer(call(t), &runtimeapi.CreateContainerRequest{
		PodSandboxId: p.ID, Config: cfg, SandboxConfig: p.Config,
	})
	if err != nil {
		return nil, err
	}
	return &container{pod: p, ID: r.GetContainerId(), Config: cfg}, nil
}

// start creates a container and starts it.
func (p *pod) start(t *testing.T, cmd []string, opts ...containerOption) *container {
	t.Helper()
	c := p.create(t, cmd, opts...)
	must(t, c.tryStart(t), "StartContainer")
	return c
}

// output runs cmd in a new container until it exits, and returns its stdout. The exit code must be
// 0.
func (p *pod) output(t *testing.T, cmd []string, opts ...containerOption) string {
	t.Helper()
	c := p.start(t, cmd, opts...)
	st := c.waitExit(t)
	out := c.logged(t)
	if st.GetExitCode() != 0 {
		t.Fatalf("%v exited with %d (%s: %s):\n%s%s", inline(cmd), st.ExitCode, st.Reason, st.Message, out.stdout, out.stderr)
	}
	return out.stdout
}

func (c *container) tryStart(t *testing.T) error {
	t.Helper()
	_, err := c.Runtime.StartContainer(call(t), &runtimeapi.StartContainerRequest{ContainerId: c.ID})
	return err
}

func (c *container) status(t *testing.T) *runtimeapi.ContainerStatus {
	t.Helper()
	r, err := c.Runtime.ContainerStatus(call(t), &runtimeapi.ContainerStatusRequest{ContainerId: c.ID})
	must(t, err, "ContainerStatus")
	return r.GetStatus()
}

// waitExit returns the status of the container once it is EXITED.
func (c *container) waitExit(t *testing.T) *runtimeapi.ContainerStatus {
	t.Helper()
	var st *runtimeapi.ContainerStatus
	c.eventually(t, "container "+c.ID+" is EXITED", func() bool {
		st = c.status(t)
		return st.GetState() == runtimeapi.ContainerState_CONTAINER_EXITED
	})
	return st
}

func (c *container) stop(t *testing.T, grace time.Duration) {
	t.Helper()
	must(t, c.tryStop(t, grace), "StopContainer")
	if !c.Berth { // containerd may answer a moment before its status shows the exit
		c.eventually(t, "container "+c.ID+" does not run", func() bool {
			r, err := c.Runtime.ContainerStatus(call(t), &runtimeapi.ContainerStatusRequest{ContainerId: c.ID})
			return err != nil || r.GetStatus().GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING
		})
	}
}

func (c *container) tryStop(t *testing.T, grace time.Duration) error {
	t.Helper()
	_, err := c.Runtime.StopContainer(callWithin(t, grace+time.Minute), &runtimeapi.StopContainerRequest{
		ContainerId: c.ID, Timeout: int64(grace / time.Second),
	})
	return err
}

func (c *container) remove(t *testing.T) {
	t.Helper()
	_, err := c.Runtime.RemoveContainer(call(t), &runtimeapi.RemoveContainerRequest{ContainerId: c.ID})
	must(t, err, "RemoveContainer")
}

// execBound is the timeout of commands that exit by themselves: long, because gVisor is slow on a
// busy machine.
const execBound = time.Minute

// execSync runs a command in the container and returns the whole answer.
func (c *container) execSync(t *testing.T, timeout time.Duration, cmd ...string) (*runtimeapi.ExecSyncResponse, error) {
	t.Helper()
	return c.Runtime.ExecSync(callWithin(t, timeout+60*time.Second), &runtimeapi.ExecSyncRequest{
		ContainerId: c.ID, Cmd: cmd, Timeout: int64(timeout / time.Second),
	})
}

// exec runs a command that must exit 0 and returns its stdout.
func (c *container) exec(t *testing.T, cmd ...string) string {
	t.Helper()
	r, err := c.execSync(t, execBound, cmd...)
	must(t, err, "ExecSync "+inline(cmd))
	if r.GetExitCode() != 0 {
		t.Fatalf("ExecSync %s: exit code %d, stdout %q, stderr %q", inline(cmd), r.ExitCode, r.Stdout, r.Stderr)
	}
	return string(r.GetStdout())
}

// line is exec without the newline at the end.
func (c *container) line(t *testing.T, cmd ...string) string {
	t.Helper()
	return strings.TrimRight(c.exec(t, cmd...), "\n")
}

// resources sets the container's limits.
func resources(r *runtimeapi.LinuxContainerResources) containerOption {
	return func(c *runtimeapi.ContainerConfig) { c.Linux.Resources = r }
}

// security changes the container's security context.
func security(change func(*runtimeapi.LinuxContainerSecurityContext)) containerOption {
	return func(c *runtimeapi.ContainerConfig) { change(c.Linux.SecurityContext) }
}

// env adds an environment variable.
func env(key, value string) containerOption {
	return func(c *runtimeapi.ContainerConfig) {
		c.Envs = append(c.Envs, &runtimeapi.KeyValue{Key: key, Value: []byte(value)})
	}
}

// mount adds mounts.
func mount(m ...*runtimeapi.Mount) containerOption {
	return func(c *runtimeapi.ContainerConfig) { c.Mounts = append(c.Mounts, m...) }
}
