package kubelet

import (
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"

	"github.com/google/uuid"

	"github.com/berth-cri/berth/integration/testbed"
)

// Users of the server.
const (
	// Admin has all rights.
	Admin = "admin"
	// Guest only has the rights that a test gives it by RBAC.
	Guest = "guest"
)

// Kubeconfig writes a kubeconfig of a user and returns its path. url is the URL of a Front;
// empty means the server itself.
func (s *Server) Kubeconfig(t testbed.T, user, url string) string {
	t.Helper()
	token := s.cluster.token
	if user == Guest {
		token = s.cluster.guestToken
	}
	c := *s.cluster
	if url != "" {
		c.server = url
	}
	return c.kubeconfig(t, user+"-"+uuid.NewString()+".kubeconfig", token)
}

// Front starts a proxy in front of the server and returns its URL. serve makes its handler; pass
// passes requests on to the server.
func (s *Server) Front(t testbed.T, serve func(pass http.Handler) http.Handler) string {
	t.Helper()
	target, err := url.Parse(s.cluster.server)
	if err != nil {
		t.Fatalf("%v", err)
	}
	pass := httputil.NewSingleHostReverseProxy(target)
	pass.Transport = s.cluster.client.Transport
	listener, err := net.Listen("tcp", net.JoinHostPort(s.cluster.Address.String(), "0"))
	if err != nil {
		t.Fatalf("%v", err)
	}
	front := &http.Server{Handler: serve(pass), ReadHeaderTimeout: startTimeout, ErrorLog: log.New(io.Discard, "", 0)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = front.ServeTLS(listener, s.cluster.certificate.Cert, s.cluster.certificate.Key) // until it is closed
	}()
	t.Cleanup(func() {
		_ = front.Close()
		<-ended
	})
	return "https://" + listener.Addr().String()
}
