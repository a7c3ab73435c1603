package agents

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-cri/berth/integration/testbed"
)

// TestCtr runs commands of ctr that only read, commands that change pods, which are refused, and
// commands for images.
func TestCtr(t *testing.T) {
	b := newBed(t, "ctr", testbed.Options{})
	p := b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "1000"}})
	id, sandbox := p.Container.ID, p.ID

	has(t, "ctr version", b.must(t, "version"), "+berth.")
	has(t, "ctr namespaces ls", b.must(t, "namespaces", "ls"), "k8s.io")
	has(t, "ctr plugins ls", b.must(t, "plugins", "ls"), "io.containerd.content.v1", "overlayfs", "io.containerd.grpc.v1", "images")
	has(t, "ctr images ls", b.must(t, "images", "ls"), b.Image, "application/vnd.oci.image.manifest.v1+json", "linux/amd64", "io.cri-containerd.image=managed")
	has(t, "ctr images check", b.must(t, "images", "check"), b.Image, "complete")
	has(t, "ctr containers ls", b.must(t, "containers", "ls"), id, sandbox, b.Image)
	has(t, "ctr containers info", b.must(t, "containers", "info", id), `"io.cri-containerd.kind": "container"`, "sleep")
	tasks := b.must(t, "tasks", "ls")
	has(t, "ctr tasks ls", tasks, id, "RUNNING")
	if strings.Contains(tasks, sandbox) {
		t.Errorf("a sandbox without a process has a task:\n%s", tasks)
	}
	has(t, "ctr tasks ps", b.must(t, "tasks", "ps", id), "PID")
	has(t, "ctr tasks metrics", b.must(t, "tasks", "metrics", id), id, "memory")
	has(t, "ctr content ls", b.must(t, "content", "ls"), "containerd.io/gc.ref.content", "containerd.io/distribution.source.")
	has(t, "ctr snapshots ls", b.must(t, "snapshots", "ls"), id, "Committed")
	has(t, "ctr snapshots usage", b.must(t, "snapshots", "usage", id), id)
	has(t, "ctr leases ls", b.must(t, "leases", "ls"), "ID")

	t.Run("another namespace is empty", func(t *testing.T) {
		for _, args := range [][]string{{"images", "ls", "-q"}, {"containers", "ls", "-q"}, {"tasks", "ls", "-q"}, {"content", "ls", "-q"}} {
			for _, ns := range []string{"default", "berth"} {
				out, err := b.ctr(t, append([]string{"-n", ns}, args...)...)
				if err != nil || strings.TrimSpace(out) != "" {
					t.Errorf("ctr -n %s %s: %v, want no output\n%s", ns, strings.Join(args, " "), err, out)
				}
			}
		}
	})
	t.Run("pods belong to the CRI", func(t *testing.T) {
		for _, args := range [][]string{
			{"tasks", "kill", id}, {"tasks", "exec", "--exec-id", "x", id, "true"}, {"tasks", "pause", id}, {"containers", "label", id, "a=b"},
			{"run", "-d", b.Image, "x"}, {"snapshots", "rm", id}, {"snapshots", "prepare", "x"},
		} {
			if out, err := b.ctr(t, append([]string{"-n", "k8s.io"}, args...)...); err == nil || !strings.Contains(out, "the CRI") {
				t.Errorf("ctr %s: %v, want a refusal\n%s", strings.Join(args, " "), err, out)
			}
		}
		if out, err := b.ctr(t, "namespaces", "create", "x"); err == nil || !strings.Contains(out, "one namespace, k8s.io") {
			t.Errorf("ctr namespaces create: %v, want a refusal\n%s", err, out)
		}
		p.Container.Exec(t, "true")
	})
	t.Run("exports, tags and imports images", func(t *testing.T) {
		archive := filepath.Join(t.TempDir(), "image.tar")
		b.must(t, "images", "export", archive, b.Image)
		b.must(t, "images", "tag", b.Image, "registry.test/other:1")
		has(t, "the CRI's list of images", strings.Join(b.tags(t), " "), "registry.test/other:1")
		b.must(t, "images", "rm", "registry.test/other:1")
		if tags := b.tags(t); strings.Contains(strings.Join(tags, " "), "registry.test/other:1") {
			t.Errorf("a removed name is still listed: %s", tags)
		}
		p.Remove(t)
		for _, name := range strings.Fields(b.must(t, "images", "ls", "-q")) {
			b.must(t, "images", "rm", "--sync", name)
		}
		if out := b.must(t, "content", "ls", "-q"); strings.TrimSpace(out) != "" {
			t.Errorf("removed images left content: %s", out)
		}
		for _, how := range [][]string{{"--local"}, {}} {
			b.must(t, append(append([]string{"images", "import"}, how...), archive)...)
			b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "1000"}}).Remove(t)
			b.must(t, "images", "rm", "--sync", b.Image)
		}
	})
	t.Run("pulls", func(t *testing.T) {
		has(t, "ctr images pull", b.must(t, "images", "pull", b.Image), b.Image)
		b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "1000"}}).Remove(t)
		if out, err := b.ctr(t, "-n", "default", "images", "pull", b.Image); err == nil || !strings.Contains(out, "k8s.io") {
			t.Errorf("a pull into another namespace: %v\n%s", err, out)
		}
	})
}

// tags returns the tags of all images that the CRI lists.
func (b *bed) tags(t *testing.T) (tags []string) {
	t.Helper()
	for _, img := range b.images(t) {
		tags = append(tags, img.GetRepoTags()...)
	}
	return tags
}
