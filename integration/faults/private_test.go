package faults

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// TestPodsArePrivate looks for a pod's files as another user of the host: a
// setuid program of a pod would make him root.
func TestPodsArePrivate(t *testing.T) {
	b := newBed(t, testbed.Options{})
	pods := map[string]*testbed.Pod{
		"ordinary":       b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}}),
		"user namespace": b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}, Sandbox: withUserNS, Container: usersOfPod}),
	}
	for name, pod := range pods {
		pod.Container.Exec(t, "chmod", "4755", "/bin/busybox")
		container, sandbox := filepath.Join(b.State, "containers", pod.Container.ID), filepath.Join(b.State, "sandboxes", pod.ID)
		upper := filepath.Join(b.Root, "images", "rootfs", "overlayfs", pod.Container.ID, "fs")
		for _, path := range []string{filepath.Join(container, "rootfs", "bin", "busybox"), filepath.Join(upper, "bin", "busybox"), filepath.Join(sandbox, "shm")} {
			testbed.Mustf(t, exec.Command("/usr/bin/stat", path).Run(), "%s: root does not find %s", name, path)
		}
	}
	for name, pod := range pods {
		program := filepath.Join(b.State, "containers", pod.Container.ID, "rootfs", "bin", "busybox")
		upper := filepath.Join(b.Root, "images", "rootfs", "overlayfs", pod.Container.ID, "fs", "bin", "busybox")
		for _, path := range []string{program, upper} {
			if out, err := asNobody(path, "id", "-u"); !errors.Is(err, fs.ErrPermission) {
				t.Errorf("%s: another user runs %s: %v, %s", name, path, err, out)
			}
		}
		mark := filepath.Join(b.State, "sandboxes", pod.ID, "shm", "mark")
		if out, err := asNobody("/usr/bin/touch", mark); err == nil {
			t.Errorf("%s: another user writes into /dev/shm: %s", name, out)
		}
	}
	ordinary := filepath.Join(b.State, "containers", pods["ordinary"].Container.ID)
	testbed.Must(t, os.Chmod(ordinary, 0o711))
	if out, err := asNobody(filepath.Join(ordinary, "rootfs", "bin", "busybox"), "true"); err != nil {
		t.Fatalf("the test cannot tell open from closed: %v, %s", err, out)
	}
	testbed.Must(t, os.Chmod(ordinary, 0o700))
	b.Restart(t)
	pods["user namespace"].RunContainer(t, "second", testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}, Sandbox: withUserNS, Container: usersOfPod})
	for _, pod := range pods {
		pod.Remove(t)
	}
}

// usersOfPod is what a kubelet sends for a container of a pod made withUserNS.
func usersOfPod(c *runtimeapi.ContainerConfig) {
	pod := &runtimeapi.PodSandboxConfig{Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
		NamespaceOptions: c.Linux.SecurityContext.NamespaceOptions,
	}}}
	withUserNS(pod)
}

// asNobody runs a program of the host as a user without rights.
func asNobody(program string, args ...string) ([]byte, error) {
	c := exec.Command(program, args...)
	c.Dir = "/"
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}, Pdeathsig: unix.SIGKILL}
	return c.CombinedOutput()
}
