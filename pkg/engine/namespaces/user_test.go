package namespaces

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/coredump"
)

func podUser() *User {
	return &User{UIDs: specs.LinuxIDMapping{HostID: 300_000, Size: 65_536}, GIDs: specs.LinuxIDMapping{HostID: 400_000, Size: 65_536}}
}

func withUser(t testing.TB) Request {
	r := all(t)
	r.User = podUser()
	return r
}

// insideUser runs a command as root of the user namespace.
func insideUser(t *testing.T, ns *Paths, command ...string) string {
	t.Helper()
	args := append([]string{"--user=" + ns.User, "--net=" + ns.Net, "--ipc=" + ns.IPC, "--uts=" + ns.UTS, "--setuid=0", "--setgid=0", "--"}, command...)
	out, err := exec.Command("nsenter", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("nsenter %v: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// owner returns the inode of the user namespace that a namespace belongs to.
func owner(t *testing.T, path string) uint64 {
	t.Helper()
	f := test.Value(os.Open(path))(t)
	defer f.Close()
	fd := test.Value(unix.IoctlRetInt(int(f.Fd()), unix.NS_GET_USERNS))(t)
	defer unix.Close(fd)
	var st unix.Stat_t
	test.Must(t, unix.Fstat(fd, &st))
	return st.Ino
}

func TestUserOwnsTheOthers(t *testing.T) {
	r := withUser(t)
	r.Sysctls = map[string]string{
		"net.ipv4.ip_unprivileged_port_start": "0",
		"net.ipv4.ping_group_range":           "10 65535",
		"kernel.shm_rmid_forced":              "1",
		"kernel.msgmax":                       "9000",
		"fs.mqueue.msg_max":                   "11",
		"kernel.domainname":                   "berth.test",
	}
	test.Must(t, coredump.Forbid())
	ns := create(t, r)
	if dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0); dumpable != 0 || err != nil {
		t.Errorf("this process can be dumped, although coredump.Forbid was called: %d, %v", dumpable, err)
	}
	user := inode(t, ns.User)
	if user == inode(t, hostNamespace("user")) {
		t.Fatal("the user namespace is the host's")
	}
	for _, path := range []string{ns.Net, ns.IPC, ns.UTS} {
		if owner(t, path) != user {
			t.Errorf("%s does not belong to the pod's user namespace", path)
		}
	}
	for _, tc := range []struct{ command, want string }{
		{"cat /proc/self/uid_map | tr -s ' '", "0 300000 65536"},
		{"cat /proc/self/gid_map | tr -s ' '", "0 400000 65536"},
		{"cat /proc/self/setgroups", "allow"},
		{"hostname", r.Hostname},
		{"cat /proc/sys/net/ipv4/ip_unprivileged_port_start", "0"},
		{"cat /proc/sys/net/ipv4/ping_group_range", "10\t65535"},
		{"cat /proc/sys/kernel/shm_rmid_forced", "1"},
		{"cat /proc/sys/kernel/msgmax", "9000"},
		{"cat /proc/sys/fs/mqueue/msg_max", "11"},
		{"cat /proc/sys/kernel/domainname", "berth.test"},
		// Root of the pod is root of its network.
		{"ip link set lo mtu 1400 && ip -o link show lo | grep -c 'mtu 1400'", "1"},
	} {
		test.Equal(t, fmt.Sprintf("%s inside", tc.command), insideUser(t, ns, "sh", "-c", tc.command), tc.want)
	}
	if lo := insideUser(t, ns, "ip", "-o", "addr", "show", "lo"); !strings.Contains(lo, "127.0.0.1/8") {
		t.Errorf("lo inside is not up: %s", lo)
	}
	for _, process := range children(t) {
		t.Errorf("process %s is left", process)
	}
}

func children(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, task := range tasks(t) {
		b, err := os.ReadFile(filepath.Join(task, "children"))
		if errors.Is(err, os.ErrNotExist) {
			continue // the thread ended
		}
		test.Must(t, err)
		out = append(out, strings.Fields(string(b))...)
	}
	return out
}

// A pod on the host's network still has its own IPC namespace.
func TestUserWithIPCAlone(t *testing.T) {
	r := withUser(t)
	r.Net, r.UTS, r.Hostname = false, false, ""
	ns := create(t, r)
	if ns.Net != "" || ns.UTS != "" || owner(t, ns.IPC) != inode(t, ns.User) {
		t.Errorf("got %+v", ns)
	}
}

func TestUserRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Request)
		says   string
		is     func(error) bool
	}{
		"unmapped ping": {sysctls("net.ipv4.ping_group_range", "0 2147483647"), "2147483647", errdefs.IsInvalidArgument},
		"bad ping":      {sysctls("net.ipv4.ping_group_range", "all"), "all", errdefs.IsInvalidArgument},
		"bad limit":     {sysctls("kernel.msgmax", "much"), "much", errdefs.IsInvalidArgument},
		"ids that the kernel refuses": {func(r *Request) {
			r.User.UIDs.HostID, r.User.UIDs.Size = 1<<32-2, 10
		}, "user namespace", func(err error) bool { return err != nil }},
	} {
		t.Run(name, func(t *testing.T) {
			r := withUser(t)
			tc.change(&r)
			mounts := mountCount(t)
			_, err := Create(t.Context(), r)
			if err == nil || !tc.is(err) || !strings.Contains(err.Error(), tc.says) {
				t.Fatalf("got %v, want %q", err, tc.says)
			}
			test.ErrorIs(t, test.Err(os.Lstat(r.Dir)), os.ErrNotExist, "%s is left", r.Dir)
			if after := mountCount(t); after != mounts {
				t.Errorf("%d mounts, %d before", after, mounts)
			}
			if left := children(t); len(left) > 0 {
				t.Errorf("processes %v are left", left)
			}
		})
	}
}

func TestUserValuesOutside(t *testing.T) {
	u := podUser()
	for value, want := range map[string]string{
		"0 65535": "400000 465535", "7\t9": "400007 400009", "1 0": "1 0", "x": "x", "1": "1", "-1 4": "-1 4",
	} {
		test.Equal(t, fmt.Sprintf("%q becomes", value), test.Value(u.outside(pingGroups, value))(t), want)
	}
	test.Fails(t, test.Err(u.outside(pingGroups, "0 65536")), "a group that is not mapped was accepted")
	test.Equal(t, "another sysctl becomes", test.Value(u.outside("net/ipv4/ip_forward", "0 1"))(t), "0 1")
}

func TestUserLeaksNothing(t *testing.T) {
	before := hostCounts(t)
	base := t.TempDir()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			r := Request{Dir: filepath.Join(base, strconv.Itoa(i)), Net: true, IPC: true, UTS: true, User: podUser(),
				Sysctls: map[string]string{"kernel.msgmax": "9000"}}
			if _, err := Create(context.Background(), r); err != nil {
				t.Error(err)
				return
			}
			test.Check(t, Release(r.Dir))
		})
	}
	wg.Wait()
	if after := hostCounts(t); after != before {
		t.Errorf("mounts and files: %+v, before %+v", after, before)
	}
	if left := children(t); len(left) > 0 {
		t.Errorf("processes %v are left", left)
	}
	// A thread that became another user must not be left.
	for _, task := range tasks(t) {
		b, err := os.ReadFile(filepath.Join(task, "status"))
		if err == nil && !strings.Contains(string(b), "\nUid:\t0\t0\t0\t0\n") {
			eventuallyGone(t, task)
		}
	}
}
