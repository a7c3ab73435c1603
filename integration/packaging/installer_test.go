package packaging

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/kubelet"
	"github.com/berth-cri/berth/integration/testbed"
)

// node is a machine with another CRI daemon and a kubelet that uses it. The installer runs as in a
// pod: outside of the node's root directory, but in its PID namespace.
type node struct {
	*system
	payload, program string
}

// beside is the CRI daemon beside which berth is installed.
type beside struct {
	name, socket, unit string
	// programs are installed where the unit expects them; files are the daemon's configuration.
	programs []string
	files    map[string]string
}

func containerdBeside(t *testing.T) beside {
	t.Helper()
	return beside{
		name: "containerd", socket: "/run/containerd/containerd.sock", unit: containerdUnit,
		programs: []string{testbed.Part(t, testbed.Containerd), testbed.Part(t, testbed.RuncShim), testbed.Part(t, testbed.Runc)},
		files:    map[string]string{"/etc/containerd/config.toml": "version = 3\n"},
	}
}

func crioBeside(t *testing.T) beside {
	t.Helper()
	return beside{
		name: "crio", socket: "/run/crio/crio.sock", unit: crioUnit,
		programs: []string{testbed.Part(t, testbed.CRIO), testbed.Part(t, testbed.Pinns), testbed.Part(t, testbed.Conmon), testbed.Part(t, testbed.Runc)},
		files: map[string]string{
			"/etc/containers/policy.json": `{"default":[{"type":"insecureAcceptAnything"}]}`,
			"/etc/crio/crio.conf": `[crio.runtime]
default_runtime = "runc"
[crio.runtime.runtimes.runc]
runtime_path = "/usr/local/bin/runc"
runtime_root = "/run/runc"
[crio.nri]
enable_nri = false
`,
		},
	}
}

const (
	kubeletUnit = `[Service]
StandardOutput=append:/var/log/services
StandardError=append:/var/log/services
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
ExecStart=/usr/local/bin/kubelet --config=/var/lib/kubelet/config.yaml $KUBELET_KUBEADM_ARGS
Restart=always
RestartSec=1
`
	containerdUnit = `[Service]
StandardOutput=append:/var/log/services
StandardError=append:/var/log/services
Type=notify
ExecStart=/usr/local/bin/containerd
Environment=PATH=/usr/local/bin:/usr/bin:/usr/sbin
KillMode=process
Delegate=yes
`
	// The unit that CRI-O ships, with another log.
	crioUnit = `[Service]
StandardOutput=append:/var/log/services
StandardError=append:/var/log/services
Type=notify
ExecStart=/usr/local/bin/crio
Environment=PATH=/usr/local/bin:/usr/bin:/usr/sbin
OOMScoreAdjust=0
TimeoutStartSec=0
Restart=on-failure
WatchdogSec=60s
`
)

func newNode(t *testing.T, other beside) *node {
	t.Helper()
	dir := t.TempDir()
	n := &node{payload: filepath.Join(dir, "payload"), program: filepath.Join(dir, "berth-installer")}
	for target, args := range map[string][]string{
		n.payload + "/bin/":           {"./cmd/berth", "./cmd/berth-shim", "./cmd/berth-pause"},
		n.program:                     {"-tags", "grpcnotrace,berth_failpoints", "./contrib/cluster/cmd/berth-installer"},
		filepath.Join(dir, "kubelet"): {"./integration/packaging/kubelet"},
	} {
		c := exec.CommandContext(t.Context(), "go", append([]string{"build", "-trimpath", "-buildvcs=false", "-o", target}, args...)...)
		c.Dir, c.Env = "../..", append(os.Environ(), "CGO_ENABLED=0")
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("go build: %v\n%s", err, out)
		}
	}
	unit, err := os.ReadFile("../../contrib/systemd/berth.service")
	testbed.Must(t, err)
	testbed.Must(t, os.WriteFile(filepath.Join(n.payload, "berth.service"), unit, 0o644))
	n.system = bootSystem(t)
	for _, from := range append(other.programs, filepath.Join(dir, "kubelet")) {
		text, err := os.ReadFile(from)
		testbed.Must(t, err)
		n.file("/usr/local/bin/"+filepath.Base(from), string(text))
		n.run("chmod", "0755", "/usr/local/bin/"+filepath.Base(from))
	}
	for path, text := range other.files {
		n.file(path, text)
	}
	n.file("/etc/systemd/system/"+other.name+".service", other.unit)
	n.file("/etc/systemd/system/kubelet.service", kubeletUnit)
	n.file("/var/lib/kubelet/config.yaml", fmt.Sprintf("# ours\nkind: KubeletConfiguration\ncontainerRuntimeEndpoint: \"unix://%s\" # theirs\n", other.socket))
	n.file("/var/lib/kubelet/kubeadm-flags.env", fmt.Sprintf("KUBELET_KUBEADM_ARGS=\"--container-runtime-endpoint=unix:///var%s\"\n", other.socket))
	n.file("/etc/cni/net.d/10-net.conflist", `{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"ptp","ipam":{"type":"host-local","subnet":"10.88.7.0/24"}}]}`)
	// Only network sysctls are writable, because each pod has its own copy of them.
	n.run("mount", "--bind", "/proc/sys/net", "/proc/sys/net")
	n.run("mount", "-o", "remount,bind,rw", "/proc/sys/net")
	n.run("ip", "link", "set", "lo", "up")
	n.run("systemctl", "daemon-reload")
	t.Cleanup(func() {
		if t.Failed() {
			out, _ := n.within(context.Background(), "sh", "-c", "systemctl --no-pager status $1 kubelet berth; tail -n 50 /var/log/services; cat /var/lib/berth-installer/state.json /etc/systemd/system/kubelet.service.d/*", "sh", other.name).CombinedOutput()
			t.Logf("%s", out)
		}
	})
	n.run("systemctl", "start", other.name, "kubelet")
	n.uses(t, other.says())
	return n
}

// says is the runtime name that the daemon reports.
func (b beside) says() string {
	if b.name == "crio" {
		return "cri-o"
	}
	return b.name
}

// installer runs the installer, which kills itself at a failpoint if place is not "".
func (n *node) installer(place string, args ...string) (string, error) {
	inside := append([]string{
		"--mount", "--net", "--pid", fmt.Sprintf("--target=%d", n.init.Process.Pid), n.program, "--root", n.root, "--payload", n.payload,
	}, args...)
	c := exec.CommandContext(n.t.Context(), "nsenter", inside...)
	c.Env = append(os.Environ(), "BERTH_FAILPOINT="+place)
	out, err := c.CombinedOutput()
	return string(out), err
}

// killed runs the installer, which must be killed at a failpoint.
func (n *node) killed(t *testing.T, place string, args ...string) {
	t.Helper()
	out, err := n.installer("installer."+place, args...)
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() >= 0 {
		t.Fatalf("the installer was not killed at %s: %v\n%s", place, err, out)
	}
}

// uses waits until the kubelet reports that it uses a runtime.
func (n *node) uses(t *testing.T, runtime string) {
	t.Helper()
	testbed.Eventually(t, soon, func() error {
		out, err := n.command("busybox", "wget", "-q", "-O", "-", "http://127.0.0.1:10248/healthz").Output()
		if got := strings.TrimSpace(string(out)); got != runtime || err != nil {
			return fmt.Errorf("the kubelet uses %q, want %s: %w", got, runtime, err)
		}
		return nil
	})
}

// tree lists all files that an installation may change, most of them with their digests.
func (n *node) tree() string {
	return n.run("sh", "-c", `find /etc /opt /var/lib/kubelet /var/lib/berth* /run/berth -not -path '/etc/mtab' -printf '%p %y %m %U %G %l\n' 2>/dev/null | sort
find /etc /opt /var/lib/kubelet -type f -exec sha256sum {} + | sort -k 2`)
}

// unchanged fails if the tree has changed.
func (n *node) unchanged(t *testing.T, before string) {
	t.Helper()
	if after := n.tree(); after != before {
		t.Errorf("the node was\n%s\nbut is now\n%s", before, after)
	}
}

// handlers fails unless "berth handlers" prints these texts.
func (n *node) handlers(t *testing.T, wants ...string) {
	t.Helper()
	got := n.run("/opt/berth/current/bin/berth", "handlers")
	for _, want := range wants {
		if !strings.Contains(got, want) {
			t.Errorf("the handlers are\n%s\nwant %s", got, want)
		}
	}
}

// Failpoints of an installation and of its removal, in the order in which they are reached.
var (
	doing = []string{
		"programs.half", "programs.done", "config.half", "config.done", "unit.done", "start.linked", "start.run",
		"kubelet.noted", "kubelet.written", "kubelet.restarted", "runtime.copied", "runtime.served",
	}
	undoing = []string{
		"kubelet.restored", "kubelet.back", "start.stopped", "start.removing", "config.half", "config.done", "files.removed", "programs.removed",
	}
)

// installing is the command line of an installation that adds runtimes and moves the kubelet.
func installing(t *testing.T, runtimes ...string) []string {
	t.Helper()
	values := filepath.Join(t.TempDir(), "values.json")
	testbed.Must(t, os.WriteFile(values, []byte(`{"state": "installed", "kubelet": true, "runtimes": [`+strings.Join(runtimes, ", ")+`]}`), 0o644))
	return []string{"install", "--values", values}
}

func crun(t *testing.T) string {
	t.Helper()
	return fmt.Sprintf(`{"handler": "crun", "kind": "crun", "version": "1.0", "source": %q}`, testbed.Part(t, testbed.Crun))
}

// TestInstaller moves a kubelet from a real containerd to berth and back, with a real systemd, as
// the pod of the chart does. The installer is killed at each failpoint and run again. Installed,
// the node has one more runtime; after the removal, it is as before.
func TestInstaller(t *testing.T) {
	testbed.NeedRoot(t)
	n := newNode(t, containerdBeside(t))
	before := n.tree()
	install := installing(t, crun(t))
	for _, place := range doing {
		n.killed(t, place, install...)
	}
	if out, err := n.installer("", install...); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	n.uses(t, "berth")
	n.handlers(t, "containerd (default)  ready  cri", "crun                  ready  oci", "runc                  ready  cri")
	// Another run does not restart berth.
	pid := n.unit("MainPID")
	if out, err := n.installer("", install...); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if now := n.unit("MainPID"); now != pid {
		t.Error("berth was restarted")
	}
	n.bringsRunsc(t, install)

	for _, place := range undoing {
		n.killed(t, place, "uninstall")
	}
	if out, err := n.installer("", "uninstall"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	n.uses(t, "containerd")
	n.unchanged(t, before)

	t.Run("cluster", func(t *testing.T) { n.inACluster(t, before) })

	// If the doctor finds a failure, the installer changes nothing.
	n.file("/etc/cni/net.d/10-net.conflist", `{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"nowhere"}]}`)
	before = n.tree()
	if out, err := n.installer("", "install"); err == nil || !strings.Contains(out, "needs the plugin nowhere") {
		t.Errorf("install with a missing CNI plugin: %v\n%s", err, out)
	}
	n.uses(t, "containerd")
	n.unchanged(t, before)
}

// bringsRunsc adds gVisor to a serving node, from a directory like the mounted image of the chart,
// and runs a pod with it: only a sandbox, because runsc creates a cgroup for each container, and
// this machine may lack cgroup controllers.
func (n *node) bringsRunsc(t *testing.T, install []string) {
	t.Helper()
	pid := n.unit("MainPID")
	// The machine may lack cgroup controllers, and is a chroot, in which the kernel refuses new user
	// namespaces. These flags of runsc do without both.
	brings := installing(t, crun(t), fmt.Sprintf(
		`{"handler": "gvisor", "kind": "runsc", "version": "1.10", "source": %q, "options": "options.global_flags = [\"--ignore-cgroups\", \"--TESTONLY-unsafe-nonroot\"]"}`, filepath.Dir(testbed.Part(t, testbed.Runsc))))
	n.killed(t, "runtime.half", brings...)
	if out, err := n.installer("", brings...); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	n.run("test", "-x", "/opt/berth/runtimes/gvisor/1.10/runsc")
	n.run("test", "-x", "/opt/berth/runtimes/gvisor/1.10/gvisor-bin/gvisor_sentry")
	if now := n.unit("MainPID"); now != pid {
		t.Error("berth was restarted for a runtime")
	}
	client := testbed.Dial(t, fmt.Sprintf("/proc/%d/root/run/berth/berth.sock", n.init.Process.Pid), "", "")
	pod := client.RunSandbox(t, testbed.PodSpec{
		Handler: "gvisor", Sandbox: func(c *runtimeapi.PodSandboxConfig) { c.LogDirectory = "" },
	})
	// An installation without gVisor removes it, but only after its last pod.
	if out, err := n.installer("", install...); err == nil || !strings.Contains(out, "1 pod (testbed/"+pod.Config.GetMetadata().GetName()+")") {
		t.Errorf("install without a runtime that has a pod: %v\n%s", err, out)
	}
	if got := pod.Status(t); got.GetState() != runtimeapi.PodSandboxState_SANDBOX_READY || got.GetRuntimeHandler() != "gvisor" {
		t.Errorf("the pod of gVisor is %v, want ready", got)
	}
	pod.Stop(t)
	pod.Remove(t)
	if out, err := n.installer("", install...); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	n.run("test", "!", "-e", "/opt/berth/runtimes/gvisor")
}

// TestInstallerBesideCRIO moves a kubelet from a real CRI-O to berth and back.
func TestInstallerBesideCRIO(t *testing.T) {
	testbed.NeedRoot(t)
	n := newNode(t, crioBeside(t))
	before := n.tree()
	install := installing(t, crun(t))
	n.killed(t, "kubelet.restarted", install...)
	if out, err := n.installer("", install...); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	n.uses(t, "berth")
	n.handlers(t, "crio (default)  ready  cri", "crun            ready  oci", "runc            ready  cri")
	n.killed(t, "kubelet.restored", "uninstall")
	if out, err := n.installer("", "uninstall"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	n.uses(t, "cri-o")
	n.unchanged(t, before)
}

// inACluster runs the installer as the pod of the manifests does, with the rights that they give,
// against a real API server. The kubelet is not moved, because the server has no Node object for
// it.
func (n *node) inACluster(t *testing.T, before string) {
	const manifests, namespace = "../../contrib/kubernetes/berth-installer.yaml", "berth-system"
	server := kubelet.StartServer(t)
	server.Kubectl(t, "", "apply", "--filename="+manifests)
	token := server.Kubectl(t, "", "create", "token", "berth-installer", "--namespace="+namespace)
	kubeconfig := n.account(t, server.Kubectl(t, "", "config", "view", "--raw", "--flatten"), strings.TrimSpace(token))

	n.stays(t, kubeconfig, "installed", "Node is up to date")
	n.is("active", "systemctl", "is-active", "berth")
	n.stays(t, kubeconfig, "removed", "Node is up to date")
	n.unchanged(t, before)
}

// account returns a kubeconfig with the token of a service account.
func (n *node) account(t *testing.T, admin, token string) string {
	t.Helper()
	config, err := clientcmd.Load([]byte(admin))
	testbed.Must(t, err)
	for _, user := range config.AuthInfos {
		*user = api.AuthInfo{Token: token}
	}
	file := filepath.Join(t.TempDir(), "kubeconfig")
	testbed.Must(t, clientcmd.WriteToFile(*config, file))
	return file
}

// stays runs the installer until it has logged a text, and stops it as a kubelet does.
func (n *node) stays(t *testing.T, kubeconfig, state, says string) {
	t.Helper()
	dir := t.TempDir()
	values := filepath.Join(dir, "values.json")
	testbed.Must(t, os.WriteFile(values, []byte(`{"state": "`+state+`", "kubelet": false}`), 0o644))
	log, err := os.Create(filepath.Join(dir, "log"))
	testbed.Must(t, err)
	defer log.Close()
	ready := filepath.Join(dir, "ready")
	c := exec.CommandContext(t.Context(), "nsenter", "--mount", "--pid", fmt.Sprintf("--target=%d", n.init.Process.Pid), n.program,
		"--root", n.root, "--payload", n.payload, "--ready-file", ready, "run", "--kubeconfig", kubeconfig, "--values", values, "--node", "node")
	c.Stdout, c.Stderr = log, log
	testbed.Must(t, c.Start())
	text := func() string {
		text, err := os.ReadFile(log.Name())
		return fmt.Sprintf("%s%v", text, err)
	}
	testbed.Eventually(t, soon, func() error {
		if said := text(); !strings.Contains(said, says) {
			return fmt.Errorf("the log lacks %q:\n%s", says, said)
		}
		return nil
	})
	_, err = os.Stat(ready)
	if is := err == nil; is != (says == "Node is up to date") {
		t.Errorf("the installer is ready: %t, want %t", is, !is)
	}
	// On the machine, only its own processes exist.
	n.run("pkill", "-TERM", "-x", "berth-installer")
	if err := c.Wait(); err != nil {
		t.Errorf("the installer ended with %v:\n%s", err, text())
	}
}
