package cli

import (
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-cri/berth/integration/testbed"
)

// listed is an image in the JSON of "berth image list".
type listed struct {
	ID         string   `json:"id"`
	RepoTags   []string `json:"repoTags"`
	Size       uint64   `json:"size"`
	Pinned     bool     `json:"pinned"`
	Containers int      `json:"containers"`
}

func (n *node) images(t *testing.T) []listed {
	t.Helper()
	out, _ := n.berth(t, 0, "image", "list", "-o", "json")
	var all struct {
		Images []listed `json:"images"`
	}
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	return all.Images
}

// An operator lists and inspects images, moves one to another node as a file, and prunes unused
// images.
func TestImages(t *testing.T) {
	n := newNode(t)
	pod := n.Client.RunPod(t, testbed.PodSpec{Image: n.Image, Command: []string{"sleep", "3600"}})
	all := n.images(t)
	if len(all) != 1 || len(all[0].RepoTags) != 1 || all[0].RepoTags[0] != n.Image || all[0].Containers != 1 || all[0].Size == 0 {
		t.Fatalf("the images are %+v, want only %s, used by 1 container", all, n.Image)
	}
	out, _ := n.berth(t, 0, "image", "ls")
	has(t, out, "IMAGE", n.Image, "MiB", "1")
	out, _ = n.berth(t, 0, "image", "list", "-q")
	testbed.Same(t, out, all[0].ID+"\n", "the IDs are")
	out, _ = n.berth(t, 0, "image", "list", "--pulling")
	has(t, out, "SNAPSHOTTER")
	out, _ = n.berth(t, 0, "image", "inspect", n.Image)
	has(t, out, all[0].ID, `"imageSpec"`, `"diff_ids"`)
	out, _ = n.berth(t, 0, "image", "inspect", all[0].ID[len("sha256:"):][:12], "-o", "yaml")
	has(t, out, "chainID: sha256:")

	second := n.Registry.Push(t, "cli/second:1", testbed.Busybox(t))
	out, said := n.berth(t, 0, "image", "pull", second)
	if strings.TrimSpace(out) != all[0].ID {
		t.Errorf("pull prints %q, want %s", out, all[0].ID)
	}
	has(t, said, "pulled in")
	if out, said = n.berth(t, 0, "image", "pull", "--quiet", "--handler", "runc", second); strings.TrimSpace(out) != all[0].ID || said != "" {
		t.Errorf("a quiet pull prints %q, and on stderr %q, want only %s", out, said, all[0].ID)
	}
	_, said = n.berth(t, 1, "image", "pull", n.Registry.Host+"/cli/nothing:1")
	has(t, said, "check name and tag")
	_, said = n.berth(t, 2, "image", "pull", "--handler", "rnuc", second)
	has(t, said, "rnuc", "runc")
	_, said = n.berth(t, 2, "image", "pull", "--creds-file", filepath.Join(n.Dir, "nothing"), second)
	has(t, said, "no such file")

	file := filepath.Join(n.Dir, "images.tar")
	n.berth(t, 0, "image", "export", n.Image, "--file", file)
	_, said = n.berth(t, 1, "image", "export", "nothing:1", "--file", filepath.Join(n.Dir, "other.tar"))
	has(t, said, "not on this node")
	if strings.Contains(said, "rpc error") {
		t.Errorf("the error of export has the text of gRPC: %q", said)
	}
	if left, err := filepath.Glob(filepath.Join(n.Dir, ".other.tar*")); err != nil || len(left) > 0 {
		t.Errorf("a failed export left %v, %v", left, err)
	}

	other := newNode(t)
	out, _ = other.berth(t, 0, "image", "rm", other.Image, "-o", "json")
	has(t, out, `"removed": [`, other.Image)
	if got := other.images(t); len(got) != 0 {
		t.Fatalf("after the removal the images are %+v, want none", got)
	}
	out, _ = other.berth(t, 0, "image", "import", file)
	has(t, out, "imported "+n.Image)
	if got := other.images(t); len(got) != 1 || got[0].ID != all[0].ID {
		t.Errorf("after the import the images are %+v, want only %s", got, all[0].ID)
	}
	out, _ = other.berth(t, 0, "image", "import", "--name", "registry.example/mine:2", "--handler", "runc", file, "-o", "json")
	has(t, out, "registry.example/mine:2")
	imported := other.Client.RunPod(t, testbed.PodSpec{Image: "registry.example/mine:2", Command: []string{"sleep", "3600"}})
	imported.Remove(t)

	whole, err := os.ReadFile(file)
	testbed.Must(t, err)
	testbed.Must(t, os.WriteFile(file, whole[:len(whole)/2], 0o600))
	_, said = other.berth(t, 2, "image", "import", file)
	has(t, said, "not whole")
	_, said = other.berth(t, 2, "image", "import", filepath.Join(other.Bin, "berth"))
	has(t, said, "not an archive of images")
	_, said = other.berth(t, 1, "image", "import", filepath.Join(n.Dir, "nothing"))
	has(t, said, "no such file")

	out, _ = other.berth(t, 0, "image", "prune", "--dry-run")
	has(t, out, "would remove", "registry.example/mine:2")
	other.berth(t, 0, "image", "prune")
	out, _ = other.berth(t, 0, "image", "prune", "--dry-run")
	if strings.TrimSpace(out) != "nothing to remove" {
		t.Errorf("with nothing to prune it prints %q", out)
	}
	if got := other.images(t); len(got) != 0 {
		t.Errorf("after pruning, the images are %+v, want none", got)
	}
	_, said = other.berth(t, 1, "image", "rm", other.Image)
	has(t, said, `the image is not on this node; "berth image list" lists the images`)
	// An image of a container is not pruned.
	n.berth(t, 0, "image", "prune")
	if got := n.images(t); len(got) != 1 {
		t.Errorf("after pruning, the images are %+v, want the image of the container", got)
	}
	pod.Remove(t)
}

// A removal lists every removed name. An image of a container is only removed with --force.
func TestRemovalNamesAll(t *testing.T) {
	n := newNode(t)
	second := n.Registry.Push(t, "cli/second:1", testbed.Busybox(t))
	n.berth(t, 0, "image", "pull", second)
	pod := n.Client.RunPod(t, testbed.PodSpec{Image: n.Image, Command: []string{"sleep", "3600"}})
	_, said := n.berth(t, 1, "image", "rm", second)
	has(t, said, "1 container", n.Image, second, "--force")
	if all := n.images(t); len(all) != 1 || len(all[0].RepoTags) != 2 {
		t.Fatalf("the images are %+v, want one with two names", all)
	}
	out, _ := n.berth(t, 0, "image", "rm", "--force", second)
	has(t, out, "removed "+n.Image+"\n", "removed "+second+"\n", "@sha256:")
	if all := n.images(t); len(all) != 0 {
		t.Errorf("after rm --force the images are %+v, want none", all)
	}
	pod.Remove(t)
}

// An error of a pull names the flag to use: --plain-http for a registry without TLS, --creds-file
// for one that needs a password.
func TestPullsFromOddRegistries(t *testing.T) {
	n := newNode(t)
	image := n.Registry.Push(t, "cli/plain:1", testbed.Busybox(t, testbed.WithLayer(testbed.File{Path: "own", Mode: 0o644, Body: []byte("own")})))
	front := plainFront(t, n.Registry.Host)
	name := front + strings.TrimPrefix(image, n.Registry.Host)
	_, said := n.berth(t, 1, "image", "pull", name)
	has(t, said, "answers plain HTTP", "--plain-http", "hosts.toml")
	if strings.Contains(said, "cannot reach") {
		t.Errorf("the error reports an unreachable registry: %q", said)
	}
	out, _ := n.berth(t, 0, "image", "pull", "--quiet", "--plain-http", name)
	has(t, out, "sha256:")
	// --plain-http was for that pull only.
	n.berth(t, 1, "image", "pull", name)

	private := testbed.NewRegistry(t, testbed.RegistryOptions{Username: "user", Password: "secret"})
	_, said = n.berth(t, 1, "image", "pull", private.Push(t, "cli/private:1", testbed.Busybox(t)))
	has(t, said, "--creds-file")
}

// plainFront is an HTTP proxy to a registry at an address that is not loopback: for loopback,
// berth would use HTTP without the flag.
func plainFront(t *testing.T, registry string) string {
	t.Helper()
	addresses, err := net.InterfaceAddrs()
	testbed.Must(t, err)
	for _, a := range addresses {
		ip, ok := a.(*net.IPNet)
		if !ok || ip.IP.IsLoopback() || ip.IP.To4() == nil {
			continue
		}
		listener, err := net.Listen("tcp", net.JoinHostPort(ip.IP.String(), "0"))
		testbed.Must(t, err)
		server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: registry})}}
		server.Start()
		t.Cleanup(server.Close)
		return listener.Addr().String()
	}
	t.Fatal("this machine has only loopback addresses")
	return ""
}
