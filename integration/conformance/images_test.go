package conformance_test

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/berth-cri/berth/integration/conformance"
	"github.com/berth-cri/berth/integration/testbed"
)

// suiteImages pushes the images of the suite to a registry.
func suiteImages(t *testing.T, reg *testbed.Registry) conformance.Images {
	t.Helper()
	box := testbed.Busybox(t)
	digest, err := box.Digest()
	testbed.Must(t, err)
	return conformance.Images{
		Busybox:      reg.Push(t, "suite/busybox:1", box),
		BusyboxAlias: reg.Push(t, "suite/busybox:alias", box),
		Digest:       digest.String(),
		Other: reg.Push(t, "suite/other:1", testbed.Busybox(t, testbed.WithConfig(func(c *v1.Config) {
			c.Cmd, c.Env = nil, []string{"PATH=/bin", "OTHER=1"}
		}))),
		User: reg.Push(t, "suite/user:1", testbed.Busybox(t, testbed.WithUser("app"))),
		Process: reg.Push(t, "suite/process:1", testbed.Busybox(t, testbed.WithConfig(func(c *v1.Config) {
			c.Entrypoint, c.Cmd = []string{"/bin/echo", "entry"}, []string{"cmd"}
			c.WorkingDir, c.StopSignal = "/work", "SIGUSR1"
			c.Env = []string{"PATH=/bin", "FROM_IMAGE=yes"}
		}))),
		Volume:          reg.Push(t, "suite/volume:1", volumeImage(t)),
		Defined:         reg.Push(t, "suite/defined:1", definedImage(t)),
		DefinedOdd:      reg.Push(t, "suite/defined:odd", oddlyDefinedImage(t)),
		DefinedRoot:     reg.Push(t, "suite/defined:root", testbed.Busybox(t, withVolumes("//."))),
		DefinedRootLink: reg.Push(t, "suite/defined:rootlink", testbed.Busybox(t, withVolumes("/all"), testbed.WithLayer(link("all", "/")))),
		DefinedFile:     reg.Push(t, "suite/defined:file", testbed.Busybox(t, withVolumes("/etc/passwd"))),
		DefinedMany:     reg.Push(t, "suite/defined:many", testbed.Busybox(t, withVolumes(many(1000)...))),
		Artifact: reg.Push(t, "suite/model:1", testbed.Artifact(t,
			testbed.File{Path: "README.md", Body: []byte("read me")}, testbed.File{Path: "weights/model.bin", Body: []byte("weights")})),
		Absent: reg.Host + "/suite/absent:1",
	}
}

func volumeImage(t *testing.T) v1.Image {
	t.Helper()
	file := func(path string) testbed.File {
		return testbed.File{Path: path, Mode: 0o644, Body: []byte(filepath.Base(path) + "\n")}
	}
	owned := file("owned")
	owned.UID, owned.GID = 1000, 1001
	return testbed.Image(t,
		testbed.WithLayer(file("base"), file("gone"), owned, directory("dir"), directory("dir/sub"), file("dir/sub/deep"),
			directory("usr"), directory("usr/in-the-image"), directory("within"),
			link("absolute", "/usr"), link("climbing", "../../../usr"), link("dangling", "no/where")),
		testbed.WithLayer(file("dir/upper"), testbed.File{Path: ".wh.gone", Mode: 0o644}),
	)
}

func directory(path string) testbed.File { return testbed.File{Path: path, Mode: fs.ModeDir | 0o755} }

func link(path, to string) testbed.File {
	return testbed.File{Path: path, Mode: fs.ModeSymlink | 0o777, Link: to}
}

// withVolumes defines volumes, as VOLUME in a Dockerfile does.
func withVolumes(paths ...string) testbed.ImageOption {
	return testbed.WithConfig(func(c *v1.Config) {
		c.Volumes = map[string]struct{}{}
		for _, p := range paths {
			c.Volumes[p] = struct{}{}
		}
	})
}

func many(n int) []string {
	var paths []string
	for i := range n {
		paths = append(paths, fmt.Sprintf("/many/%d", i))
	}
	return paths
}

func definedImage(t *testing.T) v1.Image {
	t.Helper()
	return testbed.Busybox(t, withVolumes("/data", "/fresh/place"), testbed.WithLayer(
		testbed.File{Path: "data", Mode: fs.ModeDir | fs.ModeSetgid | 0o770, UID: 1000, GID: 1001},
		testbed.File{Path: "data/plain", Mode: 0o640, Body: []byte("plain\n"), UID: 1000, GID: 1001},
		link("data/link", "plain"),
		directory("data/dir"),
		testbed.File{Path: "data/dir/program", Mode: fs.ModeSetuid | 0o755, Body: []byte("program\n")},
		testbed.File{Path: "data/dir/again", Mode: fs.ModeSetuid | 0o755, Link: "data/dir/program"},
	))
}

func oddlyDefinedImage(t *testing.T) v1.Image {
	t.Helper()
	return testbed.Busybox(t,
		withVolumes("relative", "/dots/../up", "/twice", "/twice/", "//twice/.", "/parent", "/parent/child", "/linked", "/climbing",
			"/proc", "/proc/sys", "/dev", "/dev/volume", "/sys", "/sys/volume", "/sys/fs/cgroup", "/kernel"),
		testbed.WithLayer(directory("elsewhere"), link("linked", "elsewhere"), link("climbing", "../../../../etc"), link("kernel", "/proc/self/..")))
}
