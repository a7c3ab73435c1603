package remote

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// leads is the table of a handler whose pods another daemon has.
func leads(name string, to *testbed.Daemon, theirs string) string {
	return fmt.Sprintf("[runtimes.%s]\nendpoint = %q\nremote_handler = %q\n", name, "unix://"+to.Socket, theirs)
}

// berth runs a command of the operator's, which must end with that status, and
// returns all that it says.
func (b *bed) berth(t *testing.T, want int, arguments ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c := exec.CommandContext(ctx, filepath.Join(b.Bin, "berth"), arguments...)
	c.Env = append(os.Environ(), "BERTH_ADMIN_SOCKET="+filepath.Join(b.Dir, "admin.sock"))
	out, err := c.CombinedOutput()
	if c.ProcessState == nil {
		t.Fatal(err)
	}
	if got := c.ProcessState.ExitCode(); got != want {
		t.Fatalf("berth %q ends with %d, want %d:\n%s", arguments, got, want, out)
	}
	return string(out)
}

// row waits until the list of handlers has a line with these words, or none with
// the first of them if it is alone.
func (b *bed) row(t *testing.T, name string, words ...string) {
	t.Helper()
	testbed.Eventually(t, patience, func() error {
		list := b.berth(t, 0, "handlers")
		for line := range strings.Lines(list) {
			fields := strings.Fields(line)
			if len(fields) == 0 || fields[0] != name {
				continue
			}
			if len(words) == 0 {
				return fmt.Errorf("handler %s is there:\n%s", name, list)
			}
			for _, word := range words {
				if !strings.Contains(line, word) {
					return fmt.Errorf("no %q:\n%s", word, list)
				}
			}
			return nil
		}
		if len(words) > 0 {
			return fmt.Errorf("no handler %s:\n%s", name, list)
		}
		return nil
	})
}

// connections counts those that a daemon has accepted.
func connections(t *testing.T, to *testbed.Daemon) (count int) {
	t.Helper()
	file, err := os.Open("/proc/net/unix")
	testbed.Must(t, err)
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		const connected = "03"
		if len(fields) == 8 && fields[5] == connected && fields[7] == to.Socket {
			count++
		}
	}
	return count
}

// connected waits until containerd has so many; one is this test's own.
func (b *bed) connected(t *testing.T, want int) {
	t.Helper()
	testbed.Eventually(t, patience, func() error {
		if now := connections(t, b.other); now != want {
			return fmt.Errorf("%d connections lead to containerd, want %d", now, want)
		}
		return nil
	})
}

// metrics is what Prometheus would read.
func (b *bed) metrics(t *testing.T) string {
	t.Helper()
	client := &http.Client{Timeout: patience, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(b.Dir, "metrics.sock"))
		},
	}}
	response, err := client.Get("http://berth/metrics")
	testbed.Must(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	testbed.Must(t, err)
	return string(text)
}

func (b *bed) pod(t *testing.T, handler string) *testbed.Pod {
	t.Helper()
	return b.Client.RunPod(t, testbed.PodSpec{Handler: handler, Image: b.Image, Command: []string{"sleep", "3600"}})
}

// isOf checks which handler pods are listed under, and that each works.
func (b *bed) isOf(t *testing.T, handlers map[*testbed.Pod]string) {
	t.Helper()
	list, err := b.Client.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
	testbed.Must(t, err)
	listed := map[string]string{}
	for _, p := range list.GetItems() {
		listed[p.GetId()] = p.GetRuntimeHandler()
	}
	for pod, want := range handlers {
		if got := pod.Status(t).GetRuntimeHandler(); got != want || listed[pod.ID] != want {
			t.Errorf("pod %s is of handler %s, and listed under %s; want %s", pod.ID, got, listed[pod.ID], want)
		}
		if got := pod.Container.Exec(t, "echo", "here"); got != "here\n" {
			t.Errorf("pod %s says %q", pod.ID, got)
		}
	}
}

// has says whether a daemon itself has a pod.
func has(t *testing.T, d *testbed.Daemon, pod *testbed.Pod) bool {
	t.Helper()
	_, err := d.Client.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: pod.ID})
	if err != nil && status.Code(err) != codes.NotFound {
		t.Fatal(err)
	}
	return err == nil
}

// TestHandlersOfDaemonsChange changes where handlers lead to while they have pods.
func TestHandlersOfDaemonsChange(t *testing.T) {
	b := newBed(t)
	b.DropIn(t, "60-metrics", fmt.Sprintf("[metrics]\naddress = %q\n", "unix://"+filepath.Join(b.Dir, "metrics.sock")))
	b.Restart(t)
	runc := testbed.Part(t, testbed.Runc)
	second := testbed.StartBerth(t, testbed.Options{Runtimes: map[string]string{"runc": runc}, CNI: testbed.NewCNI(t), Registries: []*testbed.Registry{b.Registry}})
	own, first := b.pod(t, "runc"), b.pod(t, "legacy")

	// One more handler on the daemon: they share one connection.
	if _, err := b.other.Client.Version(t.Context(), &runtimeapi.VersionRequest{}); err != nil { // this test's own counts, too
		t.Fatal(err)
	}
	b.connected(t, 2)
	b.DropIn(t, "51-shared", leads("shared", b.other, ""))
	b.row(t, "shared", "ready")
	b.connected(t, 2)
	shared := b.pod(t, "shared")
	pods := map[*testbed.Pod]string{own: "runc", first: "legacy", shared: "shared"}
	b.isOf(t, pods)

	// Another name: the old one is served to its last pod.
	b.DropIn(t, "50-legacy", leads("a-name", b.other, "runc"))
	b.row(t, "a-name", "ready")
	b.row(t, "legacy", "draining", "no longer configured")
	pods[b.pod(t, "a-name")] = "a-name"
	_, err := b.Client.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: b.Client.SandboxConfig("refused"), RuntimeHandler: "legacy"})
	if status.Code(err) != codes.Unavailable {
		t.Errorf("a pod under a handler that is no longer configured: %v", err)
	}
	b.isOf(t, pods)
	b.Restart(t)
	b.row(t, "legacy", "draining")
	b.isOf(t, pods)
	first.Remove(t)
	delete(pods, first)
	b.row(t, "legacy")

	// Another daemon: pods stay where they are, new ones go there.
	b.DropIn(t, "51-shared", leads("shared", second.Daemon, "runc"))
	testbed.Eventually(t, patience, func() error {
		if show := b.berth(t, 0, "handler", "show", "shared"); !strings.Contains(show, second.Socket) {
			return fmt.Errorf("it leads elsewhere:\n%s", show)
		}
		return nil
	})
	b.row(t, "shared", "ready")
	moved := b.pod(t, "shared")
	pods[moved] = "shared"
	if !has(t, second.Daemon, moved) || !has(t, b.other, shared) {
		t.Error("a pod is not where it should be")
	}
	b.isOf(t, pods)
	b.row(t, "shared", " 2 ")

	b.operate(t, moved)
	b.isOf(t, pods)

	// No handler leads to containerd, and its last pods go.
	testbed.Must(t, os.Remove(filepath.Join(b.Dir, "conf.d", "50-legacy.toml")))
	b.row(t, "a-name", "draining")
	if !strings.Contains(b.metrics(t), `backend="cri:`+b.other.Socket+`"`) {
		t.Error("containerd is not measured though it has pods")
	}
	for pod := range pods {
		if has(t, b.other, pod) {
			pod.Remove(t)
			delete(pods, pod)
		}
	}
	b.row(t, "a-name")
	testbed.Eventually(t, patience, func() error {
		if strings.Contains(b.metrics(t), b.other.Socket) {
			return errors.New("berth measures containerd still")
		}
		return nil
	})
	b.connected(t, 1)
	b.other.Stop(t)
	b.isOf(t, pods)
	b.row(t, "shared", "ready", " 1 ")
}

// operate does to a handler that leads to a daemon what operators do.
func (b *bed) operate(t *testing.T, pod *testbed.Pod) {
	t.Helper()
	refuses := func(why string) {
		t.Helper()
		_, err := b.Client.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: b.Client.SandboxConfig("refused"), RuntimeHandler: "shared"})
		if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), why) {
			t.Errorf("a pod is refused with %v, want %q", err, why)
		}
	}
	b.berth(t, 0, "handler", "cordon", "shared", "--reason", "it is looked at")
	refuses("it is looked at")
	b.berth(t, 0, "handler", "uncordon", "shared")
	if out := b.berth(t, 3, "handler", "drain", "shared", "--timeout", "1s", "--reason", "it moves"); !strings.Contains(out, pod.Config.GetMetadata().GetName()) {
		t.Errorf("a drain does not name what is left:\n%s", out)
	}
	refuses("it moves")
	b.berth(t, 0, "handler", "uncordon", "shared")
	b.berth(t, 0, "handler", "probe", "shared")
	for _, command := range [][]string{
		{"handler", "promote", "shared"}, {"handler", "abort", "shared"},
		{"handler", "probe", "shared", "--self-check"},
	} {
		if out := b.berth(t, 1, command...); !strings.Contains(out, "another daemon") {
			t.Errorf("berth %q says %s", command, out)
		}
	}
	// There is no binary to try. What is refused changes nothing.
	whole, err := os.ReadFile(filepath.Join(b.Dir, "conf.d", "51-shared.toml"))
	testbed.Must(t, err)
	b.DropIn(t, "51-shared", string(whole)+"candidate = { runtime_path = \"/bin/true\", percent = 50 }\n")
	if out := b.berth(t, 2, "reload", "--wait"); !strings.Contains(out, "runtimes.shared.candidate: does not apply to a handler of another CRI daemon") {
		t.Errorf("a candidate is refused with:\n%s", out)
	}
	b.DropIn(t, "51-shared", string(whole))
	b.berth(t, 0, "reload", "--wait")
}
