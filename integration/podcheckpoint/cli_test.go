package podcheckpoint

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// berth runs a berth command, and returns its exit status, standard output and standard error.
func (b *bed) berth(t *testing.T, args ...string) (status int, out, mistakes string) {
	t.Helper()
	command := exec.CommandContext(testbed.Within(t, patience), filepath.Join(b.Bin, "berth"), args...)
	command.Env = append(os.Environ(), "BERTH_ADMIN_SOCKET="+filepath.Join(filepath.Dir(b.Socket), "admin.sock"))
	var stdout, stderr strings.Builder
	command.Stdout, command.Stderr = &stdout, &stderr
	err := command.Run()
	if command.ProcessState == nil {
		t.Fatalf("berth %q: %v", args, err)
	}
	return command.ProcessState.ExitCode(), stdout.String(), stderr.String()
}

// must runs a berth command that must succeed, and returns its standard output.
func (b *bed) must(t *testing.T, args ...string) string {
	t.Helper()
	status, out, mistakes := b.berth(t, args...)
	if status != 0 {
		t.Fatalf("berth %q: exit status %d\n%s%s", args, status, out, mistakes)
	}
	return out
}

// TestOperators runs the commands of an operator who checkpoints, inspects and restores a pod.
func TestOperators(t *testing.T) {
	b := newBed(t, gvisor, testbed.Options{})
	p := b.run(t, "one", "two")
	p.reaches(t, 3)
	parent := t.TempDir()
	dir := filepath.Join(parent, "notebook")
	name := "testbed/" + p.Config.GetMetadata().GetName()
	if out := b.must(t, "pod", "checkpoint", name, "--to", dir); !strings.HasPrefix(out, dir+": ") || !strings.Contains(out, "one, two") && !strings.Contains(out, "two, one") {
		t.Errorf("berth pod checkpoint prints %q", out)
	}
	if status, _, mistakes := b.berth(t, "pod", "checkpoint", p.ID[:12], "--to", dir); status == 0 || !strings.Contains(mistakes, "is not empty") {
		t.Errorf("checkpoint into a full directory: exit status %d, %s", status, mistakes)
	}
	none := filepath.Join(parent, "none")
	if status, _, mistakes := b.berth(t, "pod", "checkpoint", "testbed/nobody", "--to", none); status == 0 || !strings.Contains(mistakes, "berth pods") {
		t.Errorf("checkpoint of a pod that does not exist: exit status %d, %s", status, mistakes)
	}
	if _, err := os.Stat(none); !os.IsNotExist(err) {
		t.Errorf("the failed checkpoint created its directory: %v", err)
	}
	if out := b.must(t, "checkpoint", "ls", parent); !strings.Contains(out, dir) || !strings.Contains(out, "runsc") {
		t.Errorf("berth checkpoint ls prints %s", out)
	}
	if out := b.must(t, "checkpoint", "inspect", "--verify", dir); !strings.Contains(out, name) || !strings.Contains(out, "pages.img") || !strings.Contains(out, "verified:") {
		t.Errorf("berth checkpoint inspect --verify prints %s", out)
	}
	if status, _, mistakes := b.berth(t, "pod", "restore", dir); status != 2 || !strings.Contains(mistakes, "--name or --replace is needed") {
		t.Errorf("restore without --name: exit status %d, %s", status, mistakes)
	}
	if status, _, mistakes := b.berth(t, "pod", "restore", dir, "--name", p.Config.GetMetadata().GetName()); status != 1 || !strings.Contains(mistakes, "exists on this node") {
		t.Errorf("restore under the name of a running pod: exit status %d, %s", status, mistakes)
	}
	b.replaced(t, p, dir)

	var made struct {
		Pod        string
		Started    bool
		Containers []struct{ ID, Name string }
	}
	out := b.must(t, "pod", "restore", dir, "--name", "notebook-2", "--log-directory", filepath.Join(b.Dir, "woken"), "-o", "json")
	if err := json.Unmarshal([]byte(out), &made); err != nil || !made.Started || len(made.Containers) != 2 {
		t.Fatalf("berth pod restore prints %s, %v", out, err)
	}
	pods, err := b.Client.ListPodSandbox(testbed.Within(t, patience), &runtimeapi.ListPodSandboxRequest{})
	if err != nil || len(pods.GetItems()) != 1 || pods.GetItems()[0].GetMetadata().GetName() != "notebook-2" {
		t.Errorf("pods: %v, %v, want only notebook-2", pods, err)
	}
	for _, c := range made.Containers {
		testbed.Eventually(t, patience, func() error {
			_, err := os.Stat(filepath.Join(b.Dir, "woken", c.Name, "0.log"))
			return err
		})
	}
	pages := filepath.Join(dir, "images", "pages.img")
	text := value(os.ReadFile(pages))(t)
	text[len(text)/2] ^= 1
	testbed.Must(t, os.WriteFile(pages, text, 0o600))
	if status, _, mistakes := b.berth(t, "checkpoint", "inspect", "--verify", dir); status != 3 || !strings.Contains(mistakes, "pages.img was changed") {
		t.Errorf("inspect of a damaged checkpoint: exit status %d, %s", status, mistakes)
	}
	if status, _, mistakes := b.berth(t, "pod", "restore", dir, "--name", "notebook-3"); status == 0 || !strings.Contains(mistakes, "damaged") {
		t.Errorf("restore from a damaged checkpoint: exit status %d, %s", status, mistakes)
	}
	b.must(t, "checkpoint", "rm", dir)
	if left := files(t, parent); len(left) > 0 {
		t.Errorf("after berth checkpoint rm: files are left: %q", left)
	}
}

// replaced restores a pod with --replace twice, and removes it. Each time the replaced pod and its
// logs must be gone. A regression test: both pods, and later the old logs, once stayed.
func (b *bed) replaced(t *testing.T, p *pod, dir string) {
	t.Helper()
	metadata := p.Config.GetMetadata()
	logs := func(uid string) string {
		return filepath.Join("/var/log/pods", strings.Join([]string{metadata.GetNamespace(), metadata.GetName(), uid}, "_"))
	}
	t.Cleanup(func() {
		left, _ := filepath.Glob(logs("*"))
		for _, dir := range left {
			_ = os.RemoveAll(dir)
		}
	})
	testbed.Must(t, os.MkdirAll(logs(metadata.GetUid()), 0o755))
	var made struct{ Pod string }
	for range 2 { // replaces p, and then the restored pod
		testbed.Must(t, json.Unmarshal([]byte(b.must(t, "pod", "restore", dir, "--replace", "-o", "json")), &made))
		pods, err := b.Client.ListPodSandbox(testbed.Within(t, patience), &runtimeapi.ListPodSandboxRequest{})
		if err != nil || len(pods.GetItems()) != 1 || pods.GetItems()[0].GetId() != made.Pod || pods.GetItems()[0].GetMetadata().GetName() != metadata.GetName() {
			t.Fatalf("pods: %v, %v, want only %s", pods, err, made.Pod)
		}
		want := logs(pods.GetItems()[0].GetMetadata().GetUid())
		testbed.Eventually(t, patience, func() error {
			if left, err := filepath.Glob(logs("*")); err != nil || len(left) != 1 || left[0] != want {
				return fmt.Errorf("log directories: %q, want only %q (%v)", left, want, err)
			}
			return nil
		})
	}
	if _, err := b.Client.StopPodSandbox(testbed.Within(t, patience), &runtimeapi.StopPodSandboxRequest{PodSandboxId: made.Pod}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Client.RemovePodSandbox(testbed.Within(t, patience), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: made.Pod}); err != nil {
		t.Fatal(err)
	}
}

// TestCompressed: a compressed checkpoint is smaller, and is restored like any other.
func TestCompressed(t *testing.T) {
	b := newBed(t, gvisor, testbed.Options{})
	p := b.run(t, "one")
	p.reaches(t, 3)
	sizes := map[bool]int64{}
	for _, compress := range []bool{false, true} {
		dir := filepath.Join(t.TempDir(), "checkpoint")
		args := []string{"pod", "checkpoint", p.ID, "--to", dir, "-o", "json"}
		if compress {
			args = append(args, "--compress")
		}
		var made struct{ Size int64 }
		testbed.Must(t, json.Unmarshal([]byte(b.must(t, args...)), &made))
		sizes[compress] = made.Size
		written := p.members[0].count(t)
		b.restored(t, p, dir).reaches(t, written)
	}
	if sizes[true] >= sizes[false]*3/4 {
		t.Errorf("the compressed checkpoint has %d bytes, the other %d", sizes[true], sizes[false])
	}
}

// TestRegistry pushes a checkpoint to a registry, pulls it into another directory, and restores
// the pod from there.
func TestRegistry(t *testing.T) {
	b := newBed(t, gvisor, testbed.Options{})
	p := b.run(t, "one", "two")
	p.reaches(t, 3)
	dir := p.checkpointed(t)
	b.straightToRegistry(t, p)
	p.Remove(t)
	name := strings.TrimSuffix(b.Image, "podcheckpoint/busybox:1") + "checkpoints/notebook:warm"
	out := b.must(t, "checkpoint", "push", dir, name, "--plain-http", "-o", "json")
	var pushed struct{ Name, Digest string }
	if err := json.Unmarshal([]byte(out), &pushed); err != nil || pushed.Name != name || !strings.HasPrefix(pushed.Digest, "sha256:") {
		t.Fatalf("berth checkpoint push prints %s, %v", out, err)
	}
	if again := b.must(t, "checkpoint", "push", dir, name, "--plain-http", "-o", "json"); again != out {
		t.Errorf("the second push prints %s, want %s", again, out)
	}
	back := filepath.Join(t.TempDir(), "back")
	b.must(t, "checkpoint", "pull", strings.TrimSuffix(name, ":warm")+"@"+pushed.Digest, back, "--plain-http")
	b.must(t, "checkpoint", "inspect", "--verify", back)
	b.restored(t, p, back).reaches(t, 4)
	if status, _, mistakes := b.berth(t, "checkpoint", "pull", name, back, "--plain-http"); status == 0 || !strings.Contains(mistakes, "exists") {
		t.Errorf("pull into an existing directory: exit status %d, %s", status, mistakes)
	}
	other := filepath.Join(filepath.Dir(back), "other")
	if status, _, mistakes := b.berth(t, "checkpoint", "pull", b.Image, other, "--plain-http"); status == 0 || !strings.Contains(mistakes, "not the checkpoint of a pod") {
		t.Errorf("pull of an ordinary image: exit status %d, %s", status, mistakes)
	}
	if status, _, mistakes := b.berth(t, "checkpoint", "pull", name+"-none", other, "--plain-http"); status == 0 || !strings.Contains(mistakes, "not found") {
		t.Errorf("pull of a missing tag: exit status %d, %s", status, mistakes)
	}
	if _, err := os.Stat(other); !os.IsNotExist(err) {
		t.Errorf("a pull that failed left its directory: %v", err)
	}
}

// straightToRegistry runs `berth pod checkpoint --to` with the name of a registry. A checkpoint
// may stay on the node only if its push failed.
func (b *bed) straightToRegistry(t *testing.T, p *pod) {
	t.Helper()
	host := strings.TrimSuffix(b.Image, "podcheckpoint/busybox:1")
	out := b.must(t, "pod", "checkpoint", p.ID, "--to", host+"checkpoints/straight:1", "--plain-http")
	if !strings.HasPrefix(out, host+"checkpoints/straight:1 sha256:") {
		t.Errorf("berth pod checkpoint prints %q", out)
	}
	back := filepath.Join(t.TempDir(), "straight")
	b.must(t, "checkpoint", "pull", host+"checkpoints/straight:1", back, "--plain-http")
	b.must(t, "checkpoint", "inspect", "--verify", back)
	kept := filepath.Join(b.Root, "pod-checkpoints", "*")
	if left, _ := filepath.Glob(kept); len(left) > 0 {
		t.Errorf("checkpoints are left on the node: %q", left)
	}
	status, _, mistakes := b.berth(t, "pod", "checkpoint", p.ID, "--to", host+"checkpoints/straight:2", "--creds-file", "/none")
	if left, _ := filepath.Glob(kept); status == 0 || len(left) > 0 {
		t.Errorf("missing credentials file: exit status %d, %s; left on the node: %q", status, mistakes, left)
	}
	status, _, mistakes = b.berth(t, "pod", "checkpoint", p.ID, "--to", "127.0.0.1:1/checkpoints/straight:1", "--plain-http")
	if status == 0 || !strings.Contains(mistakes, "berth checkpoint push") {
		t.Errorf("unreachable registry: exit status %d, %s", status, mistakes)
	}
	left, _ := filepath.Glob(kept)
	if len(left) != 1 || !strings.Contains(mistakes, left[0]) {
		t.Fatalf("checkpoints on the node: %q, want one, named in the error %s", left, mistakes)
	}
	b.must(t, "checkpoint", "rm", left[0])
}
