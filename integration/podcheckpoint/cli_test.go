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
	b := newBed(t, testbed.Options{})
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
	b := newBed(t, testbed.Options{})
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
	b := newBed(t, testbed.Options{})
	p := b.run(t, "one", "two")
	p.reaches(t, 3)
	dir := p.checkpointed(t)
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
	b.pulledAs(t, name)
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

// pulledAs pulls a checkpoint as a name of the node.
func (b *bed) pulledAs(t *testing.T, reference string) {
	t.Helper()
	b.must(t, "checkpoint", "pull", reference, "--as", "shop/pulled", "--plain-http")
	b.must(t, "checkpoint", "inspect", "--verify", "shop/pulled")
	for args, want := range map[string]string{
		reference + " --as shop/pulled":                     `has the name "shop/pulled"`,
		reference + " --as ../pulled":                       "cannot be a checkpoint's name",
		reference + "-none --as shop/none":                  "not found",
		reference + " --as shop/none --creds-file=/nowhere": "no such file",
	} {
		if status, _, mistakes := b.berth(t, append([]string{"checkpoint", "pull", "--plain-http"}, strings.Fields(args)...)...); status == 0 || !strings.Contains(mistakes, want) {
			t.Errorf("pull %s: exit status %d, %s", args, status, mistakes)
		}
	}
	b.must(t, "checkpoint", "rm", "shop/pulled")
	if left := b.names(t); len(left) > 0 {
		t.Errorf("files are left: %q", left)
	}
}

// TestNamed: a named checkpoint is used by its name. --replace moves the name, and pods that are
// being restored keep their checkpoint.
func TestNamed(t *testing.T) {
	b := newBed(t, testbed.Options{})
	p := b.run(t, "one", "two")
	p.reaches(t, 3)
	if out := b.must(t, "pod", "checkpoint", p.ID, "--as", "shop/web"); !strings.HasPrefix(out, "shop/web: ") {
		t.Errorf("berth pod checkpoint --as prints %q", out)
	}
	first := b.named(t, "shop/web")
	for args, want := range map[string]string{
		"--as shop/web":               "choose another",
		"--as registry.example/web:1": "cannot be a checkpoint's name",
		"--as ../web":                 "cannot be a checkpoint's name",
		"--replace":                   "name the checkpoint: --as NAME",
		"--as=":                       "name the checkpoint: --as NAME",
		"--as web --to /tmp/web":      "only one of --as, --to",
	} {
		if status, _, mistakes := b.berth(t, append([]string{"pod", "checkpoint", p.ID}, strings.Fields(args)...)...); status == 0 || !strings.Contains(mistakes, want) {
			t.Errorf("pod checkpoint %s: exit status %d, %s", args, status, mistakes)
		}
	}
	if got := b.names(t); len(got) != 1 {
		t.Errorf("the refused checkpoints left %q", got)
	}
	b.must(t, "checkpoint", "inspect", "--verify", "shop/web")
	var made struct{ Pod string }
	testbed.Must(t, json.Unmarshal([]byte(b.must(t, "pod", "restore", "shop/web", "--name", "web-2", "--no-start", "--log-directory", filepath.Join(b.Dir, "woken"), "-o", "json")), &made))
	b.must(t, "pod", "checkpoint", p.ID, "--as", "shop/web", "--replace")
	second := b.named(t, "shop/web")
	if second == first {
		t.Error("--replace did not move the name")
	}
	if status, _, mistakes := b.berth(t, "checkpoint", "rm", first); status == 0 || !strings.Contains(mistakes, "in use") {
		t.Errorf("rm of the replaced checkpoint, which a pod needs: exit status %d, %s", status, mistakes)
	}
	_ = value(b.Client.RemovePodSandbox(testbed.Within(t, patience), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: made.Pod}))(t)
	again := b.created(t, p, b.request(p, second))
	if status, _, mistakes := b.berth(t, "checkpoint", "rm", "shop/web"); status == 0 || !strings.Contains(mistakes, "in use") || b.named(t, "shop/web") != second {
		t.Errorf("rm of a name in use: exit status %d, %s", status, mistakes)
	}
	for _, m := range again.members {
		m.Start(t)
	}
	again.reaches(t, 4)
	b.prunes(t, "--older-than=1ms", second)
	b.must(t, "checkpoint", "rm", "shop/web")
	b.prunes(t, "--keep=1")
	if left := files(t, filepath.Join(b.directory(), "names")); len(left) > 0 {
		t.Errorf("after berth checkpoint rm: names are left: %q", left)
	}
}

// named returns the directory of a name that berth checkpoint list shows, or "".
func (b *bed) named(t *testing.T, name string) string {
	t.Helper()
	var all struct {
		Checkpoints []struct{ Directory, Name, Pod string }
	}
	testbed.Must(t, json.Unmarshal([]byte(b.must(t, "checkpoint", "list", "-o", "json")), &all))
	for _, l := range all.Checkpoints {
		if l.Name == name && l.Pod != "" {
			return l.Directory
		}
	}
	return ""
}
