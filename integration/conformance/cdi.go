package conformance

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// cdiDirectory is where vendors put what they make while the node runs. Every
// daemon looks there.
const cdiDirectory = "/var/run/cdi"

// cdiDevice describes a device, and looks for all that belongs to it.
func cdiDevice(t *testing.T, n *node) {
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "library"), []byte("the vendor's\n"), 0o644), "what the vendor mounts")
	if os.Mkdir(cdiDirectory, 0o755) == nil {
		t.Cleanup(func() { _ = os.Remove(cdiDirectory) })
	}
	vendor := fmt.Sprintf("conformance-%d-%d.test", os.Getpid(), serial.Add(1))
	file := filepath.Join(cdiDirectory, vendor+".json")
	ran := filepath.Join(dir, "hook")
	must(t, os.WriteFile(file, fmt.Appendf(nil, `{"cdiVersion": "0.6.0", "kind": "%s/card", "devices": [{"name": "one", "containerEdits": {
		"env": ["CARD=one"],
		"deviceNodes": [{"path": "/dev/card0", "hostPath": "/dev/zero"}],
		"mounts": [{"hostPath": %q, "containerPath": "/vendor", "options": ["ro", "bind"]}],
		"hooks": [{"hookName": "createRuntime", "path": "/bin/sh", "args": ["sh", "-c", "cat > %s"]}]
	}}]}`, vendor, dir, ran), 0o644), "CDI spec")
	t.Cleanup(func() { must(t, os.Remove(file), "remove the CDI spec") })
	device := func(c *runtimeapi.ContainerConfig) {
		c.CDIDevices = []*runtimeapi.CDIDevice{{Name: vendor + "/card=one"}}
	}
	p := n.pod(t)
	var c *container
	n.eventually(t, "the daemon knows the new device", func() bool {
		made, err := p.tryCreate(t, p.containerConfig(forever(), device))
		c = made
		return err == nil
	})
	must(t, c.tryStart(t), "StartContainer")
	testbed.Same(t, c.line(t, "sh", "-c", "echo $CARD"), "one", "the device's variable is")
	testbed.Same(t, c.line(t, "sh", "-c", "head -c 3 /dev/card0 | od -An -tx1"), " 00 00 00", "its node has")
	testbed.Same(t, c.line(t, "cat", "/vendor/library"), "the vendor's", "its mount has")
	if readFile(ran) == "" {
		t.Error("its hook did not run")
	}
}
