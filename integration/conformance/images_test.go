package conformance_test

import (
	"io/fs"
	"path/filepath"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/berth-cri/berth/integration/conformance"
	"github.com/berth-cri/berth/integration/testbed"
)

// suiteImages pushes what the suite needs.
func suiteImages(t *testing.T, reg *testbed.Registry) conformance.Images {
	t.Helper()
	box := testbed.Busybox(t)
	digest, err := box.Digest()
	if err != nil {
		t.Fatal(err)
	}
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
		Volume: reg.Push(t, "suite/volume:1", volumeImage(t)),
		Absent: reg.Host + "/suite/absent:1",
	}
}

func volumeImage(t *testing.T) v1.Image {
	t.Helper()
	directory := func(path string) testbed.File { return testbed.File{Path: path, Mode: fs.ModeDir | 0o755} }
	file := func(path string) testbed.File {
		return testbed.File{Path: path, Mode: 0o644, Body: []byte(filepath.Base(path) + "\n")}
	}
	link := func(path, to string) testbed.File {
		return testbed.File{Path: path, Mode: fs.ModeSymlink | 0o777, Link: to}
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
