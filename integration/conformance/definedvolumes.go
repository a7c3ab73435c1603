package conformance

import (
	"os"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

var definedVolumeChecks = []check{
	{name: "what the image has there, and nobody else sees it", run: definedContent},
	{name: "a read-only root", run: definedReadonlyRoot},
	{name: "a mount of the pod comes first", run: definedUnderMount},
	{name: "a mount above comes first, whatever links lead there", berth: true, run: definedBelowMount},
	{name: "in a user namespace", needs: []Ability{UserNamespaces}, run: definedUserNS},
	{name: "odd paths", berth: true, run: definedOdd},
	{name: "volumes that cannot be", berth: true, run: definedRefused},
}

// of sets the container's image.
func (n *node) of(t *testing.T, ref string) containerOption {
	t.Helper()
	id := n.pull(t, ref)
	return func(c *runtimeapi.ContainerConfig) {
		c.Image = &runtimeapi.ImageSpec{Image: id, UserSpecifiedImage: ref}
	}
}

// listing prints the mode, owner, link count and content of the files of /data.
const listing = `cd /data && stat -c '%n %a %u:%g %h' . plain dir/program && readlink link && cat link dir/program && ls -A . dir`

const listed = `. 2770 1000:1001 3
plain 640 1000:1001 1
dir/program 4755 0:0 2
plain
plain
program
.:
dir
link
plain

dir:
again
program
`

func definedContent(t *testing.T, n *node) {
	p, defined := n.pod(t), n.of(t, n.Image.Defined)
	first, second := p.start(t, forever(), defined), p.start(t, forever(), defined)
	for _, c := range []*container{first, second} {
		testbed.Same(t, c.exec(t, "sh", "-c", listing), listed, "the volume has")
		testbed.Same(t, c.exec(t, "stat", "-c", "%F %a %u:%g", "/fresh/place"), "directory 755 0:0\n", "a volume without anything in the image is a")
		mounted(t, c, "/data", "/fresh/place")
		c.exec(t, "sh", "-c", "echo mine > /data/mine && echo mine > /fresh/place/mine && rm /data/plain")
		if got := c.exec(t, "ls", "/data", "/fresh/place"); !strings.Contains(got, "mine") || strings.Contains(got, "plain") {
			t.Errorf("written, the volumes have %q", got)
		}
	}
	testbed.Same(t, len(first.status(t).GetMounts()), 0, "mounts that the config does not have: status has")
	first.remove(t)
	third := p.start(t, forever(), defined)
	testbed.Same(t, third.exec(t, "sh", "-c", listing), listed, "after others, the volume has")
}

// mounted checks that something is mounted at each of the paths.
func mounted(t *testing.T, c *container, paths ...string) {
	t.Helper()
	table := c.exec(t, "cat", "/proc/self/mounts")
	for _, p := range paths {
		testbed.Contains(t, table, " "+p+" ", "nothing is mounted at %s", p)
	}
}

func definedReadonlyRoot(t *testing.T, n *node) {
	c := n.pod(t).start(t, forever(), n.of(t, n.Image.Defined), security(func(s *runtimeapi.LinuxContainerSecurityContext) {
		s.ReadonlyRootfs = true
	}))
	c.exec(t, "touch", "/data/x", "/fresh/place/x")
	if r, err := c.execSync(t, execBound, "touch", "/x"); err != nil || r.GetExitCode() == 0 {
		t.Errorf("the root can be written: %v, %v", r, err)
	}
}

func definedUnderMount(t *testing.T, n *node) {
	dir := t.TempDir()
	c := n.pod(t).start(t, forever(), n.of(t, n.Image.Defined), mount(&runtimeapi.Mount{ContainerPath: "/data/", HostPath: dir}))
	c.exec(t, "touch", "/data/of-the-pod", "/fresh/place/x")
	testbed.Same(t, c.exec(t, "ls", "/data"), "of-the-pod\n", "the pod's mount has")
}

// definedBelowMount checks that an image's VOLUME does not hide the content of a pod's mount.
func definedBelowMount(t *testing.T, n *node) {
	dir := t.TempDir()
	c := n.pod(t).start(t, forever(), n.of(t, n.Image.DefinedOdd), mount(
		&runtimeapi.Mount{ContainerPath: "/parent", HostPath: dir},
		&runtimeapi.Mount{ContainerPath: "/elsewhere", HostPath: t.TempDir()}))
	c.exec(t, "sh", "-c", "mkdir /parent/child && touch /parent/child/seen && touch /elsewhere/seen")
	if _, err := os.Stat(dir + "/child/seen"); err != nil {
		t.Errorf("what is written below the pod's mount is not in it: %v", err)
	}
	testbed.Same(t, c.exec(t, "ls", "/linked"), "seen\n", "the link leads to")
}

func definedUserNS(t *testing.T, n *node) {
	c := n.pod(t, withUserNS).start(t, forever(), n.of(t, n.Image.Defined))
	testbed.Same(t, c.exec(t, "sh", "-c", listing), listed, "the volume has")
	c.exec(t, "sh", "-c", "touch /data/x /fresh/place/x && chown 1000:1000 /data/x")
	testbed.Same(t, c.exec(t, "stat", "-c", "%u:%g", "/data/x", "/fresh/place/x", "/fresh/place"), "1000:1000\n0:0\n0:0\n", "the owners are")
}

func definedOdd(t *testing.T, n *node) {
	c := n.pod(t).start(t, forever(), n.of(t, n.Image.DefinedOdd))
	for _, dir := range []string{"/relative", "/up", "/twice", "/parent", "/parent/child", "/elsewhere"} {
		mounted(t, c, dir)
	}
	// A link that leads out of the image is resolved inside of it.
	if got := c.exec(t, "cat", "/etc/passwd"); !strings.HasPrefix(got, "root:x:0:0:root:/root:/bin/sh") {
		t.Errorf("/etc, which is a volume by way of a link, has %q", got)
	}
	// A VOLUME must not hide the kernel's file systems.
	c.exec(t, "sh", "-c", "test -e /proc/self/status && test -e /dev/zero && test -n \"$(ls /sys)\" && echo x > /dev/null")
	for _, dir := range []string{"/dev/volume", "/sys/volume"} {
		if strings.Contains(c.exec(t, "cat", "/proc/self/mounts"), " "+dir+" ") {
			t.Errorf("a volume is mounted at %s", dir)
		}
	}
}

func definedRefused(t *testing.T, n *node) {
	p := n.pod(t)
	for what, ref := range map[string]string{
		"all of the root": n.Image.DefinedRoot, "a link to the root": n.Image.DefinedRootLink,
		"a file": n.Image.DefinedFile, "more than there may be": n.Image.DefinedMany,
	} {
		_, err := p.tryCreate(t, p.containerConfig(forever(), n.of(t, ref)))
		n.rejects(t, err, what, codes.InvalidArgument)
	}
	if got := n.listContainers(t, &runtimeapi.ContainerFilter{PodSandboxId: p.ID}); len(got) != 0 {
		t.Errorf("%d refused containers are listed", len(got))
	}
}
