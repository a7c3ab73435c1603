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

// leads returns the table of a handler whose pods another daemon runs.
func leads(name string, to *testbed.Daemon, theirs string) string {
	return fmt.Sprintf("[runtimes.%s]\nendpoint = %q\nremote_handler = %q\n", name, "unix://"+to.Socket, theirs)
}

// berth runs a command of berth, which must exit with that status, and returns its output.
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
		t.Fatalf("berth %q exits with %d, want %d:\n%s", arguments, got, want, out)
	}
	return string(out)
}

// row waits until the list of handlers has a handler with these words in its line, or without words
// until it does not have the handler.
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
				return fmt.Errorf("handler %s is still listed:\n%s", name, list)
			}
			for _, word := range words {
				if !strings.Contains(line, word) {
					return fmt.Errorf("the line of handler %s lacks %q:\n%s", name, word, list)
				}
			}
			return nil
		}
		if len(words) > 0 {
			return fmt.Errorf("handler %s is not listed:\n%s", name, list)
		}
		return nil
	})
}

// connections counts the open connections to a daemon's socket.
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

// connected waits until containerd has that many connections, one of which is the test's.
func (b *bed) connected(t *testing.T, want int) {
	t.Helper()
	testbed.Eventually(t, patience, func() error {
		if now := connections(t, b.other); now != want {
			return fmt.Errorf("containerd has %d connections, want %d", now, want)
		}
		return nil
	})
}

// metrics returns berth's metrics.
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

// isOf fails unless each pod has that handler in its status and in the list, and runs commands.
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
			t.Errorf("the handler of pod %s is %s in its status and %s in the list, want %s", pod.ID, got, listed[pod.ID], want)
		}
		if got := pod.Container.Exec(t, "echo", "here"); got != "here\n" {
			t.Errorf("exec in pod %s prints %q", pod.ID, got)
		}
	}
}

// has is whether a daemon runs a pod.
func has(t *testing.T, d *testbed.Daemon, pod *testbed.Pod) bool {
	t.Helper()
	_, err := d.Client.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: pod.ID})
	if err != nil && status.Code(err) != codes.NotFound {
		t.Fatal(err)
	}
	return err == nil
}

// TestHandlersOfDaemonsChange changes names and endpoints of handlers while they have pods.
func TestHandlersOfDaemonsChange(t *testing.T) {
	b := newBed(t)
	b.DropIn(t, "60-metrics", fmt.Sprintf("[metrics]\naddress = %q\n", "unix://"+filepath.Join(b.Dir, "metrics.sock")))
	b.Restart(t)
	runc := testbed.Part(t, testbed.Runc)
	second := testbed.StartBerth(t, testbed.Options{Runtimes: map[string]string{"runc": runc}, CNI: testbed.NewCNI(t), Registries: []*testbed.Registry{b.Registry}})
	own, first := b.pod(t, "runc"), b.pod(t, "legacy")

	// Another handler for the same daemon shares its connection.
	if _, err := b.other.Client.Version(t.Context(), &runtimeapi.VersionRequest{}); err != nil { // opens the test's own connection, which is counted too
		t.Fatal(err)
	}
	b.connected(t, 2)
	b.DropIn(t, "51-shared", leads("shared", b.other, ""))
	b.row(t, "shared", "ready")
	b.connected(t, 2)
	shared := b.pod(t, "shared")
	pods := map[*testbed.Pod]string{own: "runc", first: "legacy", shared: "shared"}
	b.isOf(t, pods)

	// The handler is renamed: the old name drains until its last pod is removed.
	b.DropIn(t, "50-legacy", leads("a-name", b.other, "runc"))
	b.row(t, "a-name", "ready")
	b.row(t, "legacy", "draining", "no longer configured")
	pods[b.pod(t, "a-name")] = "a-name"
	_, err := b.Client.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: b.Client.SandboxConfig("refused"), RuntimeHandler: "legacy"})
	if status.Code(err) != codes.Unavailable {
		t.Errorf("run a pod of a handler that is no longer configured: %v, want unavailable", err)
	}
	b.isOf(t, pods)
	b.Restart(t)
	b.row(t, "legacy", "draining")
	b.isOf(t, pods)
	first.Remove(t)
	delete(pods, first)
	b.row(t, "legacy")

	// The handler gets another daemon: its pods stay on the old one, new pods run on the new one.
	b.DropIn(t, "51-shared", leads("shared", second.Daemon, "runc"))
	testbed.Eventually(t, patience, func() error {
		if show := b.berth(t, 0, "handler", "show", "shared"); !strings.Contains(show, second.Socket) {
			return fmt.Errorf("the handler does not use %s yet:\n%s", second.Socket, show)
		}
		return nil
	})
	b.row(t, "shared", "ready")
	moved := b.pod(t, "shared")
	pods[moved] = "shared"
	if !has(t, second.Daemon, moved) || !has(t, b.other, shared) {
		t.Error("a pod does not run on its daemon")
	}
	b.isOf(t, pods)
	b.row(t, "shared", " 2 ")

	b.operate(t, moved)
	b.isOf(t, pods)

	// The last handler of containerd is removed, then its last pods.
	testbed.Must(t, os.Remove(filepath.Join(b.Dir, "conf.d", "50-legacy.toml")))
	b.row(t, "a-name", "draining")
	if !strings.Contains(b.metrics(t), `backend="cri:`+b.other.Socket+`"`) {
		t.Error("the metrics have no backend containerd while it has pods")
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
			return errors.New("the metrics still have the backend containerd")
		}
		return nil
	})
	b.connected(t, 1)
	b.other.Stop(t)
	b.isOf(t, pods)
	b.row(t, "shared", "ready", " 1 ")
}

// operate runs an operator's commands for a handler of another daemon.
func (b *bed) operate(t *testing.T, pod *testbed.Pod) {
	t.Helper()
	refuses := func(why string) {
		t.Helper()
		_, err := b.Client.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: b.Client.SandboxConfig("refused"), RuntimeHandler: "shared"})
		if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), why) {
			t.Errorf("a pod is refused with %v, want %q", err, why)
		}
	}
	b.berth(t, 0, "handler", "cordon", "shared", "--reason", "for inspection")
	refuses("for inspection")
	b.berth(t, 0, "handler", "uncordon", "shared")
	if out := b.berth(t, 3, "handler", "drain", "shared", "--timeout", "1s", "--reason", "it moves"); !strings.Contains(out, pod.Config.GetMetadata().GetName()) {
		t.Errorf("a drain does not name the pod that is left:\n%s", out)
	}
	refuses("it moves")
	b.berth(t, 0, "handler", "uncordon", "shared")
	b.berth(t, 0, "handler", "probe", "shared")
	for _, command := range [][]string{
		{"handler", "promote", "shared"}, {"handler", "abort", "shared"},
		{"handler", "probe", "shared", "--self-check"},
	} {
		if out := b.berth(t, 1, command...); !strings.Contains(out, "another daemon") {
			t.Errorf("berth %q prints %s", command, out)
		}
	}
	// A candidate is refused, because the handler has no binary.
	whole, err := os.ReadFile(filepath.Join(b.Dir, "conf.d", "51-shared.toml"))
	testbed.Must(t, err)
	b.DropIn(t, "51-shared", string(whole)+"candidate = { runtime_path = \"/bin/true\", percent = 50 }\n")
	if out := b.berth(t, 2, "reload", "--wait"); !strings.Contains(out, "runtimes.shared.candidate: does not apply to a handler of another CRI daemon") {
		t.Errorf("a candidate is refused with:\n%s", out)
	}
	b.DropIn(t, "51-shared", string(whole))
	b.berth(t, 0, "reload", "--wait")
}
