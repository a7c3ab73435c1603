package registry

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	registrytest "github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/berth-cri/berth/contrib/verifier/internal/policy"
)

var hash = v1.Hash{Algorithm: "sha256", Hex: strings.Repeat("ab", 32)}

func nothing(Simple) bool { return true }

func imageAt(t *testing.T, server *httptest.Server) policy.Image {
	t.Helper()
	image, err := policy.ParseImage(server.Listener.Addr().String() + "/a/b:1")
	if err != nil {
		t.Fatal(err)
	}
	return image
}

// trusting is a client that trusts the test's certificate.
func trusting(t *testing.T, server *httptest.Server, plain ...string) *Client {
	t.Helper()
	c, err := New(imageAt(t, server), nil, plain)
	if err != nil {
		t.Fatal(err)
	}
	inner, ok := c.transport.inner.(*http.Transport)
	if !ok {
		t.Fatal("the inner transport is not an http.Transport")
	}
	roots := x509.NewCertPool()
	if certificate := server.Certificate(); certificate != nil {
		roots.AddCert(certificate)
	}
	inner.TLSClientConfig = &tls.Config{RootCAs: roots}
	return c
}

// TestTLS checks that private addresses are also called by TLS, with a check of the certificate.
func TestTLS(t *testing.T) {
	asked := 0
	in := registrytest.New(registrytest.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		in.ServeHTTP(w, r)
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	c := trusting(t, server)
	if err := c.Simple(t.Context(), hash, nothing); err != nil {
		t.Error(err)
	}
	if err := c.Bundles(t.Context(), hash, func([]byte) bool { return true }); err != nil {
		t.Error(err)
	}
	if asked < 3 {
		t.Errorf("the server got %d requests, want 3 or more", asked)
	}
	stranger, err := New(imageAt(t, server), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := stranger.Simple(t.Context(), hash, nothing); err == nil {
		t.Error("a certificate that is not trusted is accepted")
	}
}

// TestPlainHTTP checks that no address, redirect or token server is called by plain HTTP.
func TestPlainHTTP(t *testing.T) {
	asked := 0
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked++
		w.WriteHeader(http.StatusNotFound)
	}))
	defer plain.Close()
	c, err := New(imageAt(t, plain), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Simple(t.Context(), hash, nothing); err == nil || asked > 0 {
		t.Errorf("plain HTTP: %v, %d requests", err, asked)
	}
	for name, handler := range map[string]http.HandlerFunc{
		"redirect": func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/v2/" {
				http.Redirect(w, r, plain.URL+r.URL.Path, http.StatusTemporaryRedirect)
			}
		},
		"token server": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("WWW-Authenticate", `Bearer realm="`+plain.URL+`/token",service="x"`)
			w.WriteHeader(http.StatusUnauthorized)
		},
	} {
		server := httptest.NewTLSServer(handler)
		if err := trusting(t, server).Simple(t.Context(), hash, nothing); err == nil || asked > 0 {
			t.Errorf("plain HTTP by a %s: %v, %d requests", name, err, asked)
		}
		server.Close()
	}
}

func TestRegistryThatStalls(t *testing.T) {
	stop := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-stop:
		}
	}))
	defer server.Close()
	defer close(stop)
	c, err := New(imageAt(t, server), nil, []string{server.Listener.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	began := time.Now()
	if err := c.Simple(ctx, hash, nothing); err == nil || time.Since(began) > 10*time.Second {
		t.Errorf("a registry that does not answer: after %v: %v", time.Since(began), err)
	}
}
