package namespaces

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
)

func TestMain(m *testing.M) {
	if os.Getuid() != 0 {
		println("these tests make namespaces and mounts: run them as root")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// all requests a network, an IPC and a UTS namespace, which are released when the test ends.
func all(t testing.TB) Request {
	r := Request{
		Dir: filepath.Join(t.TempDir(), "ns"), Net: true, IPC: true, UTS: true, Hostname: "berth-ns-test",
	}
	t.Cleanup(func() { test.Check(t, Release(r.Dir)) })
	return r
}

func create(t testing.TB, r Request) *Paths {
	t.Helper()
	return test.Value(Create(t.Context(), r))(t)
}

// inside runs a command in the namespaces, as another process of the host.
func inside(t *testing.T, ns *Paths, command ...string) string {
	t.Helper()
	args := append([]string{"--net=" + ns.Net, "--ipc=" + ns.IPC, "--uts=" + ns.UTS, "--"}, command...)
	out, err := exec.Command("nsenter", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("nsenter %v: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// hostNamespace returns the path of a namespace of the main thread. This process may not
// be allowed to open the namespaces of PID 1.
func hostNamespace(name string) string {
	return fmt.Sprintf("/proc/%d/task/%d/ns/%s", os.Getpid(), os.Getpid(), name)
}

func inode(t *testing.T, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	test.Must(t, unix.Stat(path, &st))
	return st.Ino
}

func TestCreateMakesNamespacesThatOtherProcessesSee(t *testing.T) {
	r := all(t)
	r.Sysctls = map[string]string{
		"net.ipv4.ip_unprivileged_port_start": "0",
		"net/ipv4/ping_group_range":           "0 2147483647",
		"kernel.shm_rmid_forced":              "1",
		"kernel.domainname":                   "berth.test",
	}
	ns := create(t, r)

	for _, tc := range []struct{ name, path string }{{"net", ns.Net}, {"ipc", ns.IPC}, {"uts", ns.UTS}} {
		if !Exists(tc.path) {
			t.Errorf("%s is not mounted", tc.path)
		}
		if inode(t, tc.path) == inode(t, hostNamespace(tc.name)) {
			t.Errorf("%s is the host's namespace", tc.path)
		}
	}
	for _, tc := range []struct{ command, want string }{
		{"hostname", "berth-ns-test"},
		{"cat /proc/sys/net/ipv4/ip_unprivileged_port_start", "0"},
		{"cat /proc/sys/net/ipv4/ping_group_range", "0\t2147483647"},
		{"cat /proc/sys/kernel/shm_rmid_forced", "1"},
		{"cat /proc/sys/kernel/domainname", "berth.test"},
	} {
		test.Equal(t, fmt.Sprintf("%s inside", tc.command), inside(t, ns, "sh", "-c", tc.command), tc.want)
	}
	if lo := inside(t, ns, "ip", "-o", "addr", "show", "lo"); !strings.Contains(lo, "127.0.0.1/8") || !strings.Contains(lo, "::1/128") {
		t.Errorf("lo inside is not up: %s", lo)
	}
	if host, _ := os.Hostname(); host == "berth-ns-test" {
		t.Error("the host's name was changed")
	}
}

func TestCreateMakesOnlyWhatIsAsked(t *testing.T) {
	r := all(t)
	r.Net, r.UTS, r.Hostname = false, false, ""
	ns := create(t, r)
	if ns.Net != "" || ns.UTS != "" || !Exists(ns.IPC) {
		t.Errorf("got %+v, want IPC alone", ns)
	}
	entries, err := os.ReadDir(r.Dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("the directory has %v (%v), want ipc alone", entries, err)
	}
}

func TestCreateAtNetPath(t *testing.T) {
	r := all(t)
	r.NetPath = filepath.Join(t.TempDir(), "netns", "berth-x")
	ns := create(t, r)
	if ns.Net != r.NetPath || !Exists(ns.Net) || !Exists(filepath.Join(r.Dir, "net")) {
		t.Errorf("the namespace is not at %s and %s/net: %+v", r.NetPath, r.Dir, ns)
	}
	test.Must(t, Release(r.Dir))
	for _, path := range []string{r.NetPath, r.Dir} {
		test.ErrorIs(t, test.Err(os.Lstat(path)), os.ErrNotExist, "%s is left", path)
	}
}

// A CNI daemon in a pod has its own mount namespace, which receives the host's new mounts.
func TestMountsReachFollowingMountNamespaces(t *testing.T) {
	dir := t.TempDir()
	test.Must(t, unix.Mount(dir, dir, "", unix.MS_BIND, ""))
	t.Cleanup(func() { test.Check(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	test.Must(t, unix.Mount("", dir, "", unix.MS_SHARED, ""))
	follower := exec.Command("unshare", "--mount", "--propagation", "slave", "sh", "-c", "echo ready; exec sleep 60")
	stdout := test.Value(follower.StdoutPipe())(t)
	test.Must(t, follower.Start())
	t.Cleanup(func() {
		_ = follower.Process.Kill()
		_ = follower.Wait()
	})
	test.Must(t, test.Err(stdout.Read(make([]byte, 8))))

	r := Request{Dir: filepath.Join(dir, "ns"), Net: true}
	ns := create(t, r)
	seen := filepath.Join("/proc", strconv.Itoa(follower.Process.Pid), "root", ns.Net)
	if !Exists(seen) {
		t.Error("a process in a mount namespace that receives the host's mounts does not see the pod's network namespace")
	}
	test.Must(t, Release(r.Dir))
	if Exists(seen) {
		t.Error("the process still sees the network namespace after Release")
	}
}

func TestCreateRefuses(t *testing.T) {
	tests := map[string]struct {
		change func(*Request)
		says   string
	}{
		"host sysctl":                    {sysctls("vm.overcommit_memory", "1"), "vm.overcommit_memory"},
		"hostname by sysctl":             {sysctls("kernel.hostname", "x"), "kernel.hostname"},
		"sysctl with a path to a parent": {sysctls("net/../vm/overcommit_memory", "1"), "not the name"},
		"sysctl of the host's ipc": {func(r *Request) {
			r.IPC = false
			r.Sysctls = map[string]string{"kernel.sem": "1 2 3 4"}
		}, "ipc namespace"},
		"unknown sysctl": {sysctls("net.ipv4.no_such_thing", "1"), `sysctl "net.ipv4.no_such_thing" does not exist`},
		"bad value":      {sysctls("net.ipv4.ip_forward", "maybe"), `sysctl "net.ipv4.ip_forward" does not accept the value "maybe"`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r := all(t)
			tc.change(&r)
			mounts := mountCount(t)
			_, err := Create(t.Context(), r)
			if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), tc.says) {
				t.Fatalf("got %v, want %q", err, tc.says)
			}
			if !strings.HasPrefix(err.Error(), "sysctl") {
				t.Errorf("the error does not begin with the sysctl: %v", err)
			}
			test.ErrorIs(t, test.Err(os.Lstat(r.Dir)), os.ErrNotExist, "%s is left", r.Dir)
			if after := mountCount(t); after != mounts {
				t.Errorf("%d mounts, %d before", after, mounts)
			}
		})
	}
}

func sysctls(name, value string) func(*Request) {
	return func(r *Request) { r.Sysctls = map[string]string{name: value} }
}

func TestCreateCanceled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := all(t)
	test.ErrorIs(t, test.Err(Create(ctx, r)), context.Canceled, "Create with an ended context")
}

// A second Create neither replaces nor removes a namespace that exists.
func TestCreateTwice(t *testing.T) {
	r := all(t)
	ns := create(t, r)
	before := inode(t, ns.UTS)
	for _, file := range []string{netFile, ipcFile} { // uts alone is in the way
		test.Must(t, release(filepath.Join(r.Dir, file)))
	}
	test.Refused(t, test.Err(Create(t.Context(), r)), errdefs.IsAlreadyExists)
	if !Exists(ns.UTS) || inode(t, ns.UTS) != before {
		t.Error("the first namespace was replaced")
	}
	if Exists(ns.Net) || Exists(ns.IPC) {
		t.Error("namespaces of the failed call are left")
	}
}

func TestReleaseIsIdempotentAndWorksWithoutMounts(t *testing.T) {
	r := all(t)
	ns := create(t, r)
	if err := unix.Unmount(ns.Net, unix.MNT_DETACH); err != nil { // as after a reboot
		t.Fatal(err)
	}
	if Exists(ns.Net) {
		t.Error("a file without its mount counts as a namespace")
	}
	if err := unix.Mount("/proc/self/ns/ipc", ns.IPC, "", unix.MS_BIND, ""); err != nil { // mounted twice
		t.Fatal(err)
	}
	for range 2 {
		test.Must(t, Release(r.Dir))
		if _, err := os.Lstat(r.Dir); !errors.Is(err, os.ErrNotExist) {
			t.Fatalf("%s is left: %v", r.Dir, err)
		}
	}
}

func TestReleaseLeavesForeignFiles(t *testing.T) {
	r := all(t)
	create(t, r)
	foreign := filepath.Join(r.Dir, "other")
	test.Must(t, os.WriteFile(foreign, nil, 0o600))
	test.Must(t, Release(r.Dir))
	test.Check(t, test.Err(os.Stat(foreign)))
}

func TestReleaseWhileInUse(t *testing.T) {
	r := all(t)
	ns := create(t, r)
	f := test.Value(os.Open(ns.Net))(t)
	defer f.Close()
	test.Must(t, Release(r.Dir))
}

func TestDo(t *testing.T) {
	r := all(t)
	ns := create(t, r)
	var names []string
	var listener net.Listener
	test.Must(t, Do(ns.Net, func() error {
		interfaces, err := net.Interfaces()
		for _, i := range interfaces {
			names = append(names, i.Name)
		}
		if err != nil {
			return err
		}
		listener, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	}))
	defer listener.Close()
	if strings.Join(names, " ") != "lo" {
		t.Errorf("inside are %v, want lo alone", names)
	}
	test.Fails(t, test.Err(net.Dial("tcp", listener.Addr().String())), "the host reached a socket that was opened inside")
	test.Checkf(t, Do(ns.Net, func() error {
		conn, err := net.Dial("tcp", listener.Addr().String())
		if err == nil {
			err = conn.Close()
		}
		return err
	}), "a connection to the socket from inside")
	want := errors.New("mine")
	if err := Do(ns.Net, func() error { return want }); !errors.Is(err, want) {
		t.Errorf("got %v, want the function's error", err)
	}
}

func TestDoWithoutNamespace(t *testing.T) {
	file := filepath.Join(t.TempDir(), "net")
	called := func() error { t.Error("the function was called"); return nil }
	test.Is(t, Do(file, called), errdefs.IsNotFound, "missing file")
	test.Must(t, os.WriteFile(file, nil, 0o600))
	test.Is(t, Do(file, called), errdefs.IsNotFound, "file without a mount")
}

// Create, Do and Release leave no mounts, no open files, and no thread in a network
// namespace other than the host's.
func TestNothingLeaks(t *testing.T) {
	before := hostCounts(t)
	host := inode(t, hostNamespace("net"))
	base := t.TempDir()
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			r := Request{Dir: filepath.Join(base, strconv.Itoa(i)), Net: true, IPC: true, UTS: true}
			ns, err := Create(t.Context(), r)
			if err != nil {
				t.Error(err)
				return
			}
			test.Check(t, Do(ns.Net, func() error { return nil }))
			test.Check(t, Release(r.Dir))
		})
	}
	wg.Wait()
	// The Go runtime keeps idle threads, but must not keep a thread
	// that was in a pod's namespace.
	for _, task := range tasks(t) {
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(task, "ns/net"), &st); err == nil && st.Ino != host {
			eventuallyGone(t, task)
		}
	}
	after := hostCounts(t)
	if after != before {
		t.Errorf("mounts and files: %+v, before %+v", after, before)
	}
	if n := len(tasks(t)); n > 64 {
		t.Errorf("%d threads are left", n)
	}
}

func eventuallyGone(t *testing.T, task string) {
	t.Helper()
	test.Eventually(t, "thread "+filepath.Base(task)+" has left the pod's namespace", func() bool {
		return test.Err(os.Stat(filepath.Join(task, "ns/net"))) != nil
	})
}

type counts struct{ mounts, files int }

func hostCounts(t *testing.T) counts {
	t.Helper()
	files := test.Value(os.ReadDir("/proc/self/fd"))(t)
	return counts{mountCount(t), len(files)}
}

// mountCount counts the namespaces that tests have mounted; other processes mount things too.
func mountCount(t *testing.T) int {
	t.Helper()
	b := test.Value(os.ReadFile("/proc/self/mountinfo"))(t)
	n := 0
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, " - nsfs ") && strings.Contains(line, os.TempDir()) {
			n++
		}
	}
	return n
}

func tasks(t *testing.T) []string {
	t.Helper()
	return test.Value(filepath.Glob("/proc/self/task/*"))(t)
}
