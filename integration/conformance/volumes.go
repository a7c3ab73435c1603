package conformance

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

var volumeChecks = []check{
	{name: "an image as a volume", run: volumeOfImage},
	{name: "a directory of an image", run: volumeOfDirectory},
	{name: "two images beside a host path", run: volumesTogether},
	{name: "status names the image", run: volumeEcho},
	{name: "an image in use as a volume can be removed", alone: true, run: volumeOutlivesImage},
	{name: "a volume outlives a kill -9 of the daemon", alone: true, run: volumeRestart},
	{name: "nobody in a container can write to it", berth: true, run: volumeStaysReadonly},
	{name: "volumes that cannot be", run: badVolumes},
}

// volume is an image volume as the kubelet sends it: by the image's id, with the image's name in
// the pod's spec.
func volume(id, path, sub string) *runtimeapi.Mount {
	return &runtimeapi.Mount{
		ContainerPath: path, Readonly: true, ImageSubPath: sub,
		Image: &runtimeapi.ImageSpec{Image: id, UserSpecifiedImage: "as/the-pod:says"},
	}
}

func volumeOfImage(t *testing.T, n *node) {
	c := n.pod(t).start(t, forever(), mount(volume(n.imageID, "/vol/deep", "")))
	for _, path := range []string{"/bin/busybox", "/etc/passwd"} {
		if want, got := c.line(t, "md5sum", path), c.line(t, "md5sum", "/vol/deep"+path); strings.Fields(got)[0] != strings.Fields(want)[0] {
			t.Errorf("%s in the volume is %q, in the image %q", path, got, want)
		}
	}
	if r, err := c.execSync(t, execBound, "touch", "/vol/deep/etc/new"); err != nil || r.GetExitCode() == 0 {
		t.Errorf("the volume is writable: %v, %v", r, err)
	}
	c.exec(t, "touch", "/etc/new") // the root is still writable
}

func volumeOfDirectory(t *testing.T, n *node) {
	c := n.pod(t).start(t, forever(), mount(volume(n.imageID, "/vol", "etc")))
	c.exec(t, "cat", "/vol/passwd")
	if got := c.line(t, "sh", "-c", "ls /vol/bin /vol/etc 2>/dev/null | wc -l"); got != "0" {
		t.Error("the whole image is mounted, not a directory of it")
	}
}

func volumesTogether(t *testing.T, n *node) {
	other := n.pull(t, n.Image.Other)
	dir := t.TempDir()
	touch(t, dir+"/mine")
	c := n.pod(t).start(t, forever(), mount(
		&runtimeapi.Mount{ContainerPath: "/host", HostPath: dir},
		volume(n.imageID, "/a", ""), volume(other, "/b", ""), volume(n.imageID, "/c", "etc")))
	for _, path := range []string{"/host/mine", "/a/bin/busybox", "/b/bin/busybox", "/c/passwd"} {
		c.exec(t, "test", "-e", path)
	}
}

// volumeEcho checks the images in the status, by which the kubelet knows the images in use.
func volumeEcho(t *testing.T, n *node) {
	c := n.pod(t).start(t, forever(), mount(volume(n.imageID, "/vol", "etc")))
	look := func(when string) {
		t.Helper()
		all := c.status(t).GetMounts()
		if len(all) != 1 {
			t.Fatalf("%s: mounts are %v", when, all)
		}
		m := all[0]
		if m.GetContainerPath() != "/vol" || !m.GetReadonly() || m.GetImageSubPath() != "etc" ||
			m.GetImage().GetImage() != n.imageID || m.GetImage().GetUserSpecifiedImage() != "as/the-pod:says" {
			t.Errorf("%s: the mount is %v", when, m)
		}
		if n.Berth && (m.GetImage().GetImageRef() != n.imageID || m.GetHostPath() != "") {
			t.Errorf("%s: image_ref is %q, host_path %q", when, m.GetImage().GetImageRef(), m.GetHostPath())
		}
	}
	look("RUNNING")
	c.stop(t, time.Second)
	look("EXITED")
	if n.Berth {
		byName := n.pod(t).create(t, forever(), mount(volume(n.Image.Busybox, "/vol", "")))
		testbed.Same(t, byName.status(t).GetMounts()[0].GetImage().GetImage(), n.imageID, "in status: an image that was sent by name is")
	}
}

func volumeOutlivesImage(t *testing.T, n *node) {
	other := n.pull(t, n.Image.Other)
	c := n.pod(t).start(t, forever(), mount(volume(other, "/vol", "")))
	n.removeImage(t, other)
	c.exec(t, "cat", "/vol/etc/passwd")
	c.stop(t, time.Second)
	c.remove(t)
}

// volumeRestart also removes the image, so that only the daemon's records have it after the
// restart.
func volumeRestart(t *testing.T, n *node) {
	if n.Restart == nil {
		t.Skip("the target gives no way to restart its daemon")
	}
	other := n.pull(t, n.Image.Other)
	p := n.pod(t)
	running := p.start(t, forever(), mount(volume(other, "/vol", "etc")))
	created := p.create(t, sh("cat /vol/passwd"), mount(volume(other, "/vol", "etc")))
	n.removeImage(t, other)
	n.Restart(t)
	running.exec(t, "cat", "/vol/passwd")
	must(t, created.tryStart(t), "StartContainer of a container that was CREATED before the restart")
	created.waitLog(t, "root:")
	testbed.Same(t, running.status(t).GetMounts()[0].GetImage().GetImage(), other, "after the restart the volume is of")
}

// volumeStaysReadonly checks that not even a privileged container can write to an image, because
// other containers share its files.
func volumeStaysReadonly(t *testing.T, n *node) {
	p := n.pod(t, func(c *runtimeapi.PodSandboxConfig) { c.Linux.SecurityContext.Privileged = true })
	c := p.start(t, forever(), mount(volume(n.imageID, "/vol", "")),
		security(func(s *runtimeapi.LinuxContainerSecurityContext) { s.Privileged = true }))
	r, err := c.execSync(t, execBound, "sh", "-c", "mount -o remount,rw,bind /vol; mount -o remount,rw /vol; echo spoilt >> /vol/etc/passwd")
	if err != nil || r.GetExitCode() == 0 {
		t.Errorf("a privileged container wrote to an image: %v, %v", r, err)
	}
	if got := n.pod(t).start(t, forever()).exec(t, "cat", "/etc/passwd"); strings.Contains(got, "spoilt") {
		t.Error("what one container wrote to an image is in another")
	}
}

func badVolumes(t *testing.T, n *node) {
	p := n.pod(t)
	writable, both := volume(n.imageID, "/vol", ""), volume(n.imageID, "/vol", "")
	writable.Readonly, both.HostPath = false, t.TempDir()
	for name, c := range map[string]struct {
		mount *runtimeapi.Mount
		want  []codes.Code
	}{
		"writable":              {writable, []codes.Code{codes.InvalidArgument}},
		"with a host path":      {both, []codes.Code{codes.InvalidArgument}},
		"a missing directory":   {volume(n.imageID, "/vol", "not/there"), []codes.Code{codes.InvalidArgument}},
		"a file":                {volume(n.imageID, "/vol", "etc/passwd"), []codes.Code{codes.InvalidArgument}},
		"out of the image":      {volume(n.imageID, "/vol", "../../../../../etc"), []codes.Code{codes.InvalidArgument}},
		"an image not pulled":   {volume(n.Image.Absent, "/vol", ""), []codes.Code{codes.NotFound}},
		"an image without name": {volume("", "/vol", ""), []codes.Code{codes.InvalidArgument}},
	} {
		_, err := p.tryCreate(t, p.containerConfig(forever(), mount(c.mount)))
		n.rejects(t, err, "CreateContainer with a volume: "+name, c.want...)
		if n.Berth && !strings.HasPrefix(status.Convert(err).Message(), "ImageVolumeMountFailed") {
			t.Errorf("%s: the message does not begin with ImageVolumeMountFailed: %v", name, err)
		}
	}
	if n.imageStatus(t, n.Image.Absent) != nil {
		t.Error("an image was pulled for a volume")
	}
	left := n.listContainers(t, &runtimeapi.ContainerFilter{PodSandboxId: p.ID})
	if slices.ContainsFunc(left, func(c *runtimeapi.Container) bool { return c.GetPodSandboxId() == p.ID }) {
		t.Errorf("refused containers are listed: %v", left)
	}
}
