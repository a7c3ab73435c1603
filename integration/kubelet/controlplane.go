package kubelet

import (
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"

	"github.com/berth-cri/berth/integration/testbed"
)

// startControlPlane starts etcd and the parts above it, and waits until the API
// server is ready.
func (c *Cluster) startControlPlane(t testbed.T) {
	t.Helper()
	c.startServer(t)
	config := c.kubeconfig(t, "admin.kubeconfig", c.token)
	c.startControllers(t, config)
	c.startScheduler(t, config)
}

func (c *Cluster) startScheduler(t testbed.T, config string) {
	t.Helper()
	c.run(
		t, testbed.KubeScheduler,
		"--kubeconfig="+config, "--leader-elect=false",
		"--bind-address="+c.Address.String(), "--secure-port="+freePort(t, c.Address), "--cert-dir="+filepath.Join(c.dir, "scheduler"),
	)
}

// startControllers starts the controllers of Deployments, Jobs and so on.
func (c *Cluster) startControllers(t testbed.T, config string) {
	t.Helper()
	c.run(
		t, testbed.KubeControllerManager,
		"--kubeconfig="+config, "--leader-elect=false",
		"--bind-address="+c.Address.String(), "--secure-port="+freePort(t, c.Address), "--cert-dir="+filepath.Join(c.dir, "controllers"),
		"--service-account-private-key-file="+c.certificate.Key, "--root-ca-file="+c.certificate.CA,
		"--flex-volume-plugin-dir="+filepath.Join(c.dir, "plugins"),
	)
}

// startServer starts etcd and an API server with additional arguments, and waits until the API
// server is ready.
func (c *Cluster) startServer(t testbed.T, arguments ...string) {
	t.Helper()
	store := c.startEtcd(t)
	port := freePort(t, c.Address)
	c.server = "https://" + net.JoinHostPort(c.Address.String(), port)
	users := fmt.Sprintf("%s,admin,admin,system:masters\n%s,system:node:%s,node,system:nodes\n%s,%s,guest\n", c.token, c.nodeToken, NodeName, c.guestToken, Guest)
	arguments = append([]string{
		"--etcd-servers=" + store,
		"--bind-address=" + c.Address.String(), "--advertise-address=" + c.Address.String(), "--secure-port=" + port,
		"--tls-cert-file=" + c.certificate.Cert, "--tls-private-key-file=" + c.certificate.Key,
		"--token-auth-file=" + c.write(t, "tokens.csv", []byte(users)),
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction,RuntimeClass",
		"--allow-privileged=true",
		// Any key would work.
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + c.certificate.Key, "--service-account-signing-key-file=" + c.certificate.Key,
		"--service-cluster-ip-range=10.0.0.0/24",
		"--endpoint-reconciler-type=none",
		"--kubelet-preferred-address-types=InternalIP",
	}, arguments...)
	server := c.run(t, testbed.KubeAPIServer, arguments...)
	server.await(t, startTimeout, func() error { return c.get("/readyz", nil) })
}

// startEtcd starts etcd and returns its URL. Without fsync it is faster, and its data need not
// survive a crash.
func (c *Cluster) startEtcd(t testbed.T) string {
	t.Helper()
	clients := "http://" + net.JoinHostPort(c.Address.String(), freePort(t, c.Address))
	peers := "http://" + net.JoinHostPort(c.Address.String(), freePort(t, c.Address))
	c.run(
		t, testbed.Etcd,
		"--data-dir="+filepath.Join(c.dir, "etcd"), "--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls="+clients, "--advertise-client-urls="+clients,
		"--listen-peer-urls="+peers, "--initial-advertise-peer-urls="+peers, "--initial-cluster=default="+peers,
	)
	return clients
}

// kubeconfig writes a kubeconfig with a token and returns its path.
func (c *Cluster) kubeconfig(t testbed.T, name, token string) string {
	t.Helper()
	type object = map[string]any
	body, err := json.Marshal(object{
		"apiVersion": "v1", "kind": "Config", "current-context": "test",
		"clusters": []object{{"name": "test", "cluster": object{"server": c.server, "certificate-authority": c.certificate.CA}}},
		"users":    []object{{"name": "test", "user": object{"token": token}}},
		"contexts": []object{{"name": "test", "context": object{"cluster": "test", "user": "test"}}},
	})
	testbed.Mustf(t, err, "write %s", name)
	return c.write(t, name, body)
}
