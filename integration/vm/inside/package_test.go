//go:build berth_vm

package inside

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/berth-cri/berth/integration/testbed"
)

// TestUpgrade upgrades, downgrades, purges and reinstalls the package while pods run. The pods keep
// running, and each version serves the pods of the other one.
func TestUpgrade(t *testing.T) {
	n := found(t)
	lives := map[string]string{}
	note := func() {
		for _, p := range n.Pods {
			if lives[p.Container] == "" {
				lives[p.Container] = life(t, n.client, p.Container)
			}
		}
	}
	note()
	for _, step := range []struct{ name, file, version string }{
		{"upgrade", "/b/newer.deb", "1.1.0"}, {"downgrade", "/b/berth.deb", "1.0.0"},
	} {
		t.Run(step.name, func(t *testing.T) {
			pid := unit(t, "MainPID")
			run(t, "dpkg", "-i", step.file)
			otherPID(t, n.client, pid)
			testbed.Contains(t, run(t, "berth", "version"), step.version, "berth version")
			ready(t, n.client)
			n.alive(t, lives, step.name)
			for _, handler := range both {
				n.make(t, handler, n.Image)
			}
			note()
		})
	}
	t.Run("purge", func(t *testing.T) {
		config, err := os.ReadFile("/etc/berth/conf.d/handlers.toml")
		testbed.Must(t, err)
		out, err := exec.CommandContext(t.Context(), "dpkg", "-P", "berth").CombinedOutput()
		if err != nil || !strings.Contains(string(out), "/var/lib/berth is left") {
			t.Errorf("purge: %v\n%s", err, out)
		}
		for _, p := range n.Pods {
			if _, err := os.Stat("/proc/" + strings.Fields(lives[p.Container])[0]); err != nil {
				t.Errorf("the process of %s's pod is gone after the purge: %v", p.Handler, err)
			}
		}
		write(t, "/etc/berth/conf.d/handlers.toml", string(config))
		run(t, "dpkg", "-i", "/b/berth.deb")
		run(t, "systemctl", "enable", "--now", "berth")
		otherPID(t, n.client, "")
		ready(t, n.client)
		n.alive(t, lives, "a purge")
	})
	n.empty(t)
}

// TestAfterReboot checks after a clean reboot that the pods from before have exited, and can be
// removed.
func TestAfterReboot(t *testing.T) {
	n := found(t)
	otherPID(t, n.client, "")
	ready(t, n.client)
	n.ended(t)
	n.empty(t)
	for _, handler := range both {
		n.make(t, handler, n.Image)
	}
	n.leave(t)
}
