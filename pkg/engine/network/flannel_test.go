package network

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-cri/berth/internal/test"
)

// newFlannelNode makes a node with flannel's network in process, whose daemon wrote text.
func newFlannelNode(t *testing.T, text string) *node {
	n := newNode(t)
	n.config.BinDirs, n.bridge = []string{pluginDir(t)}, "btflannel"
	n.config.InProcess, n.config.MasqueradeTable = true, "berth_flannel"
	t.Cleanup(n.removeBridge)
	n.configure("10-flannel.conflist", strings.NewReplacer("BRIDGE", n.bridge, "DATA", n.ipam).Replace(
		`{"cniVersion": "1.0.0", "name": "cbr0", "plugins": [`+flannelWith(inData, ``)+`]}`))
	test.Must(t, os.MkdirAll(n.ipam, 0o755))
	test.Must(t, os.WriteFile(filepath.Join(n.ipam, "subnet.env"), []byte(text), 0o644))
	return n
}

// A pod of flannel must be disconnected whatever is left of flannel's files: after a power cut they
// can be empty, and after a reboot the daemon has not yet written the subnets. The plugin itself
// leaves the address reserved then.
func TestFlannelWithoutItsFiles(t *testing.T) {
	if !alone(t) {
		return
	}
	for name, change := range map[string]func(data, subnets string) error{
		"no file of the pod":       func(data, _ string) error { return os.Remove(data) },
		"an empty file of the pod": func(data, _ string) error { return os.Truncate(data, 0) },
		"half a file of the pod":   func(data, _ string) error { return os.Truncate(data, 20) },
		"no subnets":               func(_, subnets string) error { return os.Remove(subnets) },
		"empty subnets":            func(_, subnets string) error { return os.Truncate(subnets, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			n := newFlannelNode(t, env)
			p, pod := New(n.config), n.pod("flannel-pod")
			r := mustSetup(t, p, pod)
			test.Equal(t, "in process", r.Attachments[0].InProcess, true)
			data := filepath.Join(n.ipam, "flannel", pod.ID)
			test.Must(t, change(data, filepath.Join(n.ipam, "subnet.env")))
			mustTeardown(t, p, pod, r)
			n.checkClean()
			test.Must(t, os.WriteFile(data, nil, 0o600)) // as of a daemon that was killed before it reserved an address
			mustTeardown(t, p, pod, r)
			if _, err := os.Stat(data); !os.IsNotExist(err) {
				t.Errorf("the file of the pod is left: %v", err)
			}
		})
	}
}

// A pod that berth masquerades because flannel's daemon does not must be masqueraded after a restart.
func TestFlannelMasqueradedAfterRestart(t *testing.T) {
	if !alone(t) {
		return
	}
	n := newFlannelNode(t, envDual)
	p, pod := New(n.config), n.pod("flannel-pod")
	r := mustSetup(t, p, pod)
	out, err := exec.Command("nft", "delete", "table", "inet", "berth_flannel").CombinedOutput()
	test.Mustf(t, err, "nft: %s", out)
	p = New(n.config)
	test.Must(t, p.Resume(map[string]*Result{pod.ID: r}))
	out, err = exec.Command("nft", "list", "table", "inet", "berth_flannel").CombinedOutput()
	test.Mustf(t, err, "nft: %s", out)
	for _, ip := range r.IPs {
		if !strings.Contains(string(out), ip) {
			t.Errorf("the table has no %s:\n%s", ip, out)
		}
	}
	mustTeardown(t, p, pod, r)
}
