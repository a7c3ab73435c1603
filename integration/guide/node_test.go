package guide

import (
	"bufio"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// node is a machine as a page describes it. Its /etc, /usr, /opt, /run and /var/lib are its own, in
// a mount namespace that a sleeping process keeps. Everything else is the host's.
type node struct {
	t      *testing.T
	holder *exec.Cmd
	client *testbed.Client
	image  string
	cgroup string
	log    string // the paths of the daemons' logs begin with this
	logs   string // the directory of the pods' logs
	pods   map[string]*testbed.Pod
	// more has the directions of one page, besides those that follow has for all pages.
	more map[string]func(*testing.T)
	// environment is added to that of commands: KEY=value.
	environment []string
	// dir is the working directory of commands; empty is the root.
	dir string
}

// mounts creates the node's own directories, with berth and crun in them.
const mounts = `
mount --make-rprivate /
mount -t tmpfs layer "$1"
for top in etc usr opt; do
	mkdir "$1/$top" "$1/$top.work"
	mount -t overlay overlay -o "lowerdir=/$top,upperdir=$1/$top,workdir=$1/$top.work" "/$top"
done
mkdir "$1/run"
mount -t tmpfs run "$1/run"
# The lock of iptables stays the host's, like the network.
touch /run/xtables.lock "$1/run/xtables.lock"
mount --bind /run/xtables.lock "$1/run/xtables.lock"
mount --rbind "$1/run" /run
mount -t tmpfs lib /var/lib
mkdir -p /etc/berth/conf.d /usr/lib/berth/conf.d
cp "$BERTH/berth" "$BERTH/berth-shim" "$BERTH/berth-pause" /usr/bin/
cp "$CRUN" /usr/bin/crun.new && mv /usr/bin/crun.new /usr/bin/crun
printf %s "$VENDOR" >/usr/lib/berth/conf.d/10-node.toml
`

// operated adds the programs and the configuration that docs/operations.md begins with.
const operated = `
mkdir /opt/runc-1.5.2
cp -r "$RUNSC" "$(dirname "$RUNSC")/gvisor-bin" /usr/local/bin/
cp "$RUNC_OLD" /usr/local/sbin/runc
cp "$RUNC" /opt/runc-1.5.2/runc
printf %s "$CONFIG" >/etc/berth/config.toml
`

// hold keeps the mount namespace.
const hold = `
echo ready
exec sleep infinity
`

// configuration is the configuration file at the beginning of docs/operations.md.
const configuration = `version = 1
default_runtime = "crun"

[runtimes.crun]
runtime_path = "/usr/bin/crun"
`

// newNode is the node at the beginning of docs/operations.md.
func newNode(t *testing.T) *node {
	t.Helper()
	testbed.NeedRoot(t)
	testbed.NeedNetwork(t)
	network := testbed.NewCNI(t)
	n := enterNode(t, testbed.NewRegistry(t, testbed.RegistryOptions{}), operated,
		fmt.Sprintf("[cni]\nconf_dir = %q\nbin_dirs = [%q]\n", network.ConfDir, network.BinDir),
		"RUNSC="+testbed.Part(t, testbed.Runsc), "RUNC="+testbed.Part(t, testbed.Runc), "RUNC_OLD="+testbed.Part(t, testbed.RuncOld),
		"CONFIG="+configuration)
	n.client = testbed.Dial(t, n.inside("/run/berth/berth.sock"), n.logs, n.cgroup)
	t.Cleanup(n.killRest)
	n.serve()
	n.client.Pull(t, "", n.image)
	return n
}

// enterNode makes a node and runs a script on it. vendor is added to the vendor's drop-in.
func enterNode(t *testing.T, registry *testbed.Registry, script, vendor string, environment ...string) *node {
	t.Helper()
	dir := t.TempDir()
	n := &node{
		t: t, image: registry.Push(t, "guide/busybox:1", testbed.Busybox(t)), pods: map[string]*testbed.Pod{},
		cgroup: fmt.Sprintf("/guide-%d", os.Getpid()), log: filepath.Join(dir, "log"), logs: filepath.Join(dir, "pods"),
	}
	hosts := filepath.Join(dir, "hosts")
	registry.WriteHosts(t, hosts)
	registry.WriteMirror(t, hosts, "registry.example") // the name that pages use
	t.Cleanup(n.removeCgroups)
	testbed.Must(t, os.Mkdir(filepath.Join(dir, "layer"), 0o755))
	n.holder = exec.Command("sh", "-euc", mounts+script+hold, "sh", filepath.Join(dir, "layer"))
	n.holder.Env = append(os.Environ(), "BERTH="+testbed.Built(t), "CRUN="+testbed.Part(t, testbed.Crun),
		"VENDOR="+fmt.Sprintf("[engine]\ncgroup_driver = \"cgroupfs\"\n[registry]\nhosts_dir = %q\n", hosts)+vendor)
	n.holder.Env = append(n.holder.Env, environment...)
	n.holder.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	n.holder.Stderr = os.Stderr
	out, err := n.holder.StdoutPipe()
	if err == nil {
		err = n.holder.Start()
	}
	testbed.Must(t, err)
	t.Cleanup(func() {
		n.holder.Process.Kill() //nolint:errcheck // it exists until Wait
		n.holder.Wait()         //nolint:errcheck // killed
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("make the node: %q, %v", line, err)
	}
	return n
}

// inside is the path on the host for a path of the node.
func (n *node) inside(path string) string {
	return fmt.Sprintf("/proc/%d/root%s", n.holder.Process.Pid, path)
}

// command is a command that runs on the node.
func (n *node) command(ctx context.Context, name string, arguments ...string) *exec.Cmd {
	inside := append([]string{"--mount", fmt.Sprintf("--target=%d", n.holder.Process.Pid), "--", name}, arguments...)
	c := exec.CommandContext(ctx, "nsenter", inside...)
	c.Env = append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8", "HOME=/root"}, n.environment...)
	c.Dir = "/"
	return c
}

// serve starts berth, as the unit does, and waits until it answers. A cleanup removes all pods and
// stops berth.
func (n *node) serve() {
	t := n.t
	t.Helper()
	end := n.daemon("berth", "serve")
	t.Cleanup(func() {
		testbed.Checkf(t, n.client.RemoveAllPods(context.Background()), "remove the pods")
		end()
	})
	n.answers("/run/berth/berth.sock")
}

// daemon starts a daemon on the node, and returns a function that stops it.
func (n *node) daemon(name string, arguments ...string) (end func()) {
	t := n.t
	t.Helper()
	path := n.log + "." + name
	log, err := os.Create(path)
	testbed.Must(t, err)
	defer log.Close()
	daemon := n.command(context.Background(), name, arguments...)
	daemon.Stdout, daemon.Stderr = log, log
	daemon.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	testbed.Must(t, daemon.Start())
	ended := make(chan error, 1)
	go func() { ended <- daemon.Wait() }()
	return sync.OnceFunc(func() {
		daemon.Process.Signal(syscall.SIGTERM) //nolint:errcheck // the daemon may have failed and exited
		testbed.Checkf(t, <-ended, "%s ended with", name)
		if t.Failed() {
			text, _ := os.ReadFile(path)
			t.Logf("the log of %s:\n%s", name, text)
		}
	})
}

// answers waits until a CRI daemon answers on a socket of the node.
func (n *node) answers(socket string) {
	n.t.Helper()
	// A client that dials before the socket exists would wait longer after each attempt.
	testbed.Eventually(n.t, time.Minute, func() error { _, err := os.Stat(n.inside(socket)); return err })
	client := testbed.Dial(n.t, n.inside(socket), n.logs, n.cgroup)
	testbed.Eventually(n.t, time.Minute, func() error {
		_, err := client.Version(n.t.Context(), &runtimeapi.VersionRequest{})
		return err
	})
}

// killRest kills the processes that are left: idle supervisors.
func (n *node) killRest() {
	for _, pid := range n.processes() {
		syscall.Kill(pid, syscall.SIGKILL) //nolint:errcheck // it may have ended by itself
	}
}

// processes returns the processes in the node's mount namespace, without its holder.
func (n *node) processes() (all []int) {
	own, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", n.holder.Process.Pid))
	if err != nil {
		n.t.Errorf("find the node's processes: %v", err)
		return nil
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		n.t.Error(err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == n.holder.Process.Pid {
			continue
		}
		if is, err := os.Readlink(filepath.Join("/proc", e.Name(), "ns", "mnt")); err == nil && is == own {
			all = append(all, pid)
		}
	}
	return all
}

func (n *node) removeCgroups() {
	tops, err := filepath.Glob("/sys/fs/cgroup/*" + n.cgroup)
	if err != nil {
		n.t.Error(err)
	}
	var dirs []string
	for _, top := range append(tops, "/sys/fs/cgroup"+n.cgroup) {
		_ = filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
	}
	for i := len(dirs) - 1; i >= 0; i-- {
		testbed.Eventually(n.t, 10*time.Second, func() error { return os.Remove(dirs[i]) })
	}
}

// follow carries out a direction of the page.
func (n *node) follow(t *testing.T, direction string) {
	t.Helper()
	words := strings.Fields(direction)
	if do := n.more[direction]; do != nil {
		do(t)
		return
	}
	if len(words) < 2 {
		t.Fatalf("a direction has only %d words", len(words))
	}
	what, about, names := words[0], words[1], words[2:]
	switch what {
	case "run": // run pods with these names under a handler
		if about == "default" {
			about = ""
		}
		for _, name := range names {
			pod := n.run(t, about, name)
			pod.Container.Exec(t, "true")
		}
	case "refuse": // a pod under a handler is refused with these words
		config := n.client.SandboxConfig("refused")
		_, err := n.client.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: config, RuntimeHandler: about})
		if because := strings.Join(names, " "); err == nil || !strings.Contains(err.Error(), because) {
			t.Errorf("a pod of handler %s is refused with %v, want %q", about, err, because)
		}
	case "remove":
		for _, name := range words[1:] {
			pod := n.pods[name]
			if pod == nil {
				t.Fatalf("pod %s does not exist", name)
			}
			pod.Container.Exec(t, "true") // it still runs
			pod.Remove(t)
			delete(n.pods, name)
		}
	default:
		t.Fatalf("direction %q is not run, refuse or remove", what)
	}
}

// run starts a pod. Its UID is its name, so that a rollout gives it the same binary in every run
// of the test.
func (n *node) run(t *testing.T, handler, name string) *testbed.Pod {
	t.Helper()
	n.client.Pull(t, handler, n.image) // into the store of the pod's handler, as a kubelet does
	// n.t and not t: the pod must live after this step.
	pod := n.client.RunPod(n.t, testbed.PodSpec{
		Handler: handler, Image: n.image, Command: []string{"sleep", "3600"}, Name: name,
		Sandbox: func(c *runtimeapi.PodSandboxConfig) { c.Metadata.Uid, c.Metadata.Namespace = name, "shop" },
	})
	n.pods[name] = pod
	return pod
}
