package testbed

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestCNILeftoversAreSeenAndRemoved gives a network namespace an address and a host port, and does
// not tear them down: a snapshot must have them, and the cleanup must remove them.
func TestCNILeftoversAreSeenAndRemoved(t *testing.T) {
	NeedNetwork(t)
	namespace := networkNamespace(t)
	var network *CNI
	err := Run(t.Context(), "cni", t.Output(), func(run T) {
		network = NewCNI(run)
		add(run, network, namespace)
		daemon := &Daemon{Dir: run.TempDir(), cni: network}
		seen := daemon.Snapshot(run)
		for _, kind := range []Kind{Leases, Ports, Rules} {
			if len(seen[kind]) == 0 {
				run.Errorf("the snapshot has no %s", kind)
			}
		}
		if leaks := (Snapshot{}).Leaks(seen); len(leaks) < 3 {
			run.Errorf("the leaks are %v, want 3 or more", leaks)
		}
	})
	Must(t, err)
	if _, err := netlink.LinkByName(network.Name); err == nil {
		t.Errorf("bridge %s is still there", network.Name)
	}
	rules, err := network.rules()
	Must(t, err)
	Empty(t, rules, "iptables rules are still there")
}

func networkNamespace(t *testing.T) string {
	t.Helper()
	sleeper := exec.Command("sleep", "600")
	sleeper.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	Must(t, sleeper.Start())
	t.Cleanup(func() {
		_ = sleeper.Process.Kill()
		_ = sleeper.Wait()
	})
	return fmt.Sprintf("/proc/%d/ns/net", sleeper.Process.Pid)
}

func add(t T, network *CNI, namespace string) {
	t.Helper()
	list, err := libcni.ConfListFromFile(network.Path())
	if err != nil {
		t.Fatalf("%v", err)
	}
	plugins := libcni.NewCNIConfigWithCacheDir([]string{network.BinDir}, t.TempDir(), nil)
	_, err = plugins.AddNetworkList(context.Background(), list, &libcni.RuntimeConf{
		ContainerID: "testbed", NetNS: namespace, IfName: "eth0",
		CapabilityArgs: map[string]any{"portMappings": []map[string]any{
			{"hostPort": 45678, "containerPort": 80, "protocol": "tcp"},
		}},
	})
	if err != nil {
		t.Fatalf("%v", err)
	}
}

func TestSubnetsInUseAreNotFree(t *testing.T) {
	subnet := func(text string) netlink.Route {
		address, err := netlink.ParseIPNet(text)
		Must(t, err)
		return netlink.Route{Dst: address}
	}
	candidate := subnet("10.130.4.0/24").Dst
	for route, want := range map[string]bool{
		"10.130.4.0/24": true, "10.130.4.7/32": true, "10.130.0.0/16": true, "10.130.5.0/24": false, "0.0.0.0/0": false,
	} {
		Same(t, routed([]netlink.Route{subnet(route)}, candidate), want, "route %s: in use is", route)
	}
}

// TestLeftoversAreSeenAndSwept creates what a killed daemon leaves, and checks snapshot and sweep.
func TestLeftoversAreSeenAndSwept(t *testing.T) {
	NeedRoot(t)
	dir, err := os.MkdirTemp("/run", "bt-")
	Must(t, err)
	daemon := &Daemon{
		Dir: dir, State: filepath.Join(dir, "state"), Root: filepath.Join(t.TempDir(), "root"), Cgroup: "/" + filepath.Base(dir),
	}
	t.Cleanup(func() { daemon.sweep(t) })
	before := daemon.Snapshot(t)
	makeLeftovers(t, daemon)

	after := daemon.Snapshot(t)
	leaks := before.Leaks(after)
	for _, want := range []string{
		"mount " + daemon.State + "/containers/c1/rootfs",
		"state " + daemon.State + "/containers/c1/io/stdout",
		"record " + daemon.Root + "/records/sandboxes/s1.json",
		"snapshot " + daemon.Root + "/overlayfs/snapshots/7",
	} {
		if !slices.Contains(leaks, want) {
			t.Errorf("the leaks lack %q:\n%s", want, indent(leaks))
		}
	}
	if slices.Contains(leaks, "snapshot "+daemon.Root+"/overlayfs/snapshots/7/fs") {
		t.Errorf("a snapshot's content is listed:\n%s", indent(leaks))
	}
	if len(after[Cgroups]) != 1 || !strings.HasSuffix(after[Cgroups][0], daemon.Cgroup+"/pod1/c1") {
		t.Errorf("the cgroups are %v, want only that of the container", after[Cgroups])
	}
	if len(after[Processes]) != 2 {
		t.Errorf("the processes are %v, want one found by its arguments and one by its cgroup", after[Processes])
	}

	daemon.sweep(t)
	if left := (Snapshot{}).Leaks(daemon.Snapshot(t)); len(left) != 0 {
		t.Errorf("left after the sweep:\n%s", indent(left))
	}
}

func makeLeftovers(t *testing.T, daemon *Daemon) {
	t.Helper()
	rootfs := filepath.Join(daemon.State, "containers/c1/rootfs")
	stdio := filepath.Join(daemon.State, "containers/c1/io")
	records := filepath.Join(daemon.Root, "records/sandboxes")
	for _, dir := range []string{rootfs, stdio, records, filepath.Join(daemon.Root, "overlayfs/snapshots/7/fs")} {
		Must(t, os.MkdirAll(dir, 0o755))
	}
	Must(t, os.WriteFile(filepath.Join(records, "s1.json"), nil, 0o600))
	Must(t, unix.Mkfifo(filepath.Join(stdio, "stdout"), 0o600))
	Must(t, unix.Mount("testbed", rootfs, "tmpfs", 0, ""))
	start(t, "tail", "-f", "/dev/null", daemon.Dir+"/shim.sock") // tail ignores that the second file is missing
	joinCgroup(t, daemon, start(t, "sleep", "600"))
}

func start(t *testing.T, name string, arguments ...string) int {
	t.Helper()
	command := exec.Command(name, arguments...)
	Must(t, command.Start())
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	// The kernel shows the new arguments once the program runs.
	Eventually(t, 10*time.Second, func() error {
		cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", command.Process.Pid))
		if err == nil && !strings.HasPrefix(string(cmdline), name) {
			err = fmt.Errorf("process %d still runs %q", command.Process.Pid, cmdline)
		}
		return err
	})
	return command.Process.Pid
}

func joinCgroup(t *testing.T, daemon *Daemon, pid int) {
	t.Helper()
	top := "/sys/fs/cgroup"
	if _, err := os.Stat(top + "/pids"); err == nil {
		top += "/pids" // a hierarchy of cgroup v1
	}
	dir := filepath.Join(top, daemon.Cgroup, "pod1/c1")
	Must(t, os.MkdirAll(dir, 0o755))
	Must(t, os.WriteFile(filepath.Join(dir, "cgroup.procs"), fmt.Appendf(nil, "%d", pid), 0o600))
}
