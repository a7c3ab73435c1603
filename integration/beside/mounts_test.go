package beside

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// TestIPNetns uses `ip netns`, as an operator does, while pods start, run and are removed.
func TestIPNetns(t *testing.T) {
	onNode(t, nil, func(t *testing.T) {
		b := newBed(t)
		before, stays := b.pod(t), b.pod(t)
		run(t, "ip", "netns", "add", "theirs")
		after := b.pod(t)
		run(t, "ip", "netns", "exec", "theirs", "ip", "link", "set", "lo", "up")
		for _, pod := range []*testbed.Pod{before, after} {
			if list := run(t, "ip", "netns", "list"); !strings.Contains(list, "berth-"+pod.ID[:32]) {
				t.Errorf("ip netns does not list %s:\n%s", pod.ID, list)
			}
			pod.Stop(t)
			pod.Remove(t)
		}
		run(t, "ip", "netns", "add", "more")
		stays.Container.Exec(t, "true")
		stays.Remove(t)
		b.nothingLeft(t)
		for _, name := range []string{"theirs", "more"} {
			run(t, "ip", "netns", "exec", name, "true")
			run(t, "ip", "netns", "delete", name)
		}
		if left, _ := filepath.Glob(netns + "/*"); len(left) > 0 {
			t.Errorf("files are left: %q", left)
		}
	})
}

// TestNamespacesFromBefore starts berth on a node whose /run/netns is not a mount point and has
// network namespaces in it: that of a pod, and one of another program.
func TestNamespacesFromBefore(t *testing.T) {
	onNode(t, nil, func(t *testing.T) {
		b := newBed(t)
		pod := b.pod(t)
		theirs := filepath.Join(netns, "theirs")
		b.Stop(t)
		// Keep the pod's namespace at its path, but without a mount on /run/netns.
		pin := filepath.Join(netns, "berth-"+pod.ID[:32])
		run(t, "mount", "--bind", pin, makeFile(t, "/run/aside"))
		run(t, "umount", "-R", netns)
		run(t, "mount", "--bind", "/run/aside", pin)
		run(t, "umount", "/run/aside")
		run(t, "mount", "--bind", "/proc/self/ns/net", makeFile(t, theirs))
		if mounted(t, netns) > 0 {
			t.Fatal(netns + " is still a mount point")
		}
		b.Start(t)
		if mounted(t, netns) != 1 {
			t.Errorf("the directory is mounted %d times, want once: %q", mounted(t, netns), mountpoints(t))
		}
		if got := pod.Status(t).GetState(); got != runtimeapi.PodSandboxState_SANDBOX_READY {
			t.Errorf("the pod is %s, want ready", got)
		}
		pod.RunContainer(t, "second", testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}}).Exec(t, "true")
		// The owner of the other namespace can remove it as before.
		run(t, "umount", theirs)
		testbed.Checkf(t, os.Remove(theirs), "remove the other namespace as its owner")
		pod.Remove(t)
		b.nothingLeft(t)
	})
}

func makeFile(t *testing.T, path string) string {
	t.Helper()
	testbed.Must(t, os.WriteFile(path, nil, 0o600))
	return path
}

// TestHiddenMounts doubles every mount of pods, as happens when an operator bind-mounts a
// directory onto itself.
func TestHiddenMounts(t *testing.T) {
	onNode(t, nil, func(t *testing.T) {
		b := newBed(t)
		shared := func(s *testbed.PodSpec) {
			s.Sandbox = func(c *runtimeapi.PodSandboxConfig) {
				c.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
			}
		}
		mapped := func(s *testbed.PodSpec) {
			ids := []*runtimeapi.IDMapping{{HostId: 300_000, Length: 65_536}}
			user := &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: ids, Gids: ids}
			s.Sandbox = func(c *runtimeapi.PodSandboxConfig) { c.Linux.SecurityContext.NamespaceOptions.UsernsOptions = user }
			s.Container = func(c *runtimeapi.ContainerConfig) {
				c.Linux.SecurityContext.NamespaceOptions.UsernsOptions = user
				c.Mounts = []*runtimeapi.Mount{{ContainerPath: "/volume", Image: &runtimeapi.ImageSpec{Image: b.Image}, Readonly: true}}
			}
		}
		var pods []*testbed.Pod
		for _, change := range []func(*testbed.PodSpec){func(*testbed.PodSpec) {}, shared, mapped} {
			pods = append(pods, b.pod(t, change), b.pod(t, change))
		}
		cover(t, netns)
		cover(t, b.State)
		b.atRest[testbed.Mounts] = append(b.atRest[testbed.Mounts], b.State)
		for i, pod := range pods {
			pod.Container.Exec(t, "true")
			if i%2 == 0 {
				pod.Stop(t)
			}
		}
		pods = append(pods, b.pod(t))
		slices.Reverse(pods)
		for _, pod := range pods {
			pod.Remove(t)
		}
		b.nothingLeft(t)
		b.pod(t, mapped).Remove(t)
		b.nothingLeft(t)
	})
}

// TestForeignUnmount unmounts the mounts of running pods, as another program may do.
func TestForeignUnmount(t *testing.T) {
	onNode(t, nil, func(t *testing.T) {
		b := newBed(t)
		asked, restarted, untouched := b.pod(t), b.pod(t), b.pod(t)
		created := untouched.CreateContainer(t, "second", testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}})
		run(t, "umount", "--recursive", netns)

		// Containers run on, but the pods get no new ones: the error names the cause.
		asked.Container.Exec(t, "true")
		config := b.Client.ContainerConfig("second", b.Image, "true")
		_, err := b.Client.CreateContainer(testbed.Within(t, time.Minute), &runtimeapi.CreateContainerRequest{PodSandboxId: asked.ID, Config: config, SandboxConfig: asked.Config})
		testbed.Refused(t, err, codes.FailedPrecondition, netns+"/berth-"+asked.ID[:32], "unmounted", "new sandbox")
		_, err = b.Client.StartContainer(testbed.Within(t, time.Minute), &runtimeapi.StartContainerRequest{ContainerId: created.ID})
		testbed.Refused(t, err, codes.FailedPrecondition, "unmounted")
		if got := asked.Status(t).GetState(); got != runtimeapi.PodSandboxState_SANDBOX_NOTREADY {
			t.Errorf("the pod is %s, so a kubelet would not replace it", got)
		}
		asked.Stop(t)
		asked.Remove(t)
		untouched.Remove(t)

		b.Kill9(t)
		b.Start(t)
		if got := restarted.Status(t).GetState(); got != runtimeapi.PodSandboxState_SANDBOX_NOTREADY {
			t.Errorf("the pod is %s after a restart, want not ready", got)
		}
		restarted.Container.Exec(t, "true")
		restarted.Remove(t)
		b.nothingLeft(t)

		// Now the mounts below the state directory: root file systems, shared memory, namespaces.
		pod, idle := b.pod(t), b.Client.RunSandbox(t, testbed.PodSpec{})
		for _, point := range slices.Backward(mountpoints(t)) {
			if strings.HasPrefix(point, b.State+"/") {
				run(t, "umount", "--lazy", point)
			}
		}
		pod.Container.Exec(t, "ls", "/bin")
		_, err = b.Client.CreateContainer(testbed.Within(t, time.Minute), &runtimeapi.CreateContainerRequest{PodSandboxId: idle.ID, Config: config, SandboxConfig: idle.Config})
		testbed.Refused(t, err, codes.FailedPrecondition, "unmounted")
		idle.Remove(t)
		pod.Remove(t)
		b.nothingLeft(t)
		b.pod(t).Remove(t)
		b.nothingLeft(t)
	})
}

// TestCoveredNamespaces mounts an empty tmpfs over the directory of network namespaces, and
// leaves it there while pods are removed and started.
func TestCoveredNamespaces(t *testing.T) {
	onNode(t, nil, func(t *testing.T) {
		b := newBed(t)
		hidden, after := b.pod(t), b.pod(t)
		run(t, "mount", "-t", "tmpfs", "theirs", netns)
		theirs := makeFile(t, filepath.Join(netns, "theirs"))

		hidden.Container.Exec(t, "true")
		hidden.Stop(t)
		hidden.Remove(t)
		b.pod(t).Remove(t)
		b.Kill9(t)
		b.Start(t)
		after.Container.Exec(t, "true")
		after.Remove(t)
		b.atRest[testbed.Mounts] = append(b.atRest[testbed.Mounts], netns)
		b.nothingLeft(t)

		if _, err := os.Stat(theirs); err != nil {
			t.Errorf("the other program's file: %v", err)
		}
		run(t, "umount", netns)
		b.nothingLeft(t)
		b.pod(t).Remove(t)
		b.nothingLeft(t)
	})
}
