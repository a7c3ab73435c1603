package conformance

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

var usernsChecks = []check{
	{name: "root of the pod is nobody on the host", needs: []Ability{UserNamespaces}, run: usernsIDs},
	{name: "the image's files belong to the pod's users", needs: []Ability{UserNamespaces}, run: usernsRootfs},
	{name: "the sandbox's files belong to root of the pod", needs: []Ability{UserNamespaces}, run: usernsFiles},
	{name: "root of the pod is root of its namespaces", needs: []Ability{UserNamespaces}, run: usernsCapabilities},
	{name: "the kernel's file systems are mounted", needs: []Ability{UserNamespaces}, run: usernsFileSystems},
	{name: "a mapped volume belongs to root on both sides", needs: []Ability{UserNamespaces}, run: usernsVolume},
	{name: "a volume without a mapping belongs to nobody", needs: []Ability{UserNamespaces}, run: usernsUnmappedVolume},
	{name: "a volume that cannot be mapped is refused", needs: []Ability{UserNamespaces}, run: usernsVolumeRefused},
	{name: "output, and exec, as a user of the image", needs: []Ability{UserNamespaces}, run: usernsExec},
	{name: "a user beyond the mapping is refused", needs: []Ability{UserNamespaces}, run: usernsUnmappedUser},
	{name: "containers share the pod's processes", needs: []Ability{UserNamespaces}, run: usernsSharedPID},
	{name: "a mapped volume in a pod that shares its processes", needs: []Ability{UserNamespaces}, run: usernsVolumeSharedPID},
	{name: "sysctls of the pod", needs: []Ability{UserNamespaces}, run: usernsSysctls},
	{name: "on the host's network", needs: []Ability{UserNamespaces}, run: usernsHostNetwork},
	{name: "with the host's processes or IPC objects is refused", berth: true, run: usernsHostRefused},
	{name: "a privileged container is privileged in the pod only", needs: []Ability{UserNamespaces}, run: usernsPrivileged},
	{name: "ids beyond 31 bits", needs: []Ability{UserNamespaces}, run: usernsHighIDs},
	{name: "two pods with the same ids", needs: []Ability{UserNamespaces}, run: usernsTwoPods},
	{name: "options come back in status", needs: []Ability{UserNamespaces}, run: usernsEcho},
	{name: "after a kill -9 of the daemon", needs: []Ability{UserNamespaces}, alone: true, run: usernsRestart},
	{name: "a handler says whether it has them, and refuses if not", run: usernsAnnounced},
}

// The ids that the checks map. User and group ids differ, so that a check fails if a daemon
// confuses them.
const (
	podUID, podGID = 200_000, 400_000
	podIDs         = 65_536
)

func podMappings() *runtimeapi.UserNamespace {
	return &runtimeapi.UserNamespace{
		Mode: runtimeapi.NamespaceMode_POD,
		Uids: []*runtimeapi.IDMapping{{HostId: podUID, Length: podIDs}},
		Gids: []*runtimeapi.IDMapping{{HostId: podGID, Length: podIDs}},
	}
}

// withUserNS gives the pod a user namespace.
func withUserNS(c *runtimeapi.PodSandboxConfig) {
	c.Linux.SecurityContext.NamespaceOptions.UsernsOptions = podMappings()
}

// idmapped is a mount as the kubelet sends it for a pod with a user namespace.
func idmapped(m *runtimeapi.Mount) *runtimeapi.Mount {
	m.UidMappings, m.GidMappings = podMappings().GetUids(), podMappings().GetGids()
	return m
}

// hostProcess returns the host's /proc directory of a process of the container.
func hostProcess(t *testing.T, c *container) string {
	t.Helper()
	inside := c.line(t, "readlink", "/proc/1/ns/mnt")
	namespaces, err := filepath.Glob("/proc/[0-9]*/ns/mnt")
	must(t, err, "list processes")
	for _, namespace := range namespaces {
		if host, err := os.Readlink(namespace); err == nil && host == inside {
			return filepath.Dir(filepath.Dir(namespace))
		}
	}
	t.Fatalf("no process of the host is in mount namespace %s", inside)
	return ""
}

func fields(s string) string { return strings.Join(strings.Fields(s), " ") }

func usernsIDs(t *testing.T, n *node) {
	c := n.pod(t, withUserNS).start(t, forever())
	for file, want := range map[string]string{
		"uid_map": fmt.Sprintf("0 %d %d", podUID, podIDs), "gid_map": fmt.Sprintf("0 %d %d", podGID, podIDs),
	} {
		testbed.Same(t, fields(c.exec(t, "cat", "/proc/self/"+file)), want, "%s is", file)
	}
	testbed.Same(t, c.line(t, "id", "-u"), "0", "inside the user is")
	state := readFile(hostProcess(t, c) + "/status")
	for key, id := range map[string]int{"Uid": podUID, "Gid": podGID} {
		if want := fmt.Sprintf("\n%s:\t%[2]d\t%[2]d\t%[2]d\t%[2]d\n", key, id); !strings.Contains(state, want) {
			t.Errorf("on the host the process's %s is not %d:\n%s", key, id, state)
		}
	}
	host, err := os.Readlink("/proc/self/ns/user")
	must(t, err, "own user namespace")
	if got := c.line(t, "readlink", "/proc/self/ns/user"); got == host {
		t.Error("the container is in the host's user namespace")
	}
}

func usernsRootfs(t *testing.T, n *node) {
	c := n.pod(t, withUserNS).start(t, forever())
	c.exec(t, "sh", "-c", "touch /mine /home/app/his && chown app:app /home/app/his && echo x >> /etc/passwd")
	for file, want := range map[string]string{
		"/": "0:0", "/bin/busybox": "0:0", "/home/app": "1000:1000", "/mine": "0:0", "/home/app/his": "1000:1000", "/etc/passwd": "0:0",
	} {
		testbed.Same(t, c.line(t, "stat", "-c", "%u:%g", file), want, "%s is owned by", file)
	}
	// On the host the same file belongs to the mapped ids.
	if st, err := os.Stat(hostProcess(t, c) + "/root/home/app/his"); err != nil || owner(st) != [2]uint32{podUID + 1000, podGID + 1000} {
		t.Errorf("on the host the file is owned by %v (%v)", owner(st), err)
	}
}

func usernsFiles(t *testing.T, n *node) {
	p := n.pod(t, withUserNS)
	a, b := p.start(t, forever()), p.start(t, forever())
	for _, file := range []string{"/etc/hostname", "/etc/hosts", "/etc/resolv.conf", "/dev/shm"} {
		testbed.Same(t, a.line(t, "stat", "-c", "%u:%g", file), "0:0", "%s is owned by", file)
		a.exec(t, "sh", "-c", "ls -d "+file+" && test -r "+file)
	}
	a.exec(t, "sh", "-c", "echo shared > /dev/shm/note && chmod 600 /dev/shm/note && echo 127.0.0.9 name >> /etc/hosts")
	testbed.Same(t, b.line(t, "cat", "/dev/shm/note"), "shared", "the other container reads")
}

// usernsCapabilities checks that the pod's user namespace owns the pod's other namespaces:
// otherwise capabilities would have no effect in these.
func usernsCapabilities(t *testing.T, n *node) {
	p := n.pod(t, withUserNS)
	capable := security(func(s *runtimeapi.LinuxContainerSecurityContext) {
		s.Capabilities = &runtimeapi.Capability{AddCapabilities: []string{"NET_ADMIN", "SYS_ADMIN"}}
	})
	// Unconfined, because the default profile of AppArmor forbids mounts, which the user namespace
	// allows.
	c := p.start(t, forever(), capable, apparmor(&runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}))
	c.exec(t, "ip", "link", "set", "lo", "mtu", "1400")
	testbed.Same(t, c.line(t, "cat", "/sys/class/net/lo/mtu"), "1400", "the mtu is")
	c.exec(t, "hostname", "renamed")
	c.exec(t, "sh", "-c", "mkdir /tmp/m && mount -t tmpfs none /tmp/m")
	if _, lacks := n.Lacks[Labels]; !lacks && hostAppArmor() {
		confined := p.start(t, forever(), capable)
		if r, err := confined.execSync(t, execBound, "sh", "-c", "mkdir /tmp/m && mount -t tmpfs none /tmp/m"); err != nil || r.GetExitCode() == 0 {
			t.Errorf("the default profile of AppArmor lets a pod mount: %v, %v", r, err)
		}
	}
	if r, err := c.execSync(t, execBound, "sh", "-c", "echo 1 > /proc/sys/vm/drop_caches"); err != nil || r.GetExitCode() == 0 {
		t.Errorf("the pod can change the host's memory management: %v, %v", r, err)
	}
}

func usernsFileSystems(t *testing.T, n *node) {
	c := n.pod(t, withUserNS).start(t, forever())
	mounts := c.exec(t, "cat", "/proc/self/mounts")
	for _, want := range []string{" /proc proc ", " /sys sysfs ro,", " /dev tmpfs ", " /dev/pts devpts ", " /dev/mqueue mqueue ", " /dev/shm tmpfs "} {
		testbed.Contains(t, mounts, want, "the mounts")
	}
	c.exec(t, "sh", "-c", "echo x > /dev/null && head -c 1 /dev/urandom > /dev/null && test -c /dev/tty")
}

func usernsVolume(t *testing.T, n *node) { mappedVolume(t, n.pod(t, withUserNS)) }

// usernsVolumeSharedPID has the containers join a PID namespace, in which a runtime could read the
// mapping of the wrong process.
func usernsVolumeSharedPID(t *testing.T, n *node) {
	p := n.pod(t, withUserNS, pidMode(runtimeapi.NamespaceMode_POD))
	mappedVolume(t, p)
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, []byte("whole\n"), 0o600), "write")
	c := p.start(t, forever(), mount(idmapped(&runtimeapi.Mount{ContainerPath: "/file", HostPath: file})))
	testbed.Same(t, c.line(t, "cat", "/file"), "whole", "read")
	c.exec(t, "sh", "-c", "echo more >> /file")
	testbed.Same(t, readFile(file), "whole\nmore\n", "on the host the file has")
}

func mappedVolume(t *testing.T, p *pod) {
	t.Helper()
	// Only the host's root has access to the directory, as to those of the kubelet.
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o700), "chmod")
	must(t, os.WriteFile(dir+"/in", []byte("from the host\n"), 0o600), "write")
	c := p.start(t, forever(), mount(
		idmapped(&runtimeapi.Mount{ContainerPath: "/data", HostPath: dir}),
		idmapped(&runtimeapi.Mount{ContainerPath: "/ro", HostPath: dir, Readonly: true})))
	testbed.Same(t, c.exec(t, "cat", "/data/in"), "from the host\n", "read")
	testbed.Same(t, c.line(t, "stat", "-c", "%u:%g", "/data/in"), "0:0", "in the pod the host's file is owned by")
	c.exec(t, "sh", "-c", "echo x > /data/out && chown 7:8 /data/out")
	st, err := os.Stat(dir + "/out")
	must(t, err, "stat what the pod wrote")
	testbed.Same(t, owner(st), [2]uint32{7, 8}, "on the host the pod's new file is owned by")
	if r, err := c.execSync(t, execBound, "touch", "/ro/x"); err != nil || r.GetExitCode() == 0 {
		t.Errorf("a read-only mapped mount is writable: %v, %v", r, err)
	}
}

func usernsUnmappedVolume(t *testing.T, n *node) {
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o755), "chmod")
	c := n.pod(t, withUserNS).start(t, forever(), mount(&runtimeapi.Mount{ContainerPath: "/data", HostPath: dir}))
	testbed.Same(t, c.line(t, "stat", "-c", "%u:%g", "/data"), "65534:65534", "in the pod the volume is owned by")
	if r, err := c.execSync(t, execBound, "touch", "/data/x"); err != nil || r.GetExitCode() == 0 {
		t.Errorf("root of the pod writes to a directory of the host's root: %v, %v", r, err)
	}
}

// usernsVolumeRefused mounts from a file system that cannot map ids.
func usernsVolumeRefused(t *testing.T, n *node) {
	p := n.pod(t, withUserNS)
	c, err := p.tryCreate(t, p.containerConfig(forever(), mount(idmapped(&runtimeapi.Mount{ContainerPath: "/data", HostPath: "/sys/kernel"}))))
	if err == nil {
		err = c.tryStart(t)
	}
	mustFail(t, err, "a container with a mapped mount of sysfs")
}

func usernsExec(t *testing.T, n *node) {
	p := n.pod(t, withUserNS)
	asApp := security(func(s *runtimeapi.LinuxContainerSecurityContext) { s.RunAsUser = &runtimeapi.Int64Value{Value: 1000} })
	// The user can open /dev/stdout only if the pipe belongs to the user.
	const script = "echo out > /dev/stdout; echo err > /dev/stderr; "
	c := p.start(t, sh(script+"exit 0"), asApp)
	if st := c.waitExit(t); st.GetExitCode() != 0 {
		t.Errorf("it ended with %v", st)
	}
	if got := c.logged(t); got.stdout != "out\n" || got.stderr != "err\n" {
		t.Errorf("the container logged %q and %q", got.stdout, got.stderr)
	}
	c = p.start(t, forever(), asApp)
	r, err := c.execSync(t, execBound, "sh", "-c", script+"id -u; exit 3")
	must(t, err, "ExecSync")
	if r.GetExitCode() != 3 || string(r.GetStdout()) != "out\n1000\n" || string(r.GetStderr()) != "err\n" {
		t.Errorf("exec: %v", r)
	}
	tty := p.start(t, sh("test -t 1 && tty && exit 5"), func(c *runtimeapi.ContainerConfig) { c.Tty = true })
	if st := tty.waitExit(t); st.GetExitCode() != 5 {
		t.Errorf("with a terminal: %v: %v", st, tty.logged(t))
	}
}

func usernsUnmappedUser(t *testing.T, n *node) {
	p := n.pod(t, withUserNS)
	c, err := p.tryCreate(t, p.containerConfig(forever(), security(func(s *runtimeapi.LinuxContainerSecurityContext) {
		s.RunAsUser = &runtimeapi.Int64Value{Value: podIDs}
	})))
	if err == nil && !n.Berth {
		err = c.tryStart(t)
	}
	n.rejects(t, err, "a user that is not mapped", codes.InvalidArgument)
}

func usernsSharedPID(t *testing.T, n *node) {
	p := n.pod(t, withUserNS, pidMode(runtimeapi.NamespaceMode_POD))
	p.start(t, sh("exec sleep 7777"))
	b := p.start(t, forever())
	testbed.Contains(t, b.exec(t, "ps"), "sleep 7777", "the other container's process is not seen")
	testbed.Same(t, fields(b.exec(t, "cat", "/proc/1/uid_map")), fmt.Sprintf("0 %d %d", podUID, podIDs), "the sandbox process's uid_map is")
	testbed.Same(t, p.status(t).GetState(), runtimeapi.PodSandboxState_SANDBOX_READY, "the sandbox is")
}

func usernsSysctls(t *testing.T, n *node) {
	p := n.pod(t, withUserNS, func(c *runtimeapi.PodSandboxConfig) {
		c.Linux.Sysctls = map[string]string{
			"net.ipv4.ping_group_range": "0 9", "kernel.shm_rmid_forced": "1", "kernel.msgmax": "9000", "net.ipv4.ip_local_port_range": "1024 65000",
		}
	})
	c := p.start(t, forever())
	for key, want := range map[string]string{
		"net/ipv4/ping_group_range": "0 9", "kernel/shm_rmid_forced": "1", "kernel/msgmax": "9000", "net/ipv4/ip_local_port_range": "1024 65000",
	} {
		testbed.Same(t, fields(c.exec(t, "cat", "/proc/sys/"+key)), want, "%s is", key)
	}
}

func (n *node) features(t *testing.T) (*runtimeapi.RuntimeFeatures, *runtimeapi.RuntimeHandlerFeatures) {
	t.Helper()
	st, err := n.Runtime.Status(call(t), &runtimeapi.StatusRequest{})
	must(t, err, "Status")
	for _, h := range st.GetRuntimeHandlers() {
		if h.GetName() == n.Handler {
			return st.GetFeatures(), h.GetFeatures()
		}
	}
	t.Fatalf("Status does not name handler %q: %v", n.Handler, st.GetRuntimeHandlers())
	return nil, nil
}

func usernsHostNetwork(t *testing.T, n *node) {
	if f, _ := n.features(t); !f.GetUserNamespacesHostNetwork() {
		t.Skip("the target does not announce user_namespaces_host_network")
	}
	c := n.pod(t, withUserNS, hostNetwork).start(t, forever())
	host, err := os.Readlink("/proc/self/ns/net")
	must(t, err, "own network namespace")
	testbed.Same(t, c.line(t, "readlink", "/proc/self/ns/net"), host, "network namespace is")
	testbed.Same(t, fields(c.exec(t, "cat", "/proc/self/uid_map")), fmt.Sprintf("0 %d %d", podUID, podIDs), "uid_map is")
	c.exec(t, "ls", "/sys/class/net/lo")
	if r, err := c.execSync(t, execBound, "sh", "-c", "echo 1 > /sys/kernel/profiling"); err != nil || r.GetExitCode() == 0 {
		t.Errorf("/sys is writable: %v, %v", r, err)
	}
	c.exec(t, "sh", "-c", "echo x > /dev/shm/x")
}

func usernsHostRefused(t *testing.T, n *node) {
	for name, ask := range map[string]func(*runtimeapi.NamespaceOption){
		"pid": func(o *runtimeapi.NamespaceOption) { o.Pid = runtimeapi.NamespaceMode_NODE },
		"ipc": func(o *runtimeapi.NamespaceOption) { o.Ipc = runtimeapi.NamespaceMode_NODE },
	} {
		c := n.podConfig(t, withUserNS, func(c *runtimeapi.PodSandboxConfig) { ask(c.Linux.SecurityContext.NamespaceOptions) })
		_, err := n.tryPod(t, c)
		mustFail(t, err, "the host's "+name+" namespace in a pod with a user namespace", codes.InvalidArgument)
	}
}

func usernsPrivileged(t *testing.T, n *node) {
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o755), "chmod")
	p := n.pod(t, withUserNS, func(c *runtimeapi.PodSandboxConfig) { c.Linux.SecurityContext.Privileged = true })
	c := p.start(t, forever(), mount(&runtimeapi.Mount{ContainerPath: "/data", HostPath: dir}),
		security(func(s *runtimeapi.LinuxContainerSecurityContext) { s.Privileged = true }))
	testbed.Same(t, fields(c.exec(t, "cat", "/proc/self/uid_map")), fmt.Sprintf("0 %d %d", podUID, podIDs), "uid_map is")
	c.exec(t, "sh", "-c", "mkdir /tmp/m && mount -t tmpfs none /tmp/m && ip link set lo mtu 1400")
	for _, command := range []string{"touch /data/x", "chown 0:0 /data", "echo 1 > /proc/sys/vm/drop_caches", "mknod /tmp/disk b 7 0 && head -c 1 /tmp/disk"} {
		if r, err := c.execSync(t, execBound, "sh", "-c", command); err != nil || r.GetExitCode() == 0 {
			t.Errorf("%s works: %v, %v", command, r, err)
		}
	}
}

func usernsHighIDs(t *testing.T, n *node) {
	const first = 3_000_000_000
	p := n.pod(t, withUserNS, func(c *runtimeapi.PodSandboxConfig) {
		u := c.Linux.SecurityContext.NamespaceOptions.UsernsOptions
		u.Uids[0].HostId, u.Gids[0].HostId = first, first
	})
	c := p.start(t, forever())
	testbed.Same(t, fields(c.exec(t, "cat", "/proc/self/gid_map")), fmt.Sprintf("0 %d %d", first, podIDs), "gid_map is")
	testbed.Same(t, c.line(t, "stat", "-c", "%u:%g", "/bin/busybox"), "0:0", "a file of the image is owned by")
	c.exec(t, "sh", "-c", "touch /mine /dev/shm/mine")
}

func usernsTwoPods(t *testing.T, n *node) {
	a, b := n.pod(t, withUserNS).start(t, forever()), n.pod(t, withUserNS).start(t, forever())
	if first, second := a.line(t, "readlink", "/proc/self/ns/user"), b.line(t, "readlink", "/proc/self/ns/user"); first == second {
		t.Errorf("both pods are in %s", first)
	}
}

func usernsEcho(t *testing.T, n *node) {
	got := n.pod(t, withUserNS).status(t).GetLinux().GetNamespaces().GetOptions().GetUsernsOptions()
	if want := podMappings(); got.String() != want.String() {
		t.Errorf("status says %v, want %v", got, want)
	}
}

func usernsRestart(t *testing.T, n *node) {
	if n.Restart == nil {
		t.Skip("the target gives no way to restart its daemon")
	}
	p := n.pod(t, withUserNS)
	created, running := p.create(t, sh("exit 11")), p.start(t, forever())
	n.Restart(t)
	testbed.Same(t, p.status(t).GetState(), runtimeapi.PodSandboxState_SANDBOX_READY, "the sandbox is")
	testbed.Same(t, running.line(t, "id", "-u"), "0", "exec says user")
	must(t, created.tryStart(t), "start what was created before")
	if st := created.waitExit(t); st.GetExitCode() != 11 {
		t.Errorf("it ended with %v", st)
	}
	after := p.start(t, forever())
	if got, want := after.line(t, "readlink", "/proc/self/ns/user"), running.line(t, "readlink", "/proc/self/ns/user"); got != want {
		t.Errorf("a container that was made later is in %s, the others are in %s", got, want)
	}
	after.exec(t, "touch", "/etc/mine")
}

func usernsAnnounced(t *testing.T, n *node) {
	why, lacks := n.Lacks[UserNamespaces]
	// A daemon that has just started may not have probed its runtime yet.
	n.eventually(t, fmt.Sprintf("user_namespaces is %v (%s)", !lacks, why), func() bool {
		_, f := n.features(t)
		return f.GetUserNamespaces() != lacks
	})
	if !lacks || !n.Berth {
		return
	}
	cfg := n.podConfig(t, withUserNS)
	_, err := n.tryPod(t, cfg)
	mustFail(t, err, "a pod with a user namespace", codes.FailedPrecondition)
	st, serr := n.Runtime.Status(call(t), &runtimeapi.StatusRequest{})
	must(t, serr, "Status")
	for _, h := range st.GetRuntimeHandlers() {
		text := status.Convert(err).Message()
		weaker := strings.Contains(text, "no ready handler of this node with a kernel for each pod supports it")
		if h.GetFeatures().GetUserNamespaces() && !weaker && !strings.Contains(text, h.GetName()) {
			t.Errorf("the error does not name handler %q, which has user namespaces: %v", h.GetName(), err)
		}
	}
	testbed.Empty(t, n.listSandboxes(t, &runtimeapi.PodSandboxFilter{LabelSelector: cfg.GetLabels()}), "a refused sandbox is listed")
}

func owner(st os.FileInfo) (ids [2]uint32) {
	if st != nil {
		sys := st.Sys().(*syscall.Stat_t)
		ids = [2]uint32{sys.Uid, sys.Gid}
	}
	return ids
}
