// Package kubelet runs berth where it is meant to be: under a kubelet that is told
// by a control plane what to run. Everything is real: etcd, kube-apiserver,
// kube-scheduler, kube-controller-manager, kubelet and kubectl, of the version
// that integration/runtimes/kubernetes/go.mod pins.
//
// All of it serves on an address that the test made, keeps its files in
// directories of the test, and has its pods' cgroups below one of the test's. What
// a kubelet changes of the host all the same (sysctls, /var/log/containers) is put
// back.
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

// Options say how a cluster is started.
type Options struct {
	// Berth runs the node's pods. Required unless there is a Machine, and must have a
	// network.
	Berth *testbed.Berth
	// Runtime is the CRI daemon that the kubelet is told of at first; nil is Berth.
	Runtime *testbed.Daemon
	// Machine is the node, if it is more than a daemon on the test's.
	Machine *Machine
	// FeatureGates are the kubelet's.
	FeatureGates map[string]bool
	// Kubelet is more of the kubelet's configuration, which wins.
	Kubelet map[string]any
	// NodeLabels are put on the node, key=value.
	NodeLabels string
}

// Machine is a node that has directories of its own.
type Machine struct {
	// Enter are the words before a command that have it run there.
	Enter []string
	// Socket is the CRI daemon's, by the name that it has there.
	Socket string
	// Cgroup is what the pods' cgroups are made below. Who made the machine removes it.
	Cgroup string
}

// Cluster is a control plane with one node.
type Cluster struct {
	// Berth runs the pods; nil if the node is a Machine.
	Berth *testbed.Berth
	// Address is the node's, which pods and the host reach.
	Address net.IP
	// Logs is the directory of the pods' logs.
	Logs string

	machine     Machine
	dir         string
	token       string // of system:masters
	nodeToken   string // of the kubelet
	guestToken  string // of Guest, who may do nothing
	server      string // URL of the API server
	certificate testbed.Certificate
	client      *http.Client

	node *node
}

// NodeName is the name of the one node.
const NodeName = "node-1"

// startTimeout bounds the wait for a part that starts.
const startTimeout = 2 * time.Minute

// Start starts a cluster and waits until its node is ready. A cleanup ends it, and
// puts back what it changed of the host. Only one runs on a host: another waits.
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

// haveHost waits until no other cluster runs on this host: there is one set of
// sysctls, and each puts back what it found.
func haveHost(t testbed.T) {
	t.Helper()
	lock, err := os.OpenFile(filepath.Join(os.TempDir(), "berth-kubelet.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	testbed.Mustf(t, err, "open the lock of the host")
	t.Cleanup(func() { _ = lock.Close() })
	testbed.Mustf(t, unix.Flock(int(lock.Fd()), unix.LOCK_EX), "lock the host")
}

// trusting is a client for the API server of an authority.
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

// freePort returns a port that nobody serves on.
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

// empty deletes all that makes pods, and waits until the node has none, so that
// what ends after it leaves nothing behind.
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
