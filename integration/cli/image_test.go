package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-cri/berth/integration/testbed"
)

// listed is what "berth image ls" has of an image, as JSON.
type listed struct {
	ID         string   `json:"id"`
	RepoTags   []string `json:"repoTags"`
	Size       uint64   `json:"size"`
	Pinned     bool     `json:"pinned"`
	Containers int      `json:"containers"`
}

func (n *node) images(t *testing.T) []listed {
	t.Helper()
	out, _ := n.berth(t, 0, "image", "ls", "-o", "json")
	var all struct {
		Images []listed `json:"images"`
	}
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	return all.Images
}

// An operator looks at images, carries them to a node without a registry, and clears
// away what nobody uses.
func TestImages(t *testing.T) {
	n := newNode(t)
	pod := n.Client.RunPod(t, testbed.PodSpec{Image: n.Image, Command: []string{"sleep", "3600"}})
	all := n.images(t)
	if len(all) != 1 || len(all[0].RepoTags) != 1 || all[0].RepoTags[0] != n.Image || all[0].Containers != 1 || all[0].Size == 0 {
		t.Fatalf("images are %+v", all)
	}
	out, _ := n.berth(t, 0, "image", "ls")
	has(t, out, "IMAGE", n.Image, "MiB", "1")
	out, _ = n.berth(t, 0, "image", "ls", "--pulling")
	has(t, out, "SNAPSHOTTER")
	out, _ = n.berth(t, 0, "image", "inspect", n.Image)
	has(t, out, all[0].ID, `"imageSpec"`, `"diff_ids"`)
	out, _ = n.berth(t, 0, "image", "inspect", all[0].ID[len("sha256:"):][:12], "-o", "yaml")
	has(t, out, "chainID: sha256:")

	second := n.Registry.Push(t, "cli/second:1", testbed.Busybox(t))
	out, said := n.berth(t, 0, "image", "pull", second)
	if strings.TrimSpace(out) != all[0].ID {
		t.Errorf("pull says %q", out)
	}
	has(t, said, "pulled in")
	if out, said = n.berth(t, 0, "image", "pull", "--quiet", "--handler", "runc", second); strings.TrimSpace(out) != all[0].ID || said != "" {
		t.Errorf("a quiet pull says %q and %q", out, said)
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
		t.Errorf("it says %q", said)
	}
	if left, err := filepath.Glob(filepath.Join(n.Dir, ".other.tar*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}

	other := newNode(t)
	other.berth(t, 0, "image", "rm", other.Image)
	if got := other.images(t); len(got) != 0 {
		t.Fatalf("images are %+v", got)
	}
	out, _ = other.berth(t, 0, "image", "import", file)
	has(t, out, "imported "+n.Image)
	if got := other.images(t); len(got) != 1 || got[0].ID != all[0].ID {
		t.Errorf("imported are %+v", got)
	}
	out, _ = other.berth(t, 0, "image", "import", "--name", "registry.example/mine:2", "--handler", "runc", file, "-o", "json")
	has(t, out, "registry.example/mine:2")
	imported := other.Client.RunPod(t, testbed.PodSpec{Image: "registry.example/mine:2", Command: []string{"sleep", "3600"}})
	imported.Remove(t)

	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, whole[:len(whole)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	_, said = other.berth(t, 2, "image", "import", file)
	has(t, said, "not whole")
	_, said = other.berth(t, 2, "image", "import", filepath.Join(other.Bin, "berth"))
	has(t, said, "not an archive of images")
	_, said = other.berth(t, 1, "image", "import", filepath.Join(n.Dir, "nothing"))
	has(t, said, "no such file")

	out, _ = other.berth(t, 0, "image", "prune", "--dry-run")
	has(t, out, "would remove", "registry.example/mine:2")
	other.berth(t, 0, "image", "prune")
	if got := other.images(t); len(got) != 0 {
		t.Errorf("after pruning: %+v", got)
	}
	_, said = other.berth(t, 1, "image", "rm", other.Image)
	has(t, said, "not on this node")
	// What a container has stays.
	n.berth(t, 0, "image", "prune")
	if got := n.images(t); len(got) != 1 {
		t.Errorf("after pruning beside a container: %+v", got)
	}
	pod.Remove(t)
}
