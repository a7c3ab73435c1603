//go:build berth_vm

package inside

import (
	"fmt"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

const (
	containerdSocket = "/run/containerd/containerd.sock"
	containerdConfig = `version = 3
[plugins.'io.containerd.cri.v1.images']
snapshotter = 'overlayfs'
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = '%s'
[plugins.'io.containerd.cri.v1.images'.registry]
config_path = '/etc/containerd/certs.d'
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ['/usr/lib/cni']
conf_dir = '/etc/cni/net.d'
[plugins.'io.containerd.cri.v1.runtime'.containerd]
default_runtime_name = 'runc'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = 'io.containerd.runc.v2'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
BinaryName = '/b/runc'
SystemdCgroup = true
`
	// containerdUnit has the process settings of containerd's own unit.
	containerdUnit = `[Service]
Type=notify
ExecStart=/b/containerd
Environment=PATH=/b:/usr/sbin:/usr/bin:/sbin:/bin
Delegate=yes
KillMode=process
Restart=always
TasksMax=infinity
OOMScoreAdjust=-999
`
)

// TestBesideContainerd starts, stops and kills a containerd, which has a pod, under systemd, and
// restarts berth. The pods of both are on the same network and must keep running.
func TestBesideContainerd(t *testing.T) {
	n := found(t)
	lives := map[string]string{}
	for _, p := range n.Pods {
		lives[p.Container] = life(t, n.client, p.Container)
	}
	registry := testbed.NewRegistry(t, testbed.RegistryOptions{})
	registry.WriteHosts(t, "/etc/containerd/certs.d")
	image := registry.Push(t, "node/theirs:1", testbed.Busybox(t))
	pause := registry.Push(t, "node/pause:1", testbed.Busybox(t, testbed.WithConfig(func(c *v1.Config) { c.Cmd = []string{"sleep", "100000"} })))
	write(t, "/etc/containerd/config.toml", fmt.Sprintf(containerdConfig, pause))
	write(t, "/etc/systemd/system/containerd.service", containerdUnit)
	run(t, "systemctl", "daemon-reload")
	run(t, "systemctl", "start", "containerd")
	n.alive(t, lives, "the start of containerd")

	theirs := testbed.Dial(t, containerdSocket, "/var/log/containerd-pods", "")
	pod := theirs.RunPod(t, testbed.PodSpec{
		Image: image, Command: []string{"sleep", "100000"},
		Sandbox: func(c *runtimeapi.PodSandboxConfig) { c.Linux.CgroupParent = "system.slice" },
	})
	unharmed := func(after string) {
		t.Helper()
		n.alive(t, lives, after)
		r, err := theirs.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: pod.Container.ID, Cmd: []string{"true"}, Timeout: 60})
		if err != nil || r.GetExitCode() != 0 {
			t.Errorf("after %s: exec in containerd's pod: %v, %v", after, r, err)
		}
	}
	unharmed("the start of a pod of containerd")

	run(t, "systemctl", "restart", "berth")
	otherPID(t, n.client, "")
	ready(t, n.client)
	unharmed("a restart of berth")

	run(t, "systemctl", "stop", "containerd")
	n.alive(t, lives, "systemctl stop containerd")
	gone := n.Pods[0]
	for _, end := range []func() error{
		func() error {
			_, err := n.client.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: gone.Sandbox})
			return err
		},
		func() error {
			_, err := n.client.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: gone.Sandbox})
			return err
		},
	} {
		testbed.Checkf(t, end(), "remove a pod while containerd is stopped")
	}
	n.Pods = n.Pods[1:]
	run(t, "systemctl", "start", "containerd")
	unharmed("the removal of a pod of berth and the start of containerd")

	run(t, "systemctl", "kill", "--signal=KILL", "--kill-whom=main", "containerd")
	testbed.Eventually(t, soon, func() error {
		_, err := theirs.Version(t.Context(), &runtimeapi.VersionRequest{})
		return err
	})
	unharmed("kill -9 of containerd")
	pod.Remove(t)

	run(t, "systemctl", "stop", "containerd")
	n.make(t, both[0], n.Image)
	n.empty(t)
}
