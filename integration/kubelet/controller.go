package kubelet

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"

	"github.com/berth-cri/berth/integration/testbed"
)

// Controller is a berth-controller of a cluster.
type Controller struct {
	process *process
	// URL is the base URL of its health checks and metrics.
	URL string
}

// StartController starts berth-controller with only the rights of its service account in the
// project's manifest. A cleanup stops it.
func (c *Cluster) StartController(t testbed.T) *Controller {
	t.Helper()
	root, err := testbed.Repository()
	if err != nil {
		t.Fatalf("%v", err)
	}
	manifest, err := os.ReadFile(filepath.Join(root, "contrib/kubernetes/capacity.yaml"))
	if err != nil {
		t.Fatalf("%v", err)
	}
	const name, namespace = "berth-controller", "berth-system"
	// No replicas, because no registry has an image of berth-controller.
	c.Kubectl(t, strings.ReplaceAll(string(manifest), "replicas: 2", "replicas: 0"), "apply", "--validate=strict", "--filename=-")
	token := strings.TrimSpace(c.Kubectl(t, "", "create", "token", name, "--namespace="+namespace))
	return c.controller(t, c.kubeconfig(t, name+"-"+uuid.NewString()+".kubeconfig", token), namespace)
}

func (c *Cluster) controller(t testbed.T, kubeconfig, namespace string) *Controller {
	t.Helper()
	address := net.JoinHostPort(c.Address.String(), freePort(t, c.Address))
	p := &process{
		part: "berth-controller", log: filepath.Join(c.dir, "berth-controller-"+uuid.NewString()+".log"),
		arguments: []string{filepath.Join(testbed.Built(t), "berth-controller"), "--kubeconfig=" + kubeconfig, "--namespace=" + namespace, "--address=" + address},
	}
	t.Cleanup(func() {
		testbed.Checkf(t, p.end(syscall.SIGTERM), "end %s", p.part)
		if t.Failed() {
			t.Logf("the end of the log of %s:\n%s", p.part, p.logTail())
		}
	})
	p.start(t)
	return &Controller{p, "http://" + address}
}

// StartController is Cluster.StartController.
func (s *Server) StartController(t testbed.T) *Controller {
	t.Helper()
	return s.cluster.StartController(t)
}

// StartControllerAs starts berth-controller with the rights of a kubeconfig's user.
func (s *Server) StartControllerAs(t testbed.T, kubeconfig, namespace string) *Controller {
	t.Helper()
	return s.cluster.controller(t, kubeconfig, namespace)
}

// Kill kills the controller with SIGKILL.
func (c *Controller) Kill(t testbed.T) {
	t.Helper()
	testbed.Mustf(t, c.process.end(syscall.SIGKILL), "kill %s", c.process.part)
}

// Stop stops the controller with SIGTERM.
func (c *Controller) Stop(t testbed.T) {
	t.Helper()
	testbed.Mustf(t, c.process.end(syscall.SIGTERM), "end %s", c.process.part)
}

// Sleep suspends the controller for a time, as on a suspended machine.
func (c *Controller) Sleep(t testbed.T, d time.Duration) {
	t.Helper()
	testbed.Mustf(t, c.process.command.Process.Signal(syscall.SIGSTOP), "stop %s", c.process.part)
	time.Sleep(d)
	testbed.Mustf(t, c.process.command.Process.Signal(syscall.SIGCONT), "continue %s", c.process.part)
}

// Wait waits until the controller exits by itself, and returns its exit status.
func (c *Controller) Wait() int {
	<-c.process.ended
	return c.process.command.ProcessState.ExitCode()
}

// Log returns the end of the controller's log.
func (c *Controller) Log() string { return c.process.logTail() }

// featureFiles is the directory from which Node Feature Discovery reads a node's features.
const featureFiles = "/etc/kubernetes/node-feature-discovery/features.d"

// withFeatures runs a command with a directory of the host mounted at featureFiles.
const withFeatures = `
mount -t tmpfs layer "$1"
mkdir "$1/etc" "$1/work"
mount -t overlay overlay -o "lowerdir=/etc,upperdir=$1/etc,workdir=$1/work" /etc
mkdir -p ` + featureFiles + `
mount --bind "$2" ` + featureFiles + `
shift 2
exec "$@"
`

// StartNFD starts Node Feature Discovery, which labels the node by the files in features; if
// features is empty, by those in featureFiles of the node.
func (c *Cluster) StartNFD(t testbed.T, features string) {
	t.Helper()
	const namespace = "node-feature-discovery"
	crds := filepath.Join(filepath.Dir(testbed.Part(t, testbed.NFDMaster)), "nfd-crds.yaml")
	for _, arguments := range [][]string{
		{"create", "namespace", namespace},
		{"create", "--filename=" + crds},
		{"wait", "--for=condition=Established", "--timeout=1m", "--filename=" + crds},
	} {
		c.Kubectl(t, "", arguments...)
	}
	environment := []string{"env", "KUBERNETES_NAMESPACE=" + namespace, "NODE_NAME=" + NodeName}
	c.runOn(t, environment, testbed.NFDMaster, "-kubeconfig="+c.Kubeconfig(), "-port="+freePort(t, c.Address), "-enable-taints")
	enter := c.machine.Enter
	if features != "" {
		layer := filepath.Join(c.dir, "nfd")
		if err := os.Mkdir(layer, 0o700); err != nil {
			t.Fatalf("%v", err)
		}
		enter = slices.Concat(enter, []string{"unshare", "--mount", "--propagation=private", "sh", "-euc", withFeatures, "sh", layer, features})
	}
	c.runOn(
		t, slices.Concat(enter, environment), testbed.NFDWorker,
		"-kubeconfig="+c.Kubeconfig(), "-port="+freePort(t, c.Address), "-owner-refs=node",
		"-feature-sources=local", "-label-sources=local",
		// The worker also reads changed files at once, but not twice in one second.
		`-options={"core":{"sleepInterval":"5s"}}`,
	)
}
