package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	ocireg "github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/berth-cri/berth/internal/test"
)

// domain is the registry in the names of the tests' images. It does not resolve: only hosts.toml
// maps it to the test's own registry.
const domain = "registry.test"

// app is the image that most tests pull.
const app = domain + "/app:1"

// testRegistry is a registry on loopback over TLS.
type testRegistry struct {
	*httptest.Server
	// ca is the file with its certificate.
	ca string
	// back serves the same registry without TLS, authentication and guard, for pushing.
	back  *httptest.Server
	inner http.Handler
	// bodies caches the blobs that serveBlob has sent, by path. Copying a large blob is slow under
	// the race detector.
	bodies sync.Map

	mu   sync.Mutex
	hits map[string]int
	// guard returns true if it has answered the request.
	guard func(http.ResponseWriter, *http.Request) bool
}

func newTestRegistry(t testing.TB) *testRegistry {
	t.Helper()
	inner := ocireg.New(ocireg.Logger(log.New(io.Discard, "", 0)))
	r := &testRegistry{inner: inner, hits: map[string]int{}}
	r.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.mu.Lock()
		r.hits[req.Method+" "+req.URL.Path]++
		guard := r.guard
		r.mu.Unlock()
		if guard == nil || !guard(w, req) {
			inner.ServeHTTP(w, req)
		}
	}))
	r.Server.Config.ErrorLog = log.New(io.Discard, "", 0)
	r.ca = serveTLS(t, r.Server)
	r.back = httptest.NewServer(inner)
	t.Cleanup(func() {
		r.Server.CloseClientConnections()
		r.Server.Close()
		r.back.Close()
	})
	return r
}

// serveTLS starts a server with a new self-signed certificate, and returns the certificate's file.
func serveTLS(t testing.TB, srv *httptest.Server) string {
	t.Helper()
	key := test.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv4(127, 0, 0, 2)}, DNSNames: []string{"localhost"},
	}
	der := test.Value(x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key))(t)
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	srv.StartTLS()
	file := filepath.Join(t.TempDir(), "ca.crt")
	test.Must(t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	return file
}

// body returns the whole blob that req requests.
func (r *testRegistry) body(req *http.Request) []byte {
	if body, there := r.bodies.Load(req.URL.Path); there {
		return body.([]byte)
	}
	req = req.Clone(req.Context())
	req.Header.Del("Range")
	answer := httptest.NewRecorder()
	r.inner.ServeHTTP(answer, req)
	if req.Method == http.MethodGet && answer.Code == http.StatusOK {
		r.bodies.Store(req.URL.Path, answer.Body.Bytes())
	}
	return answer.Body.Bytes()
}

// serveBlob serves a blob with support for all kinds of ranges.
func (r *testRegistry) serveBlob(w http.ResponseWriter, req *http.Request) {
	http.ServeContent(w, req, "", time.Time{}, bytes.NewReader(r.body(req)))
}

func (r *testRegistry) setGuard(g func(http.ResponseWriter, *http.Request) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.guard = g
}

// count returns the number of requests with that method whose path contains part.
func (r *testRegistry) count(method, part string) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for k, v := range r.hits {
		if strings.HasPrefix(k, method+" ") && strings.Contains(k, part) {
			n += v
		}
	}
	return n
}

func (r *testRegistry) forgetHits() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.hits)
}

// addr is the registry's host:port.
func (r *testRegistry) addr() string { return strings.TrimPrefix(r.URL, "https://") }

// push puts an image or an index at repo:tag and returns its digest.
func (r *testRegistry) push(t testing.TB, repoTag string, what remote.Taggable) string {
	t.Helper()
	ref := test.Value(name.ParseReference(strings.TrimPrefix(r.back.URL, "http://") + "/" + repoTag))(t)
	if index, ok := what.(v1.ImageIndex); ok {
		test.Must(t, remote.WriteIndex(ref, index))
		return digestOf(t, index)
	}
	img := what.(v1.Image)
	test.Must(t, remote.Write(ref, img))
	return digestOf(t, img)
}

func digestOf(t testing.TB, what interface{ Digest() (v1.Hash, error) }) string {
	t.Helper()
	h := test.Value(what.Digest())(t)
	return h.String()
}

func idOf(t testing.TB, img v1.Image) string {
	t.Helper()
	h := test.Value(img.ConfigName())(t)
	return h.String()
}

// hosts writes hosts.toml for domain and returns the hosts directory.
func (r *testRegistry) hosts(t testing.TB, extra ...string) string {
	t.Helper()
	return writeHosts(t, domain, fmt.Sprintf("server = %q\nca = %q\n%s", r.URL, r.ca, strings.Join(extra, "\n")))
}

func writeHosts(t testing.TB, registry, text string) string {
	t.Helper()
	dir := t.TempDir()
	test.Must(t, os.MkdirAll(filepath.Join(dir, registry), 0o755))
	test.Must(t, os.WriteFile(filepath.Join(dir, registry, "hosts.toml"), []byte(text), 0o600))
	return dir
}

// file is an entry of a layer.
type file struct {
	name, body string
	mode       int64
	uid        int
	link       string // the target if it is a hard link
}

// layer makes a layer of files; a name that ends in "/" is a directory.
func layer(t testing.TB, files ...file) v1.Layer {
	t.Helper()
	return layerAt(t, gzip.BestSpeed, files...)
}

// layerAt makes a layer with a compression level. It caches the compressed form, because
// compressing is slow under the race detector.
func layerAt(t testing.TB, level int, files ...file) v1.Layer {
	t.Helper()
	var buf bytes.Buffer
	if len(files) > 0 {
		buf.Grow(len(files[0].body) + 4<<10) // if a file is large, it is the first
	}
	tw := tar.NewWriter(&buf)
	for _, f := range files {
		h := &tar.Header{Name: f.name, Mode: f.mode, Uid: f.uid, Gid: f.uid, Size: int64(len(f.body)), Typeflag: tar.TypeReg}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if strings.HasSuffix(f.name, "/") {
			h.Typeflag, h.Mode = tar.TypeDir, 0o755
		}
		if f.link != "" {
			h.Typeflag, h.Linkname = tar.TypeLink, f.link
		}
		test.Must(t, tw.WriteHeader(h))
		test.Must(t, test.Err(io.WriteString(tw, f.body)))
	}
	test.Must(t, tw.Close())
	raw := buf.Bytes()
	l := test.Value(tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(raw)), nil },
		tarball.WithCompressedCaching, tarball.WithCompressionLevel(level)))(t)
	return l
}

// build makes an image for this node's platform.
func build(t testing.TB, config v1.Config, layers ...v1.Layer) v1.Image {
	return buildFor(t, runtime.GOARCH, config, layers...)
}

func buildFor(t testing.TB, arch string, config v1.Config, layers ...v1.Layer) v1.Image {
	t.Helper()
	img := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	img = mutate.ConfigMediaType(img, types.OCIConfigJSON)
	img = test.Value(mutate.AppendLayers(img, layers...))(t)
	cf := test.Value(img.ConfigFile())(t)
	cf = cf.DeepCopy()
	cf.OS, cf.Architecture, cf.Config = "linux", arch, config
	return test.Value(mutate.ConfigFile(img, cf))(t)
}

// indexOf makes an index of images by architecture.
func indexOf(images map[string]v1.Image) v1.ImageIndex {
	idx := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for arch, img := range images {
		idx = mutate.AppendManifests(idx, mutate.IndexAddendum{
			Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}},
		})
	}
	return idx
}

// basicAuth returns a guard that requires a user and a password.
func basicAuth(user, password string) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		if u, p, ok := r.BasicAuth(); ok && u == user && p == password {
			return false
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	}
}

// bearerAuth returns a guard that requires a token. The registry's own /token issues it for a user
// with a password, and for an identity token.
func bearerAuth(r *testRegistry, user, password, identity string) func(http.ResponseWriter, *http.Request) bool {
	const token = "token-of-the-test"
	return func(w http.ResponseWriter, req *http.Request) bool {
		if req.URL.Path == "/token" {
			u, p, _ := req.BasicAuth()
			byForm := req.Method == http.MethodPost && (req.PostFormValue("username") == user && req.PostFormValue("password") == password ||
				req.PostFormValue("grant_type") == "refresh_token" && req.PostFormValue("refresh_token") == identity)
			if (u == user && p == password) || byForm {
				_, _ = fmt.Fprintf(w, `{"token":%q,"access_token":%q,"expires_in":300}`, token, token)
			} else {
				http.Error(w, "unknown user", http.StatusUnauthorized)
			}
			return true
		}
		if req.Header.Get("Authorization") == "Bearer "+token {
			return false
		}
		w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s/token",service="test",scope="repository:app:pull"`, r.URL))
		w.WriteHeader(http.StatusUnauthorized)
		return true
	}
}

// withWrongDiffID makes an image whose configuration has a wrong diff ID.
func withWrongDiffID(t testing.TB, img v1.Image) v1.Image {
	t.Helper()
	cf := test.Value(img.ConfigFile())(t)
	cf = cf.DeepCopy()
	cf.RootFS.DiffIDs[0].Hex = strings.Repeat("0", 64)
	return test.Value(mutate.ConfigFile(img, cf))(t)
}
