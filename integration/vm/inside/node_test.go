//go:build berth_vm

package inside

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

const (
	socket  = "/run/berth/berth.sock"
	logs    = "/var/log/pods"
	network = `{"cniVersion": "1.0.0", "name": "node", "plugins": [
  {"type": "bridge", "bridge": "node0", "isGateway": true, "ipMasq": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}`
	crun = "[runtimes.crun]\nruntime_path = \"/usr/bin/crun\"\n"
	runc = "[runtimes.runc]\nruntime_path = \"/b/runc\"\n"
	// soon is much longer than systemd needs for any step here.
	soon = time.Minute
)

// both are the handlers of the node, which the text handlers configures. A node of another
// architecture than amd64 has only Debian's crun.
var both, handlers = []string{"runc", "crun"}, runc + crun

func init() {
	if runtime.GOARCH != "amd64" {
		both, handlers = []string{"crun"}, crun
	}
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

func write(t *testing.T, path, text string) {
	t.Helper()
	testbed.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	testbed.Must(t, os.WriteFile(path, []byte(text), 0o600))
}

// unit returns a property of berth.service.
func unit(t *testing.T, property string) string {
	t.Helper()
	return run(t, "systemctl", "show", "--value", "--property="+property, "berth.service")
}

// otherPID waits until the service runs as another process and answers, and returns its PID.
func otherPID(t *testing.T, c *testbed.Client, old string) string {
	t.Helper()
	var now string
	testbed.Eventually(t, soon, func() error {
		now = unit(t, "MainPID")
		if state := unit(t, "ActiveState"); state != "active" || now == old || now == "0" {
			return fmt.Errorf("berth is %s as process %s, want active as another one than %s", state, now, old)
		}
		_, err := c.Version(t.Context(), &runtimeapi.VersionRequest{})
		return err
	})
	return now
}

func dial(t *testing.T) *testbed.Client {
	t.Helper()
	return testbed.Dial(t, socket, logs, "")
}

// pull pushes an image to a registry of the test, pulls it, and returns its name.
func pull(t *testing.T, c *testbed.Client, name string, options ...testbed.ImageOption) string {
	t.Helper()
	registry := testbed.NewRegistry(t, testbed.RegistryOptions{})
	registry.WriteHosts(t, "/etc/berth/hosts.d")
	image := registry.Push(t, name, testbed.Busybox(t, options...))
	c.Pull(t, "", image)
	return image
}

// life identifies a container's first process by its PID and start time.
func life(t *testing.T, c *testbed.Client, id string) string {
	t.Helper()
	r, err := c.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: id, Verbose: true})
	testbed.Must(t, err)
	var info struct {
		PID int `json:"pid"`
	}
	if err := json.Unmarshal([]byte(r.GetInfo()["info"]), &info); err != nil || info.PID == 0 {
		t.Fatalf("the verbose status of the container has no pid: %v: %v", r.GetInfo(), err)
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", info.PID))
	testbed.Mustf(t, err, "read the container's process")
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')'):]))
	return fmt.Sprint(info.PID, " since ", fields[20])
}

// ready waits until both handlers are ready. On a busy machine a runtime may be too slow for the
// first probe, which berth repeats.
func ready(t *testing.T, c *testbed.Client) {
	t.Helper()
	testbed.Eventually(t, soon, func() error {
		status, err := c.Status(t.Context(), &runtimeapi.StatusRequest{Verbose: true})
		if err != nil {
			return err
		}
		var all struct {
			Handlers []struct{ Name, State string }
		}
		if err := json.Unmarshal([]byte(status.GetInfo()["handlers"]), &all); err != nil {
			return err
		}
		states := map[string]string{}
		for _, h := range all.Handlers {
			states[h.Name] = h.State
		}
		for _, handler := range both {
			if states[handler] != "ready" {
				return fmt.Errorf("the states of the handlers are %v", states)
			}
		}
		return nil
	})
}

// make runs a pod without a cleanup, so that the test can leave it to the next one.
func (n *node) make(t *testing.T, handler, image string) {
	t.Helper()
	config := n.client.SandboxConfig(fmt.Sprintf("%s-%d", handler, len(n.Pods)))
	s, err := n.client.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: config, RuntimeHandler: handler})
	testbed.Must(t, err)
	c, err := n.client.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{
		PodSandboxId: s.GetPodSandboxId(), SandboxConfig: config,
		Config: n.client.ContainerConfig("main", image, "sleep", "100000"),
	})
	testbed.Must(t, err)
	if _, err := n.client.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: c.GetContainerId()}); err != nil {
		t.Fatal(err)
	}
	n.Pods = append(n.Pods, &left{Handler: handler, Sandbox: s.GetPodSandboxId(), Container: c.GetContainerId()})
}

// node is the state that one test leaves for the next ones.
type node struct {
	Image string
	Pods  []*left

	client *testbed.Client
}

type left struct{ Handler, Sandbox, Container string }

const memory = "/var/lib/node.json"

// found returns the state that the previous test left.
func found(t *testing.T) *node {
	t.Helper()
	n := &node{client: dial(t)}
	text, err := os.ReadFile(memory)
	testbed.Must(t, err)
	testbed.Must(t, json.Unmarshal(text, n))
	return n
}

// leave writes the state to disk, and flushes it so that it outlives a power cut.
func (n *node) leave(t *testing.T) {
	t.Helper()
	text, err := json.Marshal(n)
	testbed.Must(t, err)
	write(t, memory, string(text))
	run(t, "sync", memory, filepath.Dir(memory))
}

// alive fails unless all pods run, and each container still has the same process.
func (n *node) alive(t *testing.T, lives map[string]string, after string) {
	t.Helper()
	for _, p := range n.Pods {
		testbed.Same(t, life(t, n.client, p.Container), lives[p.Container], "after %s: the process of %s's pod, before %s, is", after, p.Handler, lives[p.Container])
		r, err := n.client.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: p.Container, Cmd: []string{"true"}, Timeout: 60})
		if err != nil || r.GetExitCode() != 0 {
			t.Errorf("after %s: exec in %s's container: %v, %v", after, p.Handler, r, err)
		}
		s, err := n.client.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: p.Sandbox})
		if err != nil || s.GetStatus().GetState() != runtimeapi.PodSandboxState_SANDBOX_READY {
			t.Errorf("after %s: %s's sandbox is %v, %v", after, p.Handler, s.GetStatus().GetState(), err)
		}
	}
}
