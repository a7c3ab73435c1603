package conformance

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

var imageVolumeChecks = []check{
	{name: "an image of several layers", run: imageVolume},
	{name: "a symbolic link in a sub path stays inside", run: imageVolumeLinks},
	{name: "a sub path that leads nowhere is refused", run: imageVolumeNoPart},
	{name: "options of image mounts", needs: []Ability{MountOptions}, run: imageVolumeOptions},
	{name: "the image's users are the pod's", needs: []Ability{UserNamespaces}, run: imageVolumeUserNS},
	{name: "an artifact", berth: true, run: artifactVolume},
	{name: "an artifact under the pod's users", berth: true, needs: []Ability{UserNamespaces}, run: artifactVolumeUserNS},
	{name: "an artifact in use can be removed", berth: true, alone: true, run: artifactOutlivesImage},
	{name: "nothing is mounted after the pod", needs: []Ability{HostProcesses}, run: imageVolumeGone},
}

// imageMount is an image volume as the kubelet sends it.
func (n *node) imageMount(id, path, sub string) *runtimeapi.Mount {
	return &runtimeapi.Mount{
		ContainerPath: path, Readonly: true, ImageSubPath: sub,
		Image: &runtimeapi.ImageSpec{Image: id, UserSpecifiedImage: n.Image.Volume},
	}
}

func imageVolume(t *testing.T, n *node) {
	id := n.pull(t, n.Image.Volume)
	c := n.pod(t).start(t, forever(), mount(n.imageMount(id, "/model", "")))
	for file, want := range map[string]string{"base": "base\n", "dir/sub/deep": "deep\n", "dir/upper": "upper\n"} {
		testbed.Same(t, c.exec(t, "cat", "/model/"+file), want, "%s is", file)
	}
	if r, err := c.execSync(t, execBound, "ls", "/model/gone"); err != nil || r.GetExitCode() == 0 {
		t.Errorf("a file that the upper layer removed is there: %v, %v", r, err)
	}
	for _, command := range []string{"touch /model/x", "rm /model/base", "echo x > /model/dir/sub/deep"} {
		if r, err := c.execSync(t, execBound, "sh", "-c", command); err != nil || r.GetExitCode() == 0 {
			t.Errorf("%s works: %v, %v", command, r, err)
		}
	}
}

// imageVolumeLinks follows links whose targets exist on the host as well.
func imageVolumeLinks(t *testing.T, n *node) {
	id := n.pull(t, n.Image.Volume)
	p := n.pod(t)
	for _, link := range []string{"absolute", "climbing", "within/../climbing"} {
		c := p.start(t, forever(), mount(n.imageMount(id, "/part", link)))
		testbed.Same(t, c.exec(t, "ls", "/part"), "in-the-image\n", "%s leads to", link)
		c.remove(t)
	}
}

func (n *node) volumeRefused(t *testing.T, what string, m *runtimeapi.Mount, want ...codes.Code) {
	t.Helper()
	p := n.pod(t)
	_, err := p.tryCreate(t, p.containerConfig(forever(), mount(m)))
	n.rejects(t, err, what, want...)
	if n.Berth && !strings.HasPrefix(status.Convert(err).Message(), "ImageVolumeMountFailed") {
		t.Errorf("%s: the message does not begin with the word that the kubelet looks for: %v", what, err)
	}
	if got := n.listContainers(t, &runtimeapi.ContainerFilter{PodSandboxId: p.ID}); len(got) != 0 {
		t.Errorf("%s: the container is listed", what)
	}
	must(t, func() error { _, err := p.tryCreate(t, p.containerConfig(forever())); return err }(), "another container")
}

func imageVolumeNoPart(t *testing.T, n *node) {
	id := n.pull(t, n.Image.Volume)
	n.volumeRefused(t, "a missing sub path", n.imageMount(id, "/part", "dir/missing"), codes.InvalidArgument)
	n.volumeRefused(t, "a sub path that climbs out", n.imageMount(id, "/part", "../.."), codes.InvalidArgument)
	n.volumeRefused(t, "a link to nowhere", n.imageMount(id, "/part", "dangling"), codes.InvalidArgument)
}

func artifactVolume(t *testing.T, n *node) {
	id := n.pull(t, n.Image.Artifact)
	p := n.pod(t)
	c := p.start(t, forever(), mount(n.imageMount(id, "/model", ""), n.imageMount(id, "/part", "weights"), n.imageMount(id, "/etc/one", "weights/model.bin")),
		security(func(s *runtimeapi.LinuxContainerSecurityContext) { s.RunAsUser = &runtimeapi.Int64Value{Value: 4711} }))
	for file, want := range map[string]string{"/model/README.md": "read me", "/model/weights/model.bin": "weights", "/part/model.bin": "weights", "/etc/one": "weights"} {
		testbed.Same(t, c.exec(t, "cat", file), want, "%s is", file)
	}
	root := p.start(t, forever(), mount(n.imageMount(id, "/model", ""), n.imageMount(id, "/one", "README.md")))
	for _, command := range []string{"touch /model/x", "echo x > /model/README.md", "echo x > /one", "chmod 777 /one", "rm /model/README.md"} {
		if r, err := root.execSync(t, execBound, "sh", "-c", command); err != nil || r.GetExitCode() == 0 {
			t.Errorf("%s works: %v, %v", command, r, err)
		}
	}
	n.volumeRefused(t, "a missing file", n.imageMount(id, "/part", "weights/other"), codes.InvalidArgument)
	run := p.containerConfig(forever())
	run.Image = &runtimeapi.ImageSpec{Image: id}
	if _, err := p.tryCreate(t, run); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "volume") {
		t.Errorf("a container of an artifact: %v", err)
	}
	for _, name := range []string{id, n.Image.Artifact} {
		if got := n.imageStatus(t, name); got.GetId() != id || got.GetSize() == 0 {
			t.Errorf("status by %s: %v", name, got)
		}
	}
}

func artifactVolumeUserNS(t *testing.T, n *node) {
	id := n.pull(t, n.Image.Artifact)
	c := n.pod(t, withUserNS).start(t, forever(), mount(idmapped(n.imageMount(id, "/model", "")), n.imageMount(id, "/one", "README.md")))
	testbed.Same(t, c.line(t, "stat", "-c", "%u:%g %a", "/model/README.md"), "0:0 444", "the file's owner and mode are")
	testbed.Same(t, c.exec(t, "cat", "/one"), "read me", "it is")
}

func artifactOutlivesImage(t *testing.T, n *node) {
	id := n.pull(t, n.Image.Artifact)
	c := n.pod(t).start(t, forever(), mount(n.imageMount(id, "/model", "")))
	n.removeImage(t, id)
	if n.Restart != nil {
		n.Restart(t)
	}
	testbed.Same(t, c.exec(t, "cat", "/model/weights/model.bin"), "weights", "it is")
}

func imageVolumeOptions(t *testing.T, n *node) {
	m := n.imageMount(n.imageID, "/model", "")
	m.MountOptions = []string{"noexec", "nodev", "nosuid"}
	c := n.pod(t).start(t, forever(), mount(m))
	if r, err := c.execSync(t, execBound, "/model/bin/busybox", "true"); err == nil && r.GetExitCode() == 0 {
		t.Errorf("a program runs from a volume with noexec: %v", r)
	}
}

func imageVolumeUserNS(t *testing.T, n *node) {
	id := n.pull(t, n.Image.Volume)
	c := n.pod(t, withUserNS).start(t, forever(), mount(
		idmapped(n.imageMount(id, "/model", "")), idmapped(n.imageMount(n.imageID, "/one", "")), n.imageMount(id, "/part", "dir")))
	for file, want := range map[string]string{"/model/base": "0:0", "/model/owned": "1000:1001", "/one/home/app": "1000:1000", "/part/upper": "0:0"} {
		testbed.Same(t, c.line(t, "stat", "-c", "%u:%g", file), want, "%s is owned by", file)
	}
	for _, file := range []string{"/model/x", "/one/x", "/part/x"} {
		if r, err := c.execSync(t, execBound, "touch", file); err != nil || r.GetExitCode() == 0 {
			t.Errorf("%s can be written: %v, %v", file, r, err)
		}
	}
	if !n.Berth {
		return
	}
	other := n.imageMount(id, "/model", "")
	other.UidMappings = []*runtimeapi.IDMapping{{HostId: 1, Length: 9}}
	other.GidMappings = other.GetUidMappings()
	n.volumeRefused(t, "mappings in a pod without", other, codes.InvalidArgument)
}

func imageVolumeGone(t *testing.T, n *node) {
	id := n.pull(t, n.Image.Volume)
	p := n.pod(t)
	c := p.start(t, forever(), mount(n.imageMount(id, "/model", "")))
	mounted := func() bool { return strings.Contains(readFile("/proc/self/mountinfo"), c.ID) }
	if n.Berth && !mounted() {
		t.Error("nothing names the container while it runs: this check looks for the wrong thing")
	}
	p.stop(t)
	p.remove(t)
	if mounted() {
		t.Errorf("mounts of the container are left:\n%s", readFile("/proc/self/mountinfo"))
	}
}
