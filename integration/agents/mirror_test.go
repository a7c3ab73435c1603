package agents

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/labels"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berth-cri/berth/integration/testbed"
	"github.com/berth-cri/berth/pkg/engine/containerdapi"
)

// mirror serves a node's images over the distribution protocol, as mirrors between nodes do. It
// reads images and content through containerd's client.
type mirror struct {
	client *client.Client
	blobs  atomic.Int64
}

func (m *mirror) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx := namespaces.WithNamespace(r.Context(), containerdapi.Namespace)
	if err := m.serve(ctx, w, r); err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
	}
}

func (m *mirror) serve(ctx context.Context, w http.ResponseWriter, r *http.Request) error {
	path, ok := strings.CutPrefix(r.URL.Path, "/v2/")
	if !ok || path == "" {
		return nil
	}
	var desc imagespec.Descriptor
	if name, ref, ok := strings.Cut(path, "/manifests/"); ok && !strings.HasPrefix(ref, "sha256:") {
		img, err := m.client.ImageService().Get(ctx, r.URL.Query().Get("ns")+"/"+name+":"+ref)
		if err != nil {
			return err
		}
		desc = img.Target
	} else {
		d, err := digest.Parse(path[strings.LastIndexByte(path, '/')+1:])
		if err != nil {
			return err
		}
		info, err := m.client.ContentStore().Info(ctx, d)
		if err != nil {
			return err
		}
		// A blob is offered only for the repository that it came from.
		if of := info.Labels[labels.LabelDistributionSource+"."+host(r.URL.Query().Get("ns"))]; of == "" || !strings.HasPrefix(path, of+"/") {
			return fmt.Errorf("%s came from the repository %q", d, of)
		}
		desc = imagespec.Descriptor{Digest: d, Size: info.Size, MediaType: "application/octet-stream"}
		if ok {
			desc.MediaType = imagespec.MediaTypeImageManifest
		}
	}
	w.Header().Set("Content-Type", desc.MediaType)
	w.Header().Set("Docker-Content-Digest", desc.Digest.String())
	w.Header().Set("Content-Length", fmt.Sprint(desc.Size))
	if r.Method == http.MethodHead {
		return nil
	}
	blob, err := m.client.ContentStore().ReaderAt(ctx, desc)
	if err != nil {
		return err
	}
	defer blob.Close()
	if strings.Contains(path, "/blobs/") {
		m.blobs.Add(1)
	}
	_, err = io.Copy(w, io.NewSectionReader(blob, 0, desc.Size))
	return err
}

func host(s string) string {
	bare, _, _ := strings.Cut(s, ":")
	return bare
}

// A node pulls an image from another node while the registry does not answer. The mirror reads
// the image through containerd's API of the other node.
func TestMirrorBetweenNodes(t *testing.T) {
	one := newBed(t, "shared", testbed.Options{})
	ref := one.Registry.Push(t, "team/app", testbed.Busybox(t)) + ":latest"
	one.Client.Pull(t, "", ref)
	m := &mirror{client: one.dial(t)}
	server := httptest.NewServer(m)
	t.Cleanup(server.Close)

	two := testbed.StartBerth(t, testbed.Options{Runtimes: map[string]string{"runc": testbed.Part(t, testbed.Runc)}, CNI: testbed.NewCNI(t)})
	dir := filepath.Join(two.HostsDir, one.Registry.Host)
	testbed.Must(t, os.MkdirAll(dir, 0o755))
	// The registry of this node is 127.0.0.1:1, where nothing listens.
	hosts := fmt.Sprintf("server = \"http://127.0.0.1:1\"\n[host.%q]\n  capabilities = [\"pull\", \"resolve\"]\n", server.URL)
	testbed.Must(t, os.WriteFile(filepath.Join(dir, "hosts.toml"), []byte(hosts), 0o600))
	p := two.Client.RunPod(t, testbed.PodSpec{Image: ref, Command: []string{"sleep", "1000"}})
	p.Container.Exec(t, "ls", "/")
	if m.blobs.Load() == 0 {
		t.Error("no blob came from the other node")
	}
}
