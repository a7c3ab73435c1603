package conformance_test

import (
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
		Absent: reg.Host + "/suite/absent:1",
	}
}
