// Package beside runs berth where others are at work on the same node: iproute2,
// containerd, firewalls, and whoever unmounts what is not theirs.
//
// Each test has a mount namespace and a network namespace of its own, with an
// empty /run, in which it may do as these do. It is run twice: as on a node whose
// mounts propagate, which systemd sees to, and as on one whose mounts do not.
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

// propagation, as an environment variable, says that the process is on a node of
// its own, and how mounts propagate there.
const propagation = "BERTH_TEST_PROPAGATION"

// TestMain makes a node of the namespaces that the process was started in.
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
	// What the host has there would be hidden, and is looked for by some tests.
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
	for _, dir := range []string{"/run", "/var/lib/cni"} { // CNI's results are containerd's too
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

// onNode runs body, which is all of a test, on nodes of its own. Parts are what it
// needs besides runc.
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
			// A test that fails by its own time limit tells more than one that is killed.
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

// needForeign skips a test without programs, also if BERTH_TEST_REQUIRE is set. `make deps`
// does not install them: with Debian's package comes a service that changes the host's
// rules, or a network that its CNI daemons would take for theirs.
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

// newBed starts berth, and lets a pod come and go for what stays for good.
func newBed(t *testing.T) *bed {
	t.Helper()
	b := &bed{Bed: testbed.StartBed(t, "beside/busybox:1", testbed.Options{CNI: testbed.NewCNI(t)})}
	b.atRest = b.Rest(t)
	return b
}

// pod runs a pod.
func (b *bed) pod(t *testing.T, change ...func(*testbed.PodSpec)) *testbed.Pod {
	t.Helper()
	spec := testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}}
	for _, f := range change {
		f(&spec)
	}
	return b.Client.RunPod(t, spec)
}

// nothingLeft fails if a pod has left anything, where it can be seen or not.
func (b *bed) nothingLeft(t *testing.T) {
	t.Helper()
	// Idle supervisors wait a minute for the next pod; a restart sends them away.
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

// netns is where everybody on a node has network namespaces.
const netns = "/run/netns"

// mountpoints are those of all mounts, hidden ones too, one by one.
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

// run runs a command of somebody else's, which must work.
func run(t *testing.T, command ...string) string {
	t.Helper()
	out, err := exec.Command(command[0], command[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%q: %v: %s", command, err, out)
	}
	return string(out)
}

// cover mounts a directory onto itself so that everything in it is mounted twice,
// and unmounting reaches one of the two.
func cover(t *testing.T, dir string) {
	t.Helper()
	if mounted(t, dir) > 0 {
		run(t, "mount", "--make-private", dir)
	}
	run(t, "mount", "--rbind", dir, dir)
	run(t, "mount", "--make-private", dir)
}

// hostPort has the pod serve, at a port of the node, a file that says so.
func hostPort(port int32) func(*testbed.PodSpec) {
	return func(s *testbed.PodSpec) {
		s.Command = []string{"sh", "-c", "echo mapped > /tmp/index.html; exec httpd -f -p 8080 -h /tmp"}
		s.Sandbox = func(c *runtimeapi.PodSandboxConfig) {
			c.PortMappings = []*runtimeapi.PortMapping{{ContainerPort: 8080, HostPort: port}}
		}
	}
}

// answers waits until the node answers at a host port. The node's address is that
// of the pods' bridge.
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
