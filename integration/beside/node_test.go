// Package beside runs berth on nodes that other programs change too: iproute2, containerd,
// Docker, podman, firewalls, and programs that unmount the mounts of pods.
//
// Each test runs in new mount and network namespaces with an empty /run, so that it may do
// everything that such programs do. It runs twice: with shared mounts, as systemd sets them up,
// and with private ones.
package beside

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// propagation is an environment variable. It is set in a process that runs in new namespaces, and
// is how mounts propagate there: "private" or "shared".
const propagation = "BERTH_TEST_PROPAGATION"

// TestMain prepares the new namespaces of a process that onNode started.
func TestMain(m *testing.M) {
	if how := os.Getenv(propagation); how != "" {
		if err := makeNode(how); err != nil {
			fmt.Fprintln(os.Stderr, "make a node of new namespaces:", err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

func makeNode(how string) error {
	// The host's mounts below /run would stay in the list of mounts, which tests read.
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter("/run"))
	if err != nil {
		return err
	}
	for _, m := range slices.Backward(mounts) {
		err := unix.Unmount(m.Mountpoint, unix.MNT_DETACH)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) {
			continue // another test has just removed what it was mounted on
		}
		if err != nil {
			return fmt.Errorf("unmount %s: %w", m.Mountpoint, err)
		}
	}
	if how == "shared" {
		if err := unix.Mount("", "/", "", unix.MS_SHARED|unix.MS_REC, ""); err != nil {
			return err
		}
	}
	for _, dir := range []string{"/run", "/var/lib/cni"} { // containerd keeps CNI's results here too
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=0755"); err != nil {
			return fmt.Errorf("mount %s: %w", dir, err)
		}
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(lo)
}

// onNode runs body, the whole test, in new namespaces, once for each propagation. parts are
// the programs of the testbed that body needs besides runc.
func onNode(t *testing.T, parts []string, body func(t *testing.T)) {
	t.Helper()
	if os.Getenv(propagation) != "" {
		body(t)
		return
	}
	testbed.NeedNetwork(t)
	for _, part := range append(parts, testbed.Runc) {
		testbed.Part(t, part)
	}
	bin := testbed.Built(t)
	for _, how := range []string{"private", "shared"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			// The inner test times out first, so that its output has the stacks of its goroutines.
			ctx, cancel, limit := t.Context(), context.CancelFunc(func() {}), 10*time.Minute
			if deadline, ok := t.Deadline(); ok {
				ctx, cancel = context.WithDeadline(ctx, deadline.Add(-5*time.Second))
				limit = time.Until(deadline) - 10*time.Second
			}
			defer cancel()
			test, _, _ := strings.Cut(t.Name(), "/")
			node := exec.CommandContext(ctx, "/proc/self/exe", "-test.run=^"+test+"$", "-test.v", "-test.timeout="+limit.String())
			node.Env = append(os.Environ(), propagation+"="+how, "BERTH_TEST_BIN="+bin)
			node.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
			out, err := node.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			if bytes.Contains(out, []byte("--- SKIP")) {
				t.Skipf("%s", out)
			}
			t.Logf("%s", out)
		})
	}
}

// needForeign skips a test if a program is missing, even if BERTH_TEST_REQUIRE is set. `make deps`
// does not install these programs, because their Debian packages start a service that changes the
// host's rules, or add a CNI network that the host's daemons would use.
func needForeign(t *testing.T, pkg string, programs ...string) {
	t.Helper()
	for _, program := range programs {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is missing: install %s (Debian's name) on a machine that is not a node", program, pkg)
		}
	}
}

// bed is a berth with a network, a registry and an image.
type bed struct {
	*testbed.Bed
	atRest testbed.Snapshot
}

// newBed starts berth, and notes what is on the node after its first pod was removed.
func newBed(t *testing.T) *bed {
	t.Helper()
	b := &bed{Bed: testbed.StartBed(t, "beside/busybox:1", testbed.Options{CNI: testbed.NewCNI(t)})}
	b.atRest = b.Rest(t)
	return b
}

// pod runs a pod, whose spec the functions may change.
func (b *bed) pod(t *testing.T, change ...func(*testbed.PodSpec)) *testbed.Pod {
	t.Helper()
	spec := testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}}
	for _, f := range change {
		f(&spec)
	}
	return b.Client.RunPod(t, spec)
}

// nothingLeft fails if a pod has left anything, hidden mounts included.
func (b *bed) nothingLeft(t *testing.T) {
	t.Helper()
	// An idle supervisor waits a minute for the next pod; a restart of berth stops it.
	b.Restart(t)
	b.NoLeaks(t, b.atRest)
	for _, point := range mountpoints(t) {
		for _, pods := range []string{netns + "/berth-", b.State + "/sandboxes/", b.State + "/containers/"} {
			if strings.HasPrefix(point, pods) {
				t.Errorf("a mount is left: %s", point)
			}
		}
	}
	for _, pattern := range []string{netns + "/berth-*", b.State + "/sandboxes/*", b.State + "/containers/*"} {
		if left, _ := filepath.Glob(pattern); len(left) > 0 {
			t.Errorf("files are left: %q", left)
		}
	}
}

// netns is the directory in which all programs of a node keep network namespaces.
const netns = "/run/netns"

// mountpoints returns the mount point of every mount, hidden ones included.
func mountpoints(t *testing.T) []string {
	t.Helper()
	mounts, err := mountinfo.GetMounts(nil)
	testbed.Must(t, err)
	points := make([]string, len(mounts))
	for i, m := range mounts {
		points[i] = m.Mountpoint
	}
	return points
}

func mounted(t *testing.T, point string) (times int) {
	t.Helper()
	for _, p := range mountpoints(t) {
		if p == point {
			times++
		}
	}
	return times
}

// run runs a command of another program, and ends the test if it fails.
func run(t *testing.T, command ...string) string {
	t.Helper()
	out, err := exec.Command(command[0], command[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%q: %v: %s", command, err, out)
	}
	return string(out)
}

// cover mounts a directory onto itself, so that each mount in it is there twice and one unmount
// removes only one of the two.
func cover(t *testing.T, dir string) {
	t.Helper()
	if mounted(t, dir) > 0 {
		run(t, "mount", "--make-private", dir)
	}
	run(t, "mount", "--rbind", dir, dir)
	run(t, "mount", "--make-private", dir)
}

// hostPort has the pod serve a file with the text "mapped" at a port of the node.
func hostPort(port int32) func(*testbed.PodSpec) {
	return func(s *testbed.PodSpec) {
		s.Command = []string{"sh", "-c", "echo mapped > /tmp/index.html; exec httpd -f -p 8080 -h /tmp"}
		s.Sandbox = func(c *runtimeapi.PodSandboxConfig) {
			c.PortMappings = []*runtimeapi.PortMapping{{ContainerPort: 8080, HostPort: port}}
		}
	}
}

// answers waits until a pod answers at a host port, at the address that the node has on the pods'
// bridge.
func (b *bed) answers(t *testing.T, port int32) {
	t.Helper()
	node, _, err := net.ParseCIDR(b.CNI.Subnet)
	testbed.Must(t, err)
	node.To4()[3] = 1
	address := net.JoinHostPort(node.To4().String(), strconv.Itoa(int(port)))
	testbed.Eventually(t, time.Minute, func() error {
		conn, err := net.DialTimeout("tcp", address, time.Second)
		if err != nil {
			return err
		}
		defer conn.Close()
		if err := errors.Join(conn.SetDeadline(time.Now().Add(5*time.Second)), write(conn, "GET /index.html HTTP/1.0\r\n\r\n")); err != nil {
			return err
		}
		var answer bytes.Buffer
		if _, err := answer.ReadFrom(conn); err != nil || !strings.Contains(answer.String(), "mapped") {
			return fmt.Errorf("%s answered %q: %w", address, answer.String(), err)
		}
		return nil
	})
}

func write(conn net.Conn, text string) error {
	_, err := conn.Write([]byte(text))
	return err
}
