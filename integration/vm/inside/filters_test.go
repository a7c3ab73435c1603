//go:build berth_vm

package inside

import (
	"os"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// TestUnitTakesNothing runs a program in pods that prints what it may do. A restriction of the unit,
// such as a seccomp filter, would also hold for every process that the daemon starts.
func TestUnitTakesNothing(t *testing.T) {
	n := found(t)
	// For manual runs: further settings of the unit, separated by semicolons.
	if more := os.Getenv("BERTH_TEST_UNIT"); more != "" {
		write(t, "/run/systemd/system/berth.service.d/more.conf", "[Service]\n"+strings.ReplaceAll(more, ";", "\n")+"\n")
		run(t, "systemctl", "daemon-reload")
		run(t, "systemctl", "stop", "berth")
		for _, pid := range supervisors(t) { // which were started without the settings
			run(t, "kill", pid)
		}
		run(t, "systemctl", "start", "berth")
		otherPID(t, n.client, "")
		ready(t, n.client)
	}
	body, err := os.ReadFile("/b/program")
	testbed.Must(t, err)
	image := pull(t, n.client, "node/program:1", testbed.WithLayer(testbed.File{Path: "program", Mode: 0o755, Body: body}))
	// /made is not in the image: the runtime creates it for the volume.
	volume := t.TempDir()
	for _, handler := range both {
		c := n.client.RunPod(t, testbed.PodSpec{
			Handler: handler, Image: image, Command: []string{"sh", "-c", "/program; echo others $(stat -c %A /made | cut -c 8); sleep 1000"},
			Container: func(c *runtimeapi.ContainerConfig) {
				c.Linux.SecurityContext.Capabilities = &runtimeapi.Capability{AddCapabilities: []string{"SYS_NICE"}}
				c.Mounts = []*runtimeapi.Mount{{HostPath: volume, ContainerPath: "/made/here"}}
			},
		}).Container
		var said string
		testbed.Eventually(t, time.Minute, func() error {
			text, err := os.ReadFile(c.LogPath)
			said = string(text)
			if err == nil && !strings.Contains(said, "others") {
				err = os.ErrNotExist
			}
			return err
		})
		for _, want := range []string{"F runs as 386\n", "F changes its personality\n", "F runs in real time\n", "F umask 0022\n", "F core true\n", "F others r\n"} {
			testbed.Contains(t, said, want, "%s: the pod does not print %q", handler, want[2:])
		}
		user := n.client.RunPod(t, testbed.PodSpec{
			Handler: handler, Image: n.Image, Command: []string{"sleep", "1000"},
			Container: func(c *runtimeapi.ContainerConfig) {
				c.Linux.SecurityContext.RunAsUser = &runtimeapi.Int64Value{Value: 1000}
			},
		})
		user.Container.Exec(t, "sh", "-ec", "cat /etc/hosts /etc/hostname /etc/resolv.conf; ls / /dev/shm; touch /dev/shm/mine /tmp/mine")
	}
}
