package testbed

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

func TestRegistryServesWhatWasPushed(t *testing.T) {
	image := Busybox(t, WithUser("app:extra"))
	want, err := image.Digest()
	Must(t, err)
	var requests atomic.Int64
	count := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			requests.Add(1)
			next.ServeHTTP(w, r)
		})
	}
	for scheme, options := range map[string]RegistryOptions{
		"http":  {Wrap: count},
		"https": {TLS: true, Username: "berth", Password: "secret", Wrap: count},
	} {
		t.Run(scheme, func(t *testing.T) {
			requests.Store(0)
			registry := NewRegistry(t, options)
			reference, err := name.ParseReference(registry.Push(t, "team/busybox:1", image), name.Insecure)
			Must(t, err)
			pulled, err := remote.Image(reference, remote.WithTransport(registry.transport),
				remote.WithAuth(&authn.Basic{Username: options.Username, Password: options.Password}))
			Must(t, err)
			got, err := pulled.Digest()
			Must(t, err)
			Same(t, got, want, "pulled")
			if requests.Load() == 0 {
				t.Error("the wrapper saw no request")
			}
		})
	}
}

func TestRegistryRefusesTheWrongPassword(t *testing.T) {
	registry := NewRegistry(t, RegistryOptions{Username: "berth", Password: "secret"})
	reference, err := name.ParseReference(registry.Push(t, "busybox:1", Image(t)), name.Insecure)
	Must(t, err)
	_, err = remote.Image(reference, remote.WithAuth(&authn.Basic{Username: "berth", Password: "wrong"}))
	var refused *transport.Error
	if !errors.As(err, &refused) || refused.StatusCode != http.StatusUnauthorized {
		t.Errorf("got %v, want 401", err)
	}
}

func TestHostsNameSchemeAndAuthority(t *testing.T) {
	registry := NewRegistry(t, RegistryOptions{TLS: true})
	dir := t.TempDir()
	registry.WriteHosts(t, dir)
	hosts, err := os.ReadFile(filepath.Join(dir, registry.Host, "hosts.toml"))
	Must(t, err)
	for _, want := range []string{`server = "https://` + registry.Host + `"`, `ca = "ca.crt"`} {
		if !strings.Contains(string(hosts), want) {
			t.Errorf("hosts.toml lacks %s:\n%s", want, hosts)
		}
	}
	if ca, err := os.ReadFile(filepath.Join(dir, registry.Host, "ca.crt")); err != nil || !bytes.Equal(ca, registry.CA) {
		t.Errorf("ca.crt is not the registry's: %v", err)
	}
}

func TestBusyboxImage(t *testing.T) {
	image := Busybox(t, WithUser("app"), WithLayer(File{Path: "etc/marker", Mode: 0o640, Body: []byte("here"), UID: 7}))
	again, err := Busybox(t, WithUser("app"), WithLayer(File{Path: "etc/marker", Mode: 0o640, Body: []byte("here"), UID: 7})).Digest()
	Must(t, err)
	if digest, err := image.Digest(); err != nil || digest != again {
		t.Errorf("the same image has the digests %s and %s (%v)", digest, again, err)
	}
	config, err := image.ConfigFile()
	Must(t, err)
	if config.Config.User != "app" || config.OS != "linux" || len(config.RootFS.DiffIDs) != 2 {
		t.Errorf("configuration is %+v", config)
	}

	files := map[string]*tar.Header{}
	content := mutate.Extract(image)
	defer content.Close()
	for archive := tar.NewReader(content); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		Must(t, err)
		files[strings.TrimSuffix(header.Name, "/")] = header
	}
	if link := files["bin/sh"]; link == nil || link.Typeflag != tar.TypeLink || link.Linkname != "bin/busybox" {
		t.Errorf("bin/sh is %+v, not a hard link to busybox", link)
	}
	if tmp := files["tmp"]; tmp == nil || tmp.Mode != 0o1777 {
		t.Errorf("tmp is %+v", tmp)
	}
	if marker := files["etc/marker"]; marker == nil || marker.Uid != 7 || marker.Mode != 0o640 {
		t.Errorf("etc/marker is %+v", marker)
	}
}
