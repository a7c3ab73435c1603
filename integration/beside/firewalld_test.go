package beside

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// startFirewalld starts a firewalld and a D-Bus for it, and returns a function that stops both.
func startFirewalld(t *testing.T, backend string) (stop func()) {
	t.Helper()
	dir := t.TempDir()
	settings := fmt.Sprintf("DefaultZone=public\nFirewallBackend=%s\nFlushAllOnReload=yes\nCleanupOnExit=yes\nIPv6_rpfilter=no\n", backend)
	testbed.Must(t, os.WriteFile(filepath.Join(dir, "firewalld.conf"), []byte(settings), 0o600))
	testbed.Must(t, os.MkdirAll("/run/dbus", 0o755))
	var started []*exec.Cmd
	start := func(args ...string) {
		cmd := exec.Command(args[0], args[1:]...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		testbed.Must(t, cmd.Start())
		started = append(started, cmd)
	}
	start("dbus-daemon", "--system", "--nofork", "--nopidfile")
	testbed.Eventually(t, time.Minute, func() error { _, err := os.Stat("/run/dbus/system_bus_socket"); return err })
	start("firewalld", "--nofork", "--nopid", "--system-config", dir, "--log-file", filepath.Join(dir, "log"))
	testbed.Eventually(t, time.Minute, func() error { return exec.Command("firewall-cmd", "--state").Run() })
	stop = sync.OnceFunc(func() {
		for i := len(started) - 1; i >= 0; i-- {
			_ = started[i].Process.Signal(unix.SIGTERM)
			_ = started[i].Wait()
		}
		_ = os.RemoveAll("/run/dbus")
	})
	t.Cleanup(stop)
	return stop
}

// TestFirewalld starts, reloads and stops a firewalld on a node with pods of berth and of a
// containerd. At each step the host ports of both can be reached from the same places.
func TestFirewalld(t *testing.T) {
	needForeign(t, "firewalld", "firewalld", "firewall-cmd", "dbus-daemon", "bash", "timeout")
	onNode(t, []string{testbed.Containerd, testbed.RuncShim}, func(t *testing.T) {
		b := newBed(t)
		const client, node = "192.0.2.2", "192.0.2.1"
		run(t, "ip", "netns", "add", "client")
		run(t, "ip", "link", "add", "outside", "type", "veth", "peer", "name", "eth0", "netns", "client")
		run(t, "ip", "address", "add", node+"/24", "dev", "outside")
		run(t, "ip", "link", "set", "outside", "up")
		run(t, "ip", "-n", "client", "address", "add", client+"/24", "dev", "eth0")
		run(t, "ip", "-n", "client", "link", "set", "eth0", "up")
		reached := func(port int32) string {
			ask := []string{"timeout", "3", "bash", "-c", fmt.Sprintf(`exec 3<>/dev/tcp/%s/%d && printf 'GET /index.html HTTP/1.0\r\n\r\n' >&3 && cat <&3`, node, port)}
			inside, _ := exec.Command(ask[0], ask[1:]...).CombinedOutput()
			outside, _ := exec.Command("ip", append([]string{"netns", "exec", "client"}, ask...)...).CombinedOutput()
			return fmt.Sprintf("from the node %t, from outside %t", strings.Contains(string(inside), "mapped"), strings.Contains(string(outside), "mapped"))
		}
		containerd := testbed.StartContainerd(t, testbed.ContainerdOptions{
			Runtimes: map[string]string{"runc": testbed.Part(t, testbed.Runc)}, DefaultRuntime: "runc", CNI: b.CNI, Registry: b.Registry,
		})
		port := int32(15_000)
		for _, backend := range []string{"nftables", "iptables"} {
			spec := func(port int32) testbed.PodSpec {
				s := testbed.PodSpec{Image: b.Image}
				hostPort(port)(&s)
				return s
			}
			same := func(when string, port int32, want string) {
				t.Helper()
				ours, theirs := reached(port), reached(port+1)
				t.Logf("%s, %s: %s", backend, when, ours)
				if ours != theirs || want != "" && ours != want {
					t.Errorf("%s, %s: berth's pod is reached %s; containerd's %s", backend, when, ours, theirs)
				}
			}
			const all = "from the node true, from outside true"
			ours, theirs := b.pod(t, hostPort(port)), containerd.Client.RunPod(t, spec(port+1))
			b.answers(t, port)
			b.answers(t, port+1)
			same("before firewalld", port, all)
			stop := startFirewalld(t, backend)
			same("after its start", port, "")
			run(t, "firewall-cmd", "--reload")
			same("after a reload", port, "")
			run(t, "firewall-cmd", "--complete-reload")
			same("after a complete reload", port, "")
			newOurs, newTheirs := b.pod(t, hostPort(port+2)), containerd.Client.RunPod(t, spec(port+3))
			for _, pod := range []*testbed.Pod{newOurs, newTheirs} {
				address := net.JoinHostPort(pod.IP(t), "8080")
				testbed.Eventually(t, time.Minute, func() error {
					conn, err := net.DialTimeout("tcp", address, time.Second)
					if err != nil {
						return err
					}
					return conn.Close()
				})
			}
			same("with new pods", port+2, "")
			b.Restart(t)
			ours.Container.Exec(t, "true")
			ours.Remove(t)
			forced(t, containerd.Client, theirs)
			stop()
			same("after firewalld stopped", port+2, "")
			newOurs.Remove(t)
			forced(t, containerd.Client, newTheirs)
			port += 4
		}
		containerd.Stop(t)
		run(t, "ip", "netns", "delete", "client")
		_ = exec.Command("ip", "link", "delete", "outside").Run()
		b.nothingLeft(t)
	})
}

// forced tries to remove a pod of containerd. This can fail after firewalld has deleted the pod's
// rules; the rest of the pod disappears with the node's namespaces.
func forced(t *testing.T, containerd *testbed.Client, pod *testbed.Pod) {
	t.Helper()
	if _, err := containerd.RemovePodSandbox(testbed.Within(t, time.Minute), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod.ID}); err != nil {
		t.Logf("containerd: %v", err)
	}
}
