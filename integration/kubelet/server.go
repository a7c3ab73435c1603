package kubelet

import (
	"context"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/net"

	"github.com/berth-cri/berth/integration/testbed"
)

// Server is an API server, with the admission that a Cluster's has, and nothing that
// would act on what is created there.
type Server struct{ cluster *Cluster }

// StartServer starts one with more arguments. A cleanup ends it.
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

// StartControllers starts what makes pods of workloads.
func (s *Server) StartControllers(t testbed.T) {
	t.Helper()
	s.cluster.startControllers(t, s.cluster.Kubeconfig())
}

// StartScheduler starts what gives pods a node.
func (s *Server) StartScheduler(t testbed.T) {
	t.Helper()
	s.cluster.startScheduler(t, s.cluster.Kubeconfig())
}

// Kubectl is that of a Cluster.
func (s *Server) Kubectl(t testbed.T, stdin string, arguments ...string) string {
	t.Helper()
	return s.cluster.Kubectl(t, stdin, arguments...)
}

// StartNFD is that of a Cluster. The node, NodeName, must be there; nothing of it has to
// run.
func (s *Server) StartNFD(t testbed.T, features string) {
	t.Helper()
	s.cluster.StartNFD(t, features)
}

// Node is a node as it is known now.
func (s *Server) Node(name string) (*corev1.Node, error) { return s.cluster.Node(name) }

// Send sends a request as the administrator, and returns the status and the body of
// the answer; cleanups may use it. A body to send is YAML or JSON.
func (s *Server) Send(t testbed.T, method, path string, body []byte) (status int, answer []byte) {
	t.Helper()
	status, answer, err := s.cluster.send(context.WithoutCancel(t.Context()), method, path, "application/yaml", body) // which JSON is, too
	testbed.Mustf(t, err, "%s %s", method, path)
	return status, answer
}

// SendWarned is Send, and returns the warnings of the answer, too.
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
