package conformance

import (
	"os"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

var namespaceChecks = []check{
	{name: "pid CONTAINER: each container has a process 1 of its own", needs: []Ability{SeparatePID}, run: pidContainer},
	{name: "pid POD: containers see each other's processes", run: pidPod},
	{name: "pid POD: the program is not process 1 and orphans are reaped", run: pidPodReaper},
	{name: "pid NODE: containers see the host's processes", needs: []Ability{HostPID}, run: pidNode},
	{name: "pid TARGET: an ephemeral container sees its target", needs: []Ability{TargetPID}, run: pidTarget},
	{name: "pid TARGET: a target that does not run is refused", run: pidTargetMissing},
	{name: "pid TARGET: a pod without a target is as with CONTAINER", run: pidTargetOfPod},
	{name: "ipc POD: containers share /dev/shm", run: ipcPod},
	{name: "ipc NODE: containers see the host's /dev/shm", needs: []Ability{HostIPC}, run: ipcNode},
	{name: "namespaces that the runtime cannot give are refused", berth: true, run: hostRefused},
	{name: "host options come back in status", needs: []Ability{HostIPC, HostPID}, run: namespaceEcho},
	{name: "each pod has namespaces of its own", needs: []Ability{HostProcesses}, run: podNamespacesDiffer},
	{name: "the sandbox is READY until its process dies", run: sandboxStaysReady},
}

func pidMode(m runtimeapi.NamespaceMode) func(*runtimeapi.PodSandboxConfig) {
	return func(c *runtimeapi.PodSandboxConfig) { c.Linux.SecurityContext.NamespaceOptions.Pid = m }
}

func pidContainer(t *testing.T, n *node) {
	p := n.pod(t)
	a, b := p.start(t, sh("exec sleep 7777")), p.start(t, sh("exec sleep 8888"))
	a.runsAs(t, "sleep 7777")
	b.runsAs(t, "sleep 8888")
	if got := b.exec(t, "ps"); strings.Contains(got, "sleep 7777") {
		t.Errorf("one container sees the other's processes:\n%s", got)
	}
}

func cmdline(t *testing.T, c *container, pid string) string {
	t.Helper()
	return strings.TrimSpace(strings.ReplaceAll(c.exec(t, "cat", "/proc/"+pid+"/cmdline"), "\x00", " "))
}

// runsAs waits until process 1 in the container is want: a shell takes a moment to exec its
// command.
func (c *container) runsAs(t *testing.T, want string) {
	t.Helper()
	c.eventually(t, "process 1 is "+want, func() bool { return cmdline(t, c, "1") == want })
}

func pidPod(t *testing.T, n *node) {
	p := n.pod(t, pidMode(runtimeapi.NamespaceMode_POD))
	p.start(t, sh("exec sleep 7777"))
	b := p.start(t, forever())
	testbed.Contains(t, b.exec(t, "ps"), "sleep 7777", "the other container's process is not seen")
}

func pidPodReaper(t *testing.T, n *node) {
	p := n.pod(t, pidMode(runtimeapi.NamespaceMode_POD))
	c := p.start(t, sh("exec sleep 7777"))
	if got := cmdline(t, c, "1"); got == "sleep 7777" {
		t.Error("the program is process 1 of a shared pid namespace")
	}
	c.exec(t, "sh", "-c", "(sh -c 'sleep 0.1; exit 0' &) ; exit 0")
	n.eventually(t, "the orphan is reaped", func() bool {
		return !strings.Contains(c.exec(t, "ps", "-o", "stat"), "Z")
	})
}

func pidNode(t *testing.T, n *node) {
	p := n.pod(t, pidMode(runtimeapi.NamespaceMode_NODE))
	c := p.start(t, forever())
	host, err := os.Readlink("/proc/self/ns/pid")
	must(t, err, "own pid namespace")
	testbed.Same(t, c.line(t, "readlink", "/proc/self/ns/pid"), host, "pid namespace is")
}

func pidTarget(t *testing.T, n *node) {
	p := n.pod(t)
	target := p.start(t, sh("exec sleep 7777"))
	debug := p.start(t, forever(), targetPID(target.ID))
	debug.runsAs(t, "sleep 7777")
}

func targetPID(id string) containerOption {
	return security(func(s *runtimeapi.LinuxContainerSecurityContext) {
		s.NamespaceOptions = &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_TARGET, TargetId: id}
	})
}

func pidTargetMissing(t *testing.T, n *node) {
	p := n.pod(t)
	ended := p.start(t, sh("exit 0"))
	ended.waitExit(t)
	elsewhere := n.pod(t).start(t, forever())
	for what, id := range map[string]string{
		"a missing target": strings.Repeat("ab", 32), "an ended target": ended.ID, "a target in another pod": elsewhere.ID,
	} {
		if _, err := p.tryCreate(t, p.containerConfig(forever(), targetPID(id))); err == nil {
			t.Errorf("%s was accepted", what)
		}
	}
}

func ipcPod(t *testing.T, n *node) {
	p := n.pod(t)
	a, b := p.start(t, forever()), p.start(t, forever())
	a.exec(t, "sh", "-c", "echo shared > /dev/shm/note")
	testbed.Same(t, b.line(t, "cat", "/dev/shm/note"), "shared", "in the other container: /dev/shm/note is")
	if r, err := n.pod(t).start(t, forever()).execSync(t, 0, "cat", "/dev/shm/note"); err == nil && r.GetExitCode() == 0 {
		t.Error("another pod sees the file")
	}
}

func ipcNode(t *testing.T, n *node) {
	p := n.pod(t, func(c *runtimeapi.PodSandboxConfig) {
		c.Linux.SecurityContext.NamespaceOptions.Ipc = runtimeapi.NamespaceMode_NODE
	})
	f, err := os.CreateTemp("/dev/shm", "conformance")
	must(t, err, "file in the host's /dev/shm")
	defer os.Remove(f.Name())
	f.Close()
	c := p.start(t, forever())
	testbed.Same(t, c.line(t, "ls", f.Name()), f.Name(), "the host's %s is not seen", f.Name())
	host, err := os.Readlink("/proc/self/ns/ipc")
	must(t, err, "own ipc namespace")
	testbed.Same(t, c.line(t, "readlink", "/proc/self/ns/ipc"), host, "ipc namespace is")
}

// pidTargetOfPod sends TARGET for the pod, which has no target: only containers have one.
func pidTargetOfPod(t *testing.T, n *node) {
	p := n.pod(t, pidMode(runtimeapi.NamespaceMode_TARGET))
	own := security(func(s *runtimeapi.LinuxContainerSecurityContext) {
		s.NamespaceOptions = &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER}
	})
	if _, shared := n.Lacks[SeparatePID]; shared {
		p.start(t, forever(), own)
		return
	}
	testbed.Same(t, strings.TrimSpace(p.output(t, sh("echo $$"), own)), "1", "the container's shell is process")
}

// hostRefused checks that a pod is refused if its runtime cannot give it a host namespace.
func hostRefused(t *testing.T, n *node) {
	for ability, ask := range map[Ability]func(*runtimeapi.NamespaceOption){
		HostNetwork: func(o *runtimeapi.NamespaceOption) { o.Network = runtimeapi.NamespaceMode_NODE },
		HostPID:     func(o *runtimeapi.NamespaceOption) { o.Pid = runtimeapi.NamespaceMode_NODE },
		HostIPC:     func(o *runtimeapi.NamespaceOption) { o.Ipc = runtimeapi.NamespaceMode_NODE },
	} {
		if _, lacks := n.Lacks[ability]; !lacks {
			continue
		}
		c := n.podConfig(t, func(c *runtimeapi.PodSandboxConfig) {
			ask(c.Linux.SecurityContext.NamespaceOptions)
			if ability == HostNetwork {
				c.Hostname = "" // a pod on the host's network has the node's hostname
			}
		})
		_, err := n.tryPod(t, c)
		mustFail(t, err, string(ability), codes.FailedPrecondition)
	}
	if _, lacks := n.Lacks[TargetPID]; lacks {
		p := n.pod(t)
		target := p.start(t, forever())
		_, err := p.tryCreate(t, p.containerConfig(forever(), targetPID(target.ID)))
		mustFail(t, err, string(TargetPID), codes.FailedPrecondition)
	}
}

func namespaceEcho(t *testing.T, n *node) {
	p := n.pod(t, func(c *runtimeapi.PodSandboxConfig) {
		o := c.Linux.SecurityContext.NamespaceOptions
		o.Ipc, o.Pid = runtimeapi.NamespaceMode_NODE, runtimeapi.NamespaceMode_NODE
	})
	o := p.status(t).GetLinux().GetNamespaces().GetOptions()
	if o.GetIpc() != runtimeapi.NamespaceMode_NODE || o.GetPid() != runtimeapi.NamespaceMode_NODE {
		t.Errorf("namespace options are %v", o)
	}
}

func podNamespacesDiffer(t *testing.T, n *node) {
	a, b := n.pod(t).start(t, forever()), n.pod(t).start(t, forever())
	for _, ns := range []string{"net", "ipc", "uts", "mnt", "pid"} {
		host, err := os.Readlink("/proc/self/ns/" + ns)
		must(t, err, "own namespace")
		first, second := a.line(t, "readlink", "/proc/1/ns/"+ns), b.line(t, "readlink", "/proc/1/ns/"+ns)
		if first == second || first == host || second == host {
			t.Errorf("%s: host %s, pods %s and %s", ns, host, first, second)
		}
	}
}

// sandboxStaysReady checks that the sandbox stays READY after its containers exit.
func sandboxStaysReady(t *testing.T, n *node) {
	p := n.pod(t)
	p.start(t, sh("exit 0")).waitExit(t)
	testbed.Same(t, p.status(t).GetState(), runtimeapi.PodSandboxState_SANDBOX_READY, "after its only container ended: the sandbox is")
	p.output(t, sh("true"))
}
