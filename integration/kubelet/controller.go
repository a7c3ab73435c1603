package kubelet

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"

	"github.com/berth-cri/berth/integration/testbed"
)

// Controller is a berth-controller of a cluster.
type Controller struct {
	process *process
	// URL is where it tells of itself.
	URL string
}

// StartController starts berth-controller as a service account that has the rights
// which the project's manifest gives it, and no others. A cleanup ends it.
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
	// No image of it is anywhere.
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

// StartController is that of a Cluster.
func (s *Server) StartController(t testbed.T) *Controller {
	t.Helper()
	return s.cluster.StartController(t)
}

// StartControllerAs starts berth-controller with the rights of who a kubeconfig is of.
func (s *Server) StartControllerAs(t testbed.T, kubeconfig, namespace string) *Controller {
	t.Helper()
	return s.cluster.controller(t, kubeconfig, namespace)
}

// Kill kills it on the spot.
func (c *Controller) Kill(t testbed.T) {
	t.Helper()
	testbed.Mustf(t, c.process.end(syscall.SIGKILL), "kill %s", c.process.part)
}

// Stop ends it in good order.
func (c *Controller) Stop(t testbed.T) {
	t.Helper()
	testbed.Mustf(t, c.process.end(syscall.SIGTERM), "end %s", c.process.part)
}

// Sleep stops it for so long, as a machine that is suspended does. What waits for it waits.
func (c *Controller) Sleep(t testbed.T, d time.Duration) {
	t.Helper()
	testbed.Mustf(t, c.process.command.Process.Signal(syscall.SIGSTOP), "stop %s", c.process.part)
	time.Sleep(d)
	testbed.Mustf(t, c.process.command.Process.Signal(syscall.SIGCONT), "continue %s", c.process.part)
}

// Wait waits until it has ended by itself, and returns its exit status.
func (c *Controller) Wait() int {
	<-c.process.ended
	return c.process.command.ProcessState.ExitCode()
}

// Log is what it has written.
func (c *Controller) Log() string { return c.process.logTail() }
