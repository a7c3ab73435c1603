//go:build berth_vm

package inside

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// TestInstall installs the package and runs a pod of each handler. It leaves the pods to later tests.
func TestInstall(t *testing.T) {
	write(t, "/etc/cni/net.d/10-node.conflist", network)
	write(t, "/etc/berth/conf.d/handlers.toml", handlers)
	run(t, "dpkg", "-i", "/b/berth.deb")
	run(t, "systemctl", "enable", "--now", "berth")
	n := &node{client: dial(t)}
	config, err := n.client.RuntimeConfig(t.Context(), &runtimeapi.RuntimeConfigRequest{})
	if err != nil || config.GetLinux().GetCgroupDriver() != runtimeapi.CgroupDriver_SYSTEMD {
		t.Errorf("RuntimeConfig returns %v, %v, want the cgroup driver systemd", config, err)
	}
	ready(t, n.client)
	n.Image = pull(t, n.client, "node/busybox:1")
	for _, handler := range both {
		n.make(t, handler, n.Image)
	}
	for _, p := range n.Pods {
		r, err := n.client.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: p.Container, Cmd: []string{"uname", "-m"}, Timeout: 60})
		if want := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]; err != nil || strings.TrimSpace(string(r.GetStdout())) != want {
			t.Errorf("uname in %s's pod: %v, %v, want %s", p.Handler, r, err, want)
		}
	}
	n.leave(t)
}

// TestUnit checks settings of the unit, and that containers have their own scopes.
func TestUnit(t *testing.T) {
	n := found(t)
	for property, want := range map[string]string{
		"ActiveState": "active", "KillMode": "process", "Delegate": "yes", "TasksMax": "infinity", "OOMScoreAdjust": "-999", "WatchdogUSec": "1min",
	} {
		testbed.Same(t, unit(t, property), want, "%s is", property)
	}
	if score, err := os.ReadFile("/proc/" + unit(t, "MainPID") + "/oom_score_adj"); strings.TrimSpace(string(score)) != "-999" {
		t.Errorf("oom_score_adj of berth is %q, %v, want -999", score, err)
	}
	for _, p := range n.Pods {
		scope := run(t, "systemctl", "list-units", "--type=scope", "--state=running", "--no-legend", "--plain", "*"+p.Container+"*")
		if strings.Count(scope, "\n") != 0 || !strings.Contains(scope, p.Container) {
			t.Errorf("%s's container does not have its own scope: %q", p.Handler, scope)
		}
	}
}

// TestUnitEnds kills and restarts the daemon in several ways, and checks that pods keep running.
func TestUnitEnds(t *testing.T) {
	n := found(t)
	lives := map[string]string{}
	for _, p := range n.Pods {
		lives[p.Container] = life(t, n.client, p.Container)
	}
	pid := unit(t, "MainPID")
	for _, end := range []struct {
		name string
		how  []string
	}{
		{"kill -9", []string{"kill", "-KILL", pid}},
		{"systemctl restart", []string{"systemctl", "restart", "berth"}},
		{"daemon-reexec and restart", []string{"sh", "-ec", "systemctl daemon-reload; systemctl daemon-reexec; systemctl restart berth"}},
	} {
		t.Run(end.name, func(t *testing.T) {
			run(t, end.how[0], end.how[1:]...)
			pid = otherPID(t, n.client, pid)
			n.alive(t, lives, end.name)
		})
	}
	t.Run("kill -9 of the supervisors", func(t *testing.T) {
		old := supervisors(t)
		if len(old) == 0 {
			t.Fatal("found no supervisor")
		}
		run(t, "kill", append([]string{"-KILL"}, old...)...)
		testbed.Eventually(t, soon, func() error {
			now := supervisors(t)
			if len(now) != len(old) || slices.ContainsFunc(now, func(pid string) bool { return slices.Contains(old, pid) }) {
				return fmt.Errorf("the supervisors were %v and are %v, want all replaced", old, now)
			}
			return nil
		})
		n.alive(t, lives, "a kill of the supervisors")
	})
	t.Run("watchdog", func(t *testing.T) {
		write(t, "/run/systemd/system/berth.service.d/watchdog.conf", "[Service]\nWatchdogSec=20\n")
		run(t, "systemctl", "daemon-reload")
		run(t, "systemctl", "restart", "berth")
		pid = otherPID(t, n.client, pid)
		run(t, "kill", "-STOP", pid)
		pid = otherPID(t, n.client, pid)
		n.alive(t, lives, "the watchdog")
		if result := run(t, "journalctl", "-u", "berth", "--no-pager", "-o", "cat", "--grep", "(?i)watchdog timeout"); result == "" {
			t.Error("the journal has no watchdog timeout")
		}
		run(t, "rm", "-r", "/run/systemd/system/berth.service.d")
		run(t, "systemctl", "daemon-reload")
	})
}

// supervisors returns the PIDs of the supervisors of pods.
func supervisors(t *testing.T) []string {
	t.Helper()
	var pids []string
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	testbed.Must(t, err)
	for _, line := range lines {
		text, _ := os.ReadFile(line) // it may have exited
		if args := strings.Split(string(text), "\x00"); len(args) > 3 && args[1] == "serve" && strings.HasPrefix(args[3], "/run/berth/") {
			pids = append(pids, filepath.Base(filepath.Dir(line)))
		}
	}
	return pids
}
