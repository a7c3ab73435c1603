package kubelet

import (
	"context"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/net"

	"github.com/berth-cri/berth/integration/testbed"
)

// Server is an API server with the same admission as that of a Cluster, and without controllers,
// scheduler and nodes.
type Server struct{ cluster *Cluster }

// StartServer starts a Server with additional arguments. A cleanup stops it.
func StartServer(t testbed.T, arguments ...string) *Server {
	t.Helper()
	testbed.Part(t, testbed.Etcd)
	testbed.Part(t, testbed.KubeAPIServer)
	c := &Cluster{Address: testbed.NewAddress(t), dir: t.TempDir(), token: uuid.NewString(), nodeToken: uuid.NewString(), guestToken: uuid.NewString()}
	c.certificate = testbed.NewCertificate(t, c.dir, c.Address)
	c.client = trusting(t, c.certificate.CA)
	c.startServer(t, arguments...)
	c.kubeconfig(t, "admin.kubeconfig", c.token)
	return &Server{c}
}

// StartControllers starts kube-controller-manager.
func (s *Server) StartControllers(t testbed.T) {
	t.Helper()
	s.cluster.startControllers(t, s.cluster.Kubeconfig())
}

// StartScheduler starts kube-scheduler.
func (s *Server) StartScheduler(t testbed.T) {
	t.Helper()
	s.cluster.startScheduler(t, s.cluster.Kubeconfig())
}

// Kubectl is Cluster.Kubectl.
func (s *Server) Kubectl(t testbed.T, stdin string, arguments ...string) string {
	t.Helper()
	return s.cluster.Kubectl(t, stdin, arguments...)
}

// StartNFD is Cluster.StartNFD. The API object of the node NodeName must exist; a kubelet is not
// needed.
func (s *Server) StartNFD(t testbed.T, features string) {
	t.Helper()
	s.cluster.StartNFD(t, features)
}

// Node is Cluster.Node.
func (s *Server) Node(name string) (*corev1.Node, error) { return s.cluster.Node(name) }

// Send sends a request as the administrator, and returns the status and the body of the answer. The
// body of the request is YAML or JSON. Cleanups may call Send.
func (s *Server) Send(t testbed.T, method, path string, body []byte) (status int, answer []byte) {
	t.Helper()
	status, answer, err := s.cluster.send(context.WithoutCancel(t.Context()), method, path, "application/yaml", body) // JSON is also YAML
	testbed.Mustf(t, err, "%s %s", method, path)
	return status, answer
}

// SendWarned is Send, but also returns the warnings of the answer.
func (s *Server) SendWarned(t testbed.T, method, path string, body []byte) (status int, answer []byte, warnings []string) {
	t.Helper()
	status, header, answer, err := s.cluster.exchange(context.WithoutCancel(t.Context()), method, path, "application/yaml", body)
	testbed.Mustf(t, err, "%s %s", method, path)
	headers, errs := net.ParseWarningHeaders(header["Warning"])
	if len(errs) > 0 {
		t.Fatalf("%s %s: %v", method, path, errs)
	}
	for _, h := range headers {
		warnings = append(warnings, h.Text)
	}
	return status, answer, warnings
}
