package testbed

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

const architecture = runtime.GOARCH

// RegistryOptions configure a registry.
type RegistryOptions struct {
	// TLS serves over TLS, with a certificate of a new authority. Clients trust it only with the
	// file of Registry.WriteHosts.
	TLS bool
	// Username and Password, if set, are required of all clients (basic auth).
	Username, Password string
	// Wrap, if set, wraps the registry's handler, to count, slow down or break requests.
	Wrap func(http.Handler) http.Handler
}

// Registry is a real registry on loopback. It has its content in memory until its T ends.
type Registry struct {
	// Host is its address, host:port, as in image references.
	Host string
	// CA is the PEM of the certificate authority; empty without TLS.
	CA []byte

	options   RegistryOptions
	transport http.RoundTripper
}

// NewRegistry starts a registry.
func NewRegistry(t T, options RegistryOptions) *Registry {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	Mustf(t, err, "listen for the registry")
	r := &Registry{Host: listener.Addr().String(), options: options, transport: http.DefaultTransport}
	if options.TLS {
		listener = r.secure(t, listener)
	}
	handler := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	if options.Username != "" {
		handler = basicAuth(handler, options.Username, options.Password)
	}
	if options.Wrap != nil {
		handler = options.Wrap(handler)
	}
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 30 * time.Second,
		ErrorLog:          log.New(io.Discard, "", 0), // some tests have clients that do not trust the CA
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		Checkf(t, server.Close(), "close the registry")
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("serve the registry: %v", err)
		}
	})
	return r
}

// URL is the registry's URL.
func (r *Registry) URL() string {
	if r.options.TLS {
		return "https://" + r.Host
	}
	return "http://" + r.Host
}

// Push pushes an image with a name like "team/app:1" and returns its reference.
func (r *Registry) Push(t T, repository string, image v1.Image) string {
	t.Helper()
	reference, err := name.ParseReference(r.Host+"/"+repository, name.Insecure)
	Mustf(t, err, "push %s", repository)
	options := []remote.Option{remote.WithContext(t.Context()), remote.WithTransport(r.transport)}
	if r.options.Username != "" {
		options = append(options, remote.WithAuth(&authn.Basic{Username: r.options.Username, Password: r.options.Password}))
	}
	Mustf(t, remote.Write(reference, image, options...), "push %s", repository)
	return r.Host + "/" + repository
}

// PushIndex pushes an index and its images with a name like "team/app:1".
func (r *Registry) PushIndex(t T, repository string, index v1.ImageIndex) string {
	t.Helper()
	reference, err := name.ParseReference(r.Host+"/"+repository, name.Insecure)
	if err == nil {
		err = remote.WriteIndex(reference, index, remote.WithContext(t.Context()), remote.WithTransport(r.transport))
	}
	Mustf(t, err, "push %s", repository)
	return r.Host + "/" + repository
}

// WriteHosts writes the registry's hosts.toml, with its scheme and its authority, to a hosts
// directory.
func (r *Registry) WriteHosts(t T, dir string) {
	t.Helper()
	r.WriteMirror(t, dir, r.Host)
}

// WriteMirror writes the hosts.toml by which images of the registry named of are pulled from r. The
// other registry need not exist.
func (r *Registry) WriteMirror(t T, dir, of string) {
	t.Helper()
	dir = filepath.Join(dir, of)
	Mustf(t, os.MkdirAll(dir, 0o755), "make the registry's hosts directory")
	hosts := fmt.Sprintf("server = %q\n\n[host.%q]\n  capabilities = [\"pull\", \"resolve\"]\n", r.URL(), r.URL())
	if r.options.TLS {
		hosts += "  ca = \"ca.crt\"\n"
		Mustf(t, os.WriteFile(filepath.Join(dir, "ca.crt"), r.CA, 0o600), "write the registry's authority")
	}
	Mustf(t, os.WriteFile(filepath.Join(dir, "hosts.toml"), []byte(hosts), 0o600), "write hosts.toml")
}

func (r *Registry) secure(t T, listener net.Listener) net.Listener {
	t.Helper()
	certificate, authority, err := issue(net.IPv4(127, 0, 0, 1))
	Mustf(t, err, "make the registry's certificate")
	r.CA = authority
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	t.Cleanup(transport.CloseIdleConnections)
	r.transport = transport
	return tls.NewListener(listener, &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12})
}

// issue makes a certificate for an address, and returns it with the PEM of a new authority, which
// has signed it.
func issue(address net.IP) (tls.Certificate, []byte, error) {
	authorityKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	authority := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "berth testbed"},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(24 * time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	authorityDER, err := x509.CreateCertificate(rand.Reader, authority, authority, authorityKey.Public(), authorityKey)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2),
		Subject:      pkix.Name{CommonName: "registry"},
		NotBefore:    authority.NotBefore,
		NotAfter:     authority.NotAfter,
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IPAddresses:  []net.IP{address},
	}
	leafDER, err := x509.CreateCertificate(rand.Reader, leaf, authority, key.Public(), authorityKey)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	return tls.Certificate{Certificate: [][]byte{leafDER}, PrivateKey: key},
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authorityDER}), nil
}

func basicAuth(next http.Handler, username, password string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		user, pass, _ := request.BasicAuth()
		if subtle.ConstantTimeCompare([]byte(user+"\x00"+pass), []byte(username+"\x00"+password)) != 1 {
			w.Header().Set("WWW-Authenticate", `Basic realm="testbed"`)
			http.Error(w, `{"errors":[{"code":"UNAUTHORIZED"}]}`, http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, request)
	})
}

// Certificate has the paths of the PEM files of a server's certificate.
type Certificate struct {
	// Cert and Key belong to the server; CA is the authority that has signed Cert.
	Cert, Key, CA string
}

// NewCertificate writes a certificate of a new authority for an address to files in dir.
func NewCertificate(t T, dir string, address net.IP) Certificate {
	t.Helper()
	issued, authority, err := issue(address)
	Mustf(t, err, "make a certificate for %s", address)
	key, err := privateKeyPEM(issued)
	Mustf(t, err, "encode the key of the certificate for %s", address)
	leaf := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: issued.Certificate[0]})
	files := Certificate{
		Cert: filepath.Join(dir, "server.crt"), Key: filepath.Join(dir, "server.key"), CA: filepath.Join(dir, "ca.crt"),
	}
	for path, body := range map[string][]byte{files.Cert: leaf, files.Key: key, files.CA: authority} {
		Mustf(t, os.WriteFile(path, body, 0o600), "write a certificate")
	}
	return files
}

func privateKeyPEM(certificate tls.Certificate) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(certificate.PrivateKey.(*ecdsa.PrivateKey))
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}
