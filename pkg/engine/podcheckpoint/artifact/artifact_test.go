package artifact

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/podcheckpoint/manifest"
)

func described() *imagespec.Manifest {
	return describe(&manifest.Manifest{Files: []manifest.File{{Name: "pages.img", Size: 3, SHA256: strings.Repeat("a", 64)}}}, []byte("{}"))
}

func TestCheck(t *testing.T) {
	test.Must(t, check(described()))
	for name, change := range map[string]func(*imagespec.Manifest){
		"another type":                   func(m *imagespec.Manifest) { m.ArtifactType = "x" },
		"another configuration":          func(m *imagespec.Manifest) { m.Config.MediaType = imagespec.MediaTypeImageConfig },
		"a long configuration":           func(m *imagespec.Manifest) { m.Config.Size = maxConfig + 1 },
		"a negative configuration size":  func(m *imagespec.Manifest) { m.Config.Size = -1 },
		"no name":                        func(m *imagespec.Manifest) { m.Layers[0].Annotations = nil },
		"a name that leads out":          func(m *imagespec.Manifest) { m.Layers[0].Annotations[imagespec.AnnotationTitle] = "../manifest.json" },
		"the directory":                  func(m *imagespec.Manifest) { m.Layers[0].Annotations[imagespec.AnnotationTitle] = ".." },
		"an absolute name":               func(m *imagespec.Manifest) { m.Layers[0].Annotations[imagespec.AnnotationTitle] = "/etc/passwd" },
		"a negative file":                func(m *imagespec.Manifest) { m.Layers[0].Size = -1 },
		"no digest":                      func(m *imagespec.Manifest) { m.Layers[0].Digest = "" },
		"no digest of the configuration": func(m *imagespec.Manifest) { m.Config.Digest = "sha256:x" },
	} {
		m := described()
		change(m)
		test.Is(t, check(m), errdefs.IsInvalidArgument, "%s", name)
	}
}

// says is a registry that answers every Fetch with this text.
type says string

func (s says) Fetch(context.Context, imagespec.Descriptor) (io.ReadCloser, error) {
	return io.NopCloser(strings.NewReader(string(s))), nil
}

func TestFetchComparesWhatComes(t *testing.T) {
	d := imagespec.Descriptor{Digest: digest.FromString("right"), Size: 5}
	for answer, right := range map[string]bool{"right": true, "wrong": false, "righ": false, "right and more": false, "": false} {
		var got bytes.Buffer
		err := fetch(t.Context(), says(answer), d, &got)
		if right != (err == nil) || err != nil && !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q: %v", answer, err)
		}
		if int64(got.Len()) > d.Size+1 {
			t.Errorf("%q: %d bytes were written", answer, got.Len())
		}
	}
}

func TestNames(t *testing.T) {
	for ref, want := range map[string]string{
		"registry.test/a/b": "registry.test/a/b:latest", "registry.test/a:1": "registry.test/a:1", "127.0.0.1:5000/a:1": "127.0.0.1:5000/a:1", "a": "", "A B": "", "": "",
	} {
		got, err := named(ref)
		if got != want || (err != nil) != (want == "") {
			t.Errorf("%q is %q, %v; want %q", ref, got, err, want)
		}
	}
}

// Only the registry in the name gets the credentials: mirrors and servers that it redirects to do
// not.
func TestCredentialsStayWithTheRegistry(t *testing.T) {
	serve := func(address string, authorized http.HandlerFunc) (host string, seen, given *atomic.Bool) {
		seen, given = &atomic.Bool{}, &atomic.Bool{}
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			seen.Store(true)
			if _, _, ok := r.BasicAuth(); ok {
				given.Store(true)
				authorized(w, r)
				return
			}
			w.Header().Set("WWW-Authenticate", `Basic realm="here"`)
			w.WriteHeader(http.StatusUnauthorized)
		}))
		test.Must(t, s.Listener.Close())
		s.Listener = test.Value(net.Listen("tcp", net.JoinHostPort(address, "0")))(t)
		s.Start()
		t.Cleanup(s.Close)
		return s.Listener.Addr().String(), seen, given
	}
	mirror, atMirror, byMirror := serve("127.0.0.2", http.NotFound)
	other, atOther, byOther := serve("127.0.0.3", http.NotFound)
	named, _, byNamed := serve("127.0.0.1", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://"+other+r.URL.Path, http.StatusTemporaryRedirect)
	})
	hosts := t.TempDir()
	test.Must(t, os.Mkdir(filepath.Join(hosts, named), 0o700))
	test.Must(t, os.WriteFile(filepath.Join(hosts, named, "hosts.toml"), fmt.Appendf(nil, "[host.%q]\n", "http://"+mirror), 0o600))
	ref, r := named+"/a:1", Registry{HostsDir: hosts, User: "me", Secret: "secret", PlainHTTP: true, Progress: func(string, int64) {}}
	if err := test.Err(Pull(t.Context(), ref, filepath.Join(t.TempDir(), "new"), r)); err == nil {
		t.Error("the pull of a missing checkpoint succeeded")
	}
	test.Equal(t, "the registry, the mirror and the other server were asked", [3]bool{byNamed.Load(), atMirror.Load(), atOther.Load()}, [3]bool{true, true, true})
	text := []byte("{}")
	d := imagespec.Descriptor{MediaType: configType, Digest: digest.FromBytes(text), Size: int64(len(text))}
	if err := r.send(t.Context(), ref, []blob{document("x", d, text)}); err == nil {
		t.Error("the push succeeded")
	}
	test.Equal(t, "the mirror and the other server got the credentials", [2]bool{byMirror.Load(), byOther.Load()}, [2]bool{})
}
