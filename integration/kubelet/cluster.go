// Package kubelet runs berth under a kubelet with a control plane. Everything is real: etcd,
// kube-apiserver, kube-scheduler, kube-controller-manager, kubelet and kubectl, of the version that
// integration/runtimes/kubernetes/go.mod pins.
//
// All of them serve on an address that the test creates. Their files are in directories of the
// test, and the pods' cgroups are below one of the test. The kubelet's other changes to the host
// (sysctls, /var/log/containers) are undone.
package kubelet

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/integration/testbed"
)

// Options configure a cluster.
type Options struct {
	// Berth runs the node's pods, and must have a network. Required unless Machine is set.
	Berth *testbed.Berth
	// Runtime is the CRI daemon that the kubelet uses at first; nil is Berth.
	Runtime *testbed.Daemon
	// Machine is the node, if that is not this host.
	Machine *Machine
	// FeatureGates are the kubelet's feature gates.
	FeatureGates map[string]bool
	// Kubelet overrides fields of the kubelet's configuration.
	Kubelet map[string]any
	// NodeLabels are put on the node, key=value.
	NodeLabels string
}

// Machine is a node with its own directories.
type Machine struct {
	// Enter is the command prefix that runs a command on the node.
	Enter []string
	// Socket is the path of the CRI daemon's socket on the node.
	Socket string
	// Cgroup is the parent of the pods' cgroups. The creator of the machine removes it.
	Cgroup string
}

// Cluster is a control plane with one node.
type Cluster struct {
	// Berth runs the pods; nil if the node is a Machine.
	Berth *testbed.Berth
	// Address is the node's address, which pods and the host reach.
	Address net.IP
	// Logs is the directory of the pods' logs.
	Logs string

	machine     Machine
	dir         string
	token       string // of system:masters
	nodeToken   string // of the kubelet
	guestToken  string // of Guest, which has no rights
	server      string // URL of the API server
	certificate testbed.Certificate
	client      *http.Client

	node *node
}

// NodeName is the name of the one node.
const NodeName = "node-1"

// startTimeout limits the wait for the start of a program.
const startTimeout = 2 * time.Minute

// Start starts a cluster and waits until its node is ready. A cleanup stops it and undoes its
// changes to the host. If another cluster runs on the host, Start waits for its end.
func Start(t testbed.T, options Options) *Cluster {
	t.Helper()
	testbed.NeedRoot(t)
	for _, part := range []string{
		testbed.Etcd, testbed.KubeAPIServer, testbed.KubeControllerManager, testbed.KubeScheduler, testbed.Kubectl, testbed.Kubelet,
	} {
		testbed.Part(t, part)
	}
	haveHost(t)
	c := &Cluster{
		Berth:      options.Berth,
		Address:    testbed.NewAddress(t),
		dir:        t.TempDir(),
		token:      uuid.NewString(),
		nodeToken:  uuid.NewString(),
		guestToken: uuid.NewString(),
	}
	c.Logs = filepath.Join(c.dir, "logs")
	c.certificate = testbed.NewCertificate(t, c.dir, c.Address)
	c.client = trusting(t, c.certificate.CA)
	c.startControlPlane(t)
	c.machine = machine(options)
	c.startNode(t, options)
	t.Cleanup(func() { c.empty(t) })
	return c
}

func machine(options Options) Machine {
	switch {
	case options.Machine != nil:
		return *options.Machine
	case options.Runtime != nil:
		return Machine{Socket: options.Runtime.Socket, Cgroup: options.Berth.Cgroup}
	default:
		return Machine{Socket: options.Berth.Socket, Cgroup: options.Berth.Cgroup}
	}
}

// haveHost waits until no other cluster runs on this host, because each cluster changes the host's
// sysctls and restores them.
func haveHost(t testbed.T) {
	t.Helper()
	lock, err := os.OpenFile(filepath.Join(os.TempDir(), "berth-kubelet.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	testbed.Mustf(t, err, "open the lock of the host")
	t.Cleanup(func() { _ = lock.Close() })
	testbed.Mustf(t, unix.Flock(int(lock.Fd()), unix.LOCK_EX), "lock the host")
}

// trusting returns a client that trusts an authority.
func trusting(t testbed.T, ca string) *http.Client {
	t.Helper()
	authority, err := os.ReadFile(ca)
	testbed.Mustf(t, err, "read the cluster's authority")
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: time.Minute}
}

// freePort returns a port of an address that is free now.
func freePort(t testbed.T, at net.IP) string {
	t.Helper()
	listener, err := net.Listen("tcp", net.JoinHostPort(at.String(), "0"))
	testbed.Mustf(t, err, "look for a free port")
	defer listener.Close()
	return strconv.Itoa(listener.Addr().(*net.TCPAddr).Port)
}

// write writes a file of the cluster and returns its path.
func (c *Cluster) write(t testbed.T, name string, body []byte) string {
	t.Helper()
	path := filepath.Join(c.dir, name)
	testbed.Mustf(t, os.WriteFile(path, body, 0o600), "write %s", name)
	return path
}

// empty deletes all deployments and pods and waits until they are gone, so that the cleanups after
// it find nothing left on the node.
func (c *Cluster) empty(t testbed.T) {
	t.Helper()
	if !c.node.kubelet.running() {
		return
	}
	_, stderr, err := c.kubectl(t, nil, "delete", "deployments,pods", "--all", "--all-namespaces", "--grace-period=1", "--timeout=2m")
	if err != nil {
		t.Errorf("delete all pods: %v: %s", err, stderr)
	}
}
