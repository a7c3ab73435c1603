package conformance

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

var mountChecks = []check{
	{name: "a directory, read and written", run: mountDirectory},
	{name: "a single file", run: mountFile},
	{name: "read-only", run: mountReadonly},
	{name: "status echoes every mount", run: mountEcho},
	{name: "a symbolic link on the host is followed", run: mountSymlink},
	{name: "a symbolic link in the image stays inside", run: mountInsideRoot},
	{name: "a mount over a runtime's own", run: mountOverDefault},
	{name: "mounts within mounts", run: mountNested},
	{name: "a mount that would hide /proc is refused", berth: true, run: mountOverProc},
	{name: "mounts over files of /proc that lxcfs has", run: mountProcFile},
	{name: "recursive read-only", run: mountRecursiveReadonly},
	{name: "options of mounts", needs: []Ability{MountOptions}, run: mountOptions},
	{name: "propagation from a mount that does not propagate is refused", berth: true, run: propagationRefused},
	{name: "propagation to the container", run: propagationSlave},
	{name: "propagation both ways", needs: []Ability{Propagation}, run: propagationShared},
	{name: "no propagation", run: propagationPrivate},
	{name: "devices", run: hostDevice},
	{name: "a device's permissions", needs: []Ability{CgroupPerCtr}, run: devicePermissions},
	{name: "a CDI device", run: cdiDevice},
	{name: "the usual file systems", run: usualFileSystems},
	{name: "message queues", needs: []Ability{MessageQueues}, run: mqueue},
	{name: "two containers have two roots", run: rootsDiffer},
}

func mountDirectory(t *testing.T, n *node) {
	dir := t.TempDir()
	must(t, os.WriteFile(dir+"/in", []byte("from the host\n"), 0o644), "write")
	c := n.pod(t).start(t, forever(), mount(&runtimeapi.Mount{ContainerPath: "/data/deep", HostPath: dir}))
	testbed.Same(t, c.exec(t, "cat", "/data/deep/in"), "from the host\n", "read")
	c.exec(t, "sh", "-c", "echo from the pod > /data/deep/out")
	testbed.Same(t, readFile(dir+"/out"), "from the pod\n", "the host reads")
}

func mountFile(t *testing.T, n *node) {
	file := filepath.Join(t.TempDir(), "termination-log")
	must(t, os.WriteFile(file, nil, 0o666), "write")
	n.pod(t).output(t, sh("echo last words > /dev/termination-log"),
		mount(&runtimeapi.Mount{ContainerPath: "/dev/termination-log", HostPath: file}))
	testbed.Same(t, readFile(file), "last words\n", "the termination message is")
}

func mountReadonly(t *testing.T, n *node) {
	c := n.pod(t).start(t, forever(), mount(&runtimeapi.Mount{ContainerPath: "/data", HostPath: t.TempDir(), Readonly: true}))
	if r, err := c.execSync(t, execBound, "touch", "/data/x"); err != nil || r.GetExitCode() == 0 {
		t.Errorf("a read-only mount is writable: %v, %v", r, err)
	}
}

func mountEcho(t *testing.T, n *node) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	must(t, os.WriteFile(file, nil, 0o644), "write")
	c := n.pod(t).start(t, forever(), mount(
		&runtimeapi.Mount{ContainerPath: "/b", HostPath: dir, Readonly: true},
		&runtimeapi.Mount{ContainerPath: "/a", HostPath: dir},
		&runtimeapi.Mount{ContainerPath: "/dev/termination-log", HostPath: file},
	))
	look := func(when string) {
		got := map[string]*runtimeapi.Mount{}
		all := c.status(t).GetMounts()
		for _, m := range all {
			got[m.GetContainerPath()] = m
		}
		if len(all) != len(c.Config.GetMounts()) {
			t.Errorf("%s: status has %d mounts, sent %d: %v", when, len(all), len(c.Config.GetMounts()), all)
		}
		for _, want := range c.Config.GetMounts() {
			g := got[want.GetContainerPath()]
			if g == nil || g.GetHostPath() != want.GetHostPath() || g.GetReadonly() != want.GetReadonly() ||
				g.GetPropagation() != want.GetPropagation() || g.GetRecursiveReadOnly() != want.GetRecursiveReadOnly() {
				t.Errorf("%s: status says %v, sent %v", when, g, want)
			}
		}
	}
	look("RUNNING")
	c.stop(t, time.Second)
	look("EXITED") // the kubelet finds the termination message by this mount
}

func mountSymlink(t *testing.T, n *node) {
	dir := t.TempDir()
	must(t, os.Mkdir(dir+"/real", 0o755), "mkdir")
	must(t, os.WriteFile(dir+"/real/file", []byte("real\n"), 0o644), "write")
	must(t, os.Symlink("real", dir+"/link"), "symlink")
	c := n.pod(t).start(t, forever(), mount(&runtimeapi.Mount{ContainerPath: "/data", HostPath: dir + "/link"}))
	testbed.Same(t, c.exec(t, "cat", "/data/file"), "real\n", "read")
}

// mountInsideRoot mounts at a path with "..", which must be resolved inside the container.
func mountInsideRoot(t *testing.T, n *node) {
	dir := t.TempDir()
	outside := filepath.Join(dir, "outside")
	must(t, os.Mkdir(outside, 0o755), "mkdir")
	p := n.pod(t)
	c := p.start(t, forever(), mount(&runtimeapi.Mount{ContainerPath: "/tmp/../tmp/inner", HostPath: outside}))
	c.exec(t, "touch", "/tmp/inner/seen")
	if readFile(outside+"/seen") != "" {
		t.Error("unexpected content")
	}
	if _, err := os.Stat(outside + "/seen"); err != nil {
		t.Errorf("the mount is not where its clean path says: %v", err)
	}
}

func mountOverDefault(t *testing.T, n *node) {
	dir := t.TempDir()
	must(t, os.WriteFile(dir+"/mine", nil, 0o644), "write")
	c := n.pod(t).start(t, forever(), mount(&runtimeapi.Mount{ContainerPath: "/dev/shm", HostPath: dir}))
	testbed.Same(t, c.line(t, "ls", "/dev/shm"), "mine", "/dev/shm has")
}

// mountNested sends the inner mount first.
func mountNested(t *testing.T, n *node) {
	outer, inner := t.TempDir(), t.TempDir()
	must(t, os.WriteFile(inner+"/file", []byte("inner\n"), 0o644), "write")
	must(t, os.Mkdir(outer+"/sub", 0o755), "mkdir")
	c := n.pod(t).start(t, forever(), mount(
		&runtimeapi.Mount{ContainerPath: "/data/sub", HostPath: inner},
		&runtimeapi.Mount{ContainerPath: "/data", HostPath: outer},
	))
	testbed.Same(t, c.exec(t, "cat", "/data/sub/file"), "inner\n", "read")
}

// mountOverProc tries to hide /proc or a part of it, which runtimes need to confine containers.
func mountOverProc(t *testing.T, n *node) {
	dir := t.TempDir()
	must(t, os.Symlink("/proc", dir+"/proc"), "symlink")
	must(t, os.Symlink("../proc/self/attr", dir+"/attr"), "symlink")
	p, odd := n.pod(t), n.of(t, n.Image.DefinedOdd) // its /kernel is a link to /proc
	for _, path := range []string{
		"/proc", "/proc/", "//proc", "/data/../proc/.", "/proc/sys", "/proc/self", "/proc/self/attr", "/proc/1/cmdline", "/proc/cpuinfo/x",
		"/proc/new\nline", "/kernel", "/kernel/sys",
	} {
		_, err := p.tryCreate(t, p.containerConfig(forever(), odd, mount(&runtimeapi.Mount{ContainerPath: path, HostPath: dir})))
		n.rejects(t, err, path, codes.InvalidArgument)
	}
	for _, path := range []string{"/data/proc", "/data/attr", "/data/proc/sys"} {
		_, err := p.tryCreate(t, p.containerConfig(forever(), mount(
			&runtimeapi.Mount{ContainerPath: path, HostPath: t.TempDir()},
			&runtimeapi.Mount{ContainerPath: "/data", HostPath: dir})))
		n.rejects(t, err, path+", by way of a link in a mount", codes.InvalidArgument)
	}
	_, err := p.tryCreate(t, p.containerConfig(forever(), mount(n.imageMount(n.imageID, "/proc", ""))))
	n.rejects(t, err, "an image", codes.InvalidArgument)
	if got := n.listContainers(t, &runtimeapi.ContainerFilter{PodSandboxId: p.ID}); len(got) != 0 {
		t.Errorf("%d refused containers are listed", len(got))
	}
	// A path that only begins like /proc is allowed.
	p.start(t, forever(), mount(&runtimeapi.Mount{ContainerPath: "/process/proc", HostPath: dir}))
}

func mountProcFile(t *testing.T, n *node) {
	file := filepath.Join(t.TempDir(), "uptime")
	must(t, os.WriteFile(file, []byte("1.00 2.00\n"), 0o644), "write")
	c := n.pod(t).start(t, forever(), mount(&runtimeapi.Mount{ContainerPath: "/proc/uptime", HostPath: file, Readonly: true}))
	testbed.Same(t, c.exec(t, "cat", "/proc/uptime"), "1.00 2.00\n", "/proc/uptime has")
}

// tmpfs mounts a tmpfs at a path until the check ends.
func tmpfs(t *testing.T, path string) {
	t.Helper()
	must(t, os.MkdirAll(path, 0o755), "mkdir")
	must(t, unix.Mount("none", path, "tmpfs", 0, "size=1m"), "mount tmpfs")
	t.Cleanup(func() {
		testbed.Checkf(t, unix.Unmount(path, unix.MNT_DETACH), "unmount %s", path)
	})
}

func mountRecursiveReadonly(t *testing.T, n *node) {
	st, err := n.Runtime.Status(call(t), &runtimeapi.StatusRequest{})
	must(t, err, "Status")
	announced := false
	for _, h := range st.GetRuntimeHandlers() {
		announced = announced || h.GetName() == n.Handler && h.GetFeatures().GetRecursiveReadOnlyMounts()
	}
	dir := t.TempDir()
	tmpfs(t, dir+"/sub")
	p := n.pod(t)
	cfg := p.containerConfig(forever(), mount(&runtimeapi.Mount{ContainerPath: "/data", HostPath: dir, Readonly: true, RecursiveReadOnly: true}))
	c, err := p.tryCreate(t, cfg)
	if err == nil {
		err = c.tryStart(t)
	}
	if !announced {
		mustFail(t, err, "a recursive read-only mount for a handler that does not announce it")
		return
	}
	must(t, err, "a recursive read-only mount")
	if r, err := c.execSync(t, execBound, "touch", "/data/sub/x"); err != nil || r.GetExitCode() == 0 {
		t.Errorf("the mount below is writable: %v, %v", r, err)
	}
	if !c.status(t).GetMounts()[0].GetRecursiveReadOnly() {
		t.Error("status does not echo recursive_read_only")
	}
}

func mountOptions(t *testing.T, n *node) {
	if f, _ := n.features(t); !f.GetMountOptions() {
		t.Error("Status does not announce mount_options")
	}
	dir := t.TempDir()
	must(t, os.WriteFile(dir+"/program", []byte("#!/bin/sh\necho ran\n"), 0o755), "write")
	p := n.pod(t)
	c := p.start(t, forever(), mount(
		&runtimeapi.Mount{ContainerPath: "/plain", HostPath: dir},
		&runtimeapi.Mount{ContainerPath: "/strict", HostPath: dir, MountOptions: []string{"noexec", "nodev", "nosuid"}},
		&runtimeapi.Mount{ContainerPath: "/readonly", HostPath: dir, Readonly: true, MountOptions: []string{"noexec"}}))
	testbed.Same(t, c.line(t, "/plain/program"), "ran", "a program of a plain mount says")
	for _, at := range []string{"/strict", "/readonly"} {
		if r, err := c.execSync(t, execBound, at+"/program"); err == nil && r.GetExitCode() == 0 {
			t.Errorf("a program runs from %s: %v", at, r)
		}
	}
	c.exec(t, "touch", "/strict/x")
	if r, err := c.execSync(t, execBound, "touch", "/readonly/x"); err != nil || r.GetExitCode() == 0 {
		t.Errorf("a read-only mount is writable: %v, %v", r, err)
	}
	for _, l := range strings.Split(c.exec(t, "cat", "/proc/self/mounts"), "\n") {
		if f := strings.Fields(l); len(f) > 3 && f[1] == "/strict" {
			for _, want := range []string{"noexec", "nodev", "nosuid"} {
				if _, lacks := n.Lacks[HostProcesses]; !lacks && !strings.Contains(f[3], want) {
					t.Errorf("/strict is mounted with %s, want %s", f[3], want)
				}
			}
		}
	}
	if got := c.status(t).GetMounts()[1].GetMountOptions(); len(got) != 3 {
		t.Errorf("status says options %v", got)
	}
	for _, bad := range [][]string{{"exec"}, {"noexec", "remount"}, {"size=1"}, {""}} {
		p.refusedMount(t, "mount options "+strings.Join(bad, ","), &runtimeapi.Mount{ContainerPath: "/m", HostPath: dir, MountOptions: bad}, codes.InvalidArgument)
	}
}

func (p *pod) refusedMount(t *testing.T, what string, m *runtimeapi.Mount, want ...codes.Code) {
	t.Helper()
	_, err := p.tryCreate(t, p.containerConfig(forever(), mount(m)))
	p.rejects(t, err, what, want...)
}

func propagationRefused(t *testing.T, n *node) {
	dir := filepath.Join(t.TempDir(), "private")
	tmpfs(t, dir)
	must(t, unix.Mount("", dir, "", unix.MS_PRIVATE, ""), "make private")
	p := n.pod(t)
	for _, mode := range []runtimeapi.MountPropagation{
		runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER, runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL,
	} {
		p.refusedMount(t, mode.String(), &runtimeapi.Mount{ContainerPath: "/m", HostPath: dir, Propagation: mode}, codes.FailedPrecondition)
	}
	shared := sharedDir(t)
	must(t, unix.Mount("", shared, "", unix.MS_SLAVE, ""), "make slave") // without peers it becomes private
	p.refusedMount(t, "a mount whose master is gone", &runtimeapi.Mount{ContainerPath: "/m", HostPath: shared,
		Propagation: runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL}, codes.FailedPrecondition)
}

// sharedDir returns a directory whose mounts propagate.
func sharedDir(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "shared")
	tmpfs(t, dir)
	must(t, unix.Mount("", dir, "", unix.MS_SHARED, ""), "make shared")
	return dir
}

func propagated(mode runtimeapi.MountPropagation, dir string) containerOption {
	return mount(&runtimeapi.Mount{ContainerPath: "/data", HostPath: dir, Propagation: mode})
}

func propagationSlave(t *testing.T, n *node) {
	dir := sharedDir(t)
	c := n.pod(t).start(t, forever(), propagated(runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER, dir))
	tmpfs(t, dir+"/later")
	must(t, os.WriteFile(dir+"/later/file", []byte("later\n"), 0o644), "write")
	testbed.Same(t, c.exec(t, "cat", "/data/later/file"), "later\n", "read")
}

func propagationPrivate(t *testing.T, n *node) {
	dir := sharedDir(t)
	c := n.pod(t).start(t, forever(), propagated(runtimeapi.MountPropagation_PROPAGATION_PRIVATE, dir))
	tmpfs(t, dir+"/later")
	must(t, os.WriteFile(dir+"/later/file", nil, 0o644), "write")
	testbed.Same(t, c.exec(t, "ls", "/data/later"), "", "a mount of the host arrived in a private one")
}

func propagationShared(t *testing.T, n *node) {
	dir := sharedDir(t)
	p := n.pod(t, func(c *runtimeapi.PodSandboxConfig) { c.Linux.SecurityContext.Privileged = true })
	c := p.start(t, forever(), propagated(runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL, dir),
		security(func(s *runtimeapi.LinuxContainerSecurityContext) { s.Privileged = true }))
	c.exec(t, "sh", "-c", "mkdir /data/back && mount -t tmpfs none /data/back && echo back > /data/back/file")
	testbed.Same(t, readFile(dir+"/back/file"), "back\n", "the host reads")
	c.exec(t, "umount", "/data/back")
}

func hostDevice(t *testing.T, n *node) {
	c := n.pod(t).start(t, forever(), func(c *runtimeapi.ContainerConfig) {
		c.Devices = []*runtimeapi.Device{{HostPath: "/dev/zero", ContainerPath: "/dev/mine", Permissions: "rwm"}}
	})
	testbed.Same(t, c.line(t, "sh", "-c", "head -c 4 /dev/mine | od -An -tx1 | tr -d ' '"), "00000000", "from the device: read")
}

// devicePermissions uses a device that no container has by default, and that can be opened without
// an effect.
func devicePermissions(t *testing.T, n *node) {
	const device, read, write = "/dev/fuse", ": < /dev/mine", ": > /dev/mine"
	p := n.pod(t)
	for permissions, want := range map[string]map[string]bool{
		"r": {read: true, write: false}, "w": {read: false, write: true}, "rw": {read: true, write: true},
	} {
		c := p.start(t, forever(), func(c *runtimeapi.ContainerConfig) {
			c.Devices = []*runtimeapi.Device{{HostPath: device, ContainerPath: "/dev/mine", Permissions: permissions}}
		})
		for command, works := range want {
			if r, err := c.execSync(t, execBound, "sh", "-c", command); err != nil || (r.GetExitCode() == 0) != works {
				t.Errorf("with %s, %q: %v, %v", permissions, command, r, err)
			}
		}
	}
}

func usualFileSystems(t *testing.T, n *node) {
	c := n.pod(t).start(t, forever())
	points := map[string]bool{}
	for _, l := range strings.Split(c.exec(t, "cat", "/proc/self/mounts"), "\n") {
		if f := strings.Fields(l); len(f) > 1 {
			points[f[1]] = true
		}
	}
	for _, want := range []string{"/", "/proc", "/dev", "/dev/shm", "/sys"} {
		if !points[want] {
			t.Errorf("%s is not mounted", want)
		}
	}
	c.exec(t, "sh", "-c", "echo x > /dev/null; test -c /dev/tty; test -c /dev/urandom; test -e /dev/ptmx; test -L /dev/fd")
	if r, err := c.execSync(t, execBound, "sh", "-c", "echo 1 > /sys/kernel/profiling"); err != nil || r.GetExitCode() == 0 {
		t.Errorf("/sys is writable: %v, %v", r, err)
	}
}

func mqueue(t *testing.T, n *node) {
	testbed.Contains(t, n.pod(t).output(t, sh("grep ' /dev/mqueue ' /proc/self/mounts")), "mqueue", "/dev/mqueue")
}

func rootsDiffer(t *testing.T, n *node) {
	p := n.pod(t)
	a, b := p.start(t, forever()), p.start(t, forever())
	a.exec(t, "touch", "/only-in-a")
	if r, err := b.execSync(t, execBound, "ls", "/only-in-a"); err != nil || r.GetExitCode() == 0 {
		t.Errorf("the other container sees the file: %v, %v", r, err)
	}
}

// cdiDirectory has the CDI specs that vendors generate while the node runs. Every daemon reads it.
const cdiDirectory = "/var/run/cdi"

// cdiDevice writes a CDI spec and checks that a container gets every part of the device.
func cdiDevice(t *testing.T, n *node) {
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "library"), []byte("the vendor's\n"), 0o644), "what the vendor mounts")
	if os.Mkdir(cdiDirectory, 0o755) == nil {
		t.Cleanup(func() { _ = os.Remove(cdiDirectory) })
	}
	vendor := fmt.Sprintf("conformance-%d-%d.test", os.Getpid(), serial.Add(1))
	file := filepath.Join(cdiDirectory, vendor+".json")
	ran := filepath.Join(dir, "hook")
	must(t, os.WriteFile(file, fmt.Appendf(nil, `{"cdiVersion": "0.6.0", "kind": "%s/card", "devices": [{"name": "one", "containerEdits": {
		"env": ["CARD=one"],
		"deviceNodes": [{"path": "/dev/card0", "hostPath": "/dev/zero"}],
		"mounts": [{"hostPath": %q, "containerPath": "/vendor", "options": ["ro", "bind"]}],
		"hooks": [{"hookName": "createRuntime", "path": "/bin/sh", "args": ["sh", "-c", "cat > %s"]}]
	}}]}`, vendor, dir, ran), 0o644), "CDI spec")
	t.Cleanup(func() { must(t, os.Remove(file), "remove the CDI spec") })
	device := func(c *runtimeapi.ContainerConfig) {
		c.CDIDevices = []*runtimeapi.CDIDevice{{Name: vendor + "/card=one"}}
	}
	p := n.pod(t)
	var c *container
	n.eventually(t, "the daemon knows the new device", func() bool {
		made, err := p.tryCreate(t, p.containerConfig(forever(), device))
		c = made
		return err == nil
	})
	must(t, c.tryStart(t), "StartContainer")
	testbed.Same(t, c.line(t, "sh", "-c", "echo $CARD"), "one", "the device's variable is")
	testbed.Same(t, c.line(t, "sh", "-c", "head -c 3 /dev/card0 | od -An -tx1"), " 00 00 00", "the device's node has")
	testbed.Same(t, c.line(t, "cat", "/vendor/library"), "the vendor's", "the device's mount has")
	if readFile(ran) == "" {
		t.Error("the device's hook did not run")
	}
}
