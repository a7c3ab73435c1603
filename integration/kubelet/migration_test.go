package kubelet

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// migration is a node whose pods are run by containerd at first.
type migration struct {
	*Cluster
	berth      *testbed.Berth
	containerd *testbed.Daemon
	n          *Namespace
}

// TestPainNoMigrationBetweenDaemons moves a node from containerd to berth's own engine, as
// docs/migration.md describes, under a kubelet that must not restart or replace a pod for it.
func TestPainNoMigrationBetweenDaemons(t *testing.T) {
	registry, cni := testbed.NewRegistry(t, testbed.RegistryOptions{}), testbed.NewCNI(t)
	runc, crun := testbed.Part(t, testbed.Runc), testbed.Part(t, testbed.Crun)
	m := &migration{}
	m.containerd = testbed.StartContainerd(t, testbed.ContainerdOptions{
		Runtimes: map[string]string{"runc": runc, "second": runc}, DefaultRuntime: "runc", CNI: cni, Registry: registry,
	})
	m.berth = testbed.StartBerth(t, testbed.Options{
		Runtimes: map[string]string{"runc": runc}, CNI: cni, Registries: []*testbed.Registry{registry},
	})
	m.berth.Stop(t) // berth is not installed yet
	m.Cluster = Start(t, Options{Berth: m.berth, Runtime: m.containerd})
	m.Kubectl(t, "{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: second}, handler: second}", "create", "--filename=-")
	m.n = m.NewNamespace(t, registry.Push(t, "kubelet/busybox:1", testbed.Busybox(t)))
	m.deploy(t, "first", "null")
	m.deploy(t, "second", "second")
	before := m.pods(t)

	// The kubelet's endpoint becomes berth's.
	m.drop(t, "50-containerd", m.remote("containerd", ""))
	m.drop(t, "60-node", "default_runtime = \"containerd\"\n\n"+m.remote("second", "second"))
	m.berth.Start(t)
	m.RestartKubelet(t, m.berth.Socket)
	m.same(t, before)

	// New pods run in berth's engine. The existing pods stay in containerd.
	m.drop(t, "60-node", fmt.Sprintf("default_runtime = \"runc\"\n\n[runtimes.second]\nruntime_path = %q\n", crun))
	m.says(t, `"default":"runc"`)
	m.same(t, before)

	// A rolling restart replaces each pod by one in berth's engine.
	for _, name := range []string{"first", "second"} {
		m.n.Kubectl(t, "rollout", "restart", "deployment/"+name)
		m.n.Kubectl(t, "rollout", "status", "deployment/"+name, "--timeout=2m")
	}
	m.empties(t)
	before = m.pods(t)

	// containerd is not needed any more.
	testbed.Must(t, os.Remove(filepath.Join(m.berth.Dir, "conf.d", "50-containerd.toml")))
	testbed.Eventually(t, patience, func() error {
		s, err := m.berth.Client.Status(t.Context(), &runtimeapi.StatusRequest{Verbose: true})
		if err != nil || strings.Contains(s.String(), m.containerd.Socket) || slices.ContainsFunc(s.GetRuntimeHandlers(), isContainerd) {
			return fmt.Errorf("berth still uses containerd: %v, %w", s, err)
		}
		return nil
	})
	m.containerd.Stop(t)
	m.same(t, before)
	m.RestartKubelet(t, m.berth.Socket)
	m.same(t, before)
}

func isContainerd(h *runtimeapi.RuntimeHandler) bool { return h.GetName() == "containerd" }

// deploy runs a deployment with one pod. Its container is restarted if an exec probe fails.
func (m *migration) deploy(t *testing.T, name, class string) {
	t.Helper()
	m.n.Create(t, fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s}
spec:
  selector: {matchLabels: {app: %[1]s}}
  strategy: {rollingUpdate: {maxUnavailable: 0, maxSurge: 1}}
  template:
    metadata: {labels: {app: %[1]s, migrates: "yes"}, annotations: {note: kept}}
    spec:
      runtimeClassName: %[2]s
      terminationGracePeriodSeconds: 0
      initContainers:
      - {name: first, image: IMAGE, command: ["true"]}
      containers:
      - name: main
        image: IMAGE
        command: [sh, -c, 'echo from $HOSTNAME > /tmp/index.html; httpd -p 8080 -h /tmp; i=0; while :; do echo tick $i; i=$((i+1)); sleep 0.2; done']
        livenessProbe: {exec: {command: ["true"]}, periodSeconds: 1, timeoutSeconds: 20}
        readinessProbe: {httpGet: {path: /index.html, port: 8080}, periodSeconds: 1}
`, name, class))
	m.n.Kubectl(t, "rollout", "status", "deployment/"+name, "--timeout=2m")
}

// remote is the configuration of a handler whose pods containerd runs, under the handler that has
// the name theirs in containerd's configuration.
func (m *migration) remote(name, theirs string) string {
	return fmt.Sprintf("[runtimes.%s]\nendpoint = %q\nremote_handler = %q\n", name, "unix://"+m.containerd.Socket, theirs)
}

// drop replaces a drop-in of berth's configuration in one step.
func (m *migration) drop(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join(m.berth.Dir, "conf.d", name+".toml")
	testbed.Must(t, os.WriteFile(path+".new", []byte(text), 0o600))
	testbed.Must(t, os.Rename(path+".new", path))
}

// says waits until the handlers in berth's verbose status contain a word.
func (m *migration) says(t *testing.T, word string) {
	t.Helper()
	testbed.Eventually(t, patience, func() error {
		s, err := m.berth.Client.Status(t.Context(), &runtimeapi.StatusRequest{Verbose: true})
		if err == nil && !strings.Contains(s.GetInfo()["handlers"], word) {
			err = fmt.Errorf("no %s in %s", word, s.GetInfo()["handlers"])
		}
		return err
	})
}

// pods returns a line per container of the pods, which changes if the container is restarted or
// replaced.
func (m *migration) pods(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, pod := range m.n.podsOf(t, "migrates=yes") {
		for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
			began := s.State.Running
			if began == nil {
				began = &corev1.ContainerStateRunning{}
			}
			all = append(all, fmt.Sprintf("%s %s %s restarts %d since %s ip %s", pod.Name, s.Name, containerID(s), s.RestartCount, began.StartedAt.UTC(), pod.Status.PodIP))
		}
	}
	slices.Sort(all)
	return all
}

// same checks that the pods are the same as before, that the kubelet reports them under berth, and
// that exec, logs and port-forward work.
func (m *migration) same(t *testing.T, before []string) {
	t.Helper()
	for _, pod := range m.n.podsOf(t, "migrates=yes") {
		m.n.WaitPod(t, pod.Name, func(pod *corev1.Pod) error {
			if id := pod.Status.ContainerStatuses[0].ContainerID; !strings.HasPrefix(id, "berth://") {
				return fmt.Errorf("the container's ID is %s, want berth://…", id)
			}
			return Ready(pod)
		})
		testbed.Eventually(t, patience, func() error { // a kubelet that has just started may not know the pod yet
			got, stderr, err := m.n.TryKubectl(t, "", "exec", "--quiet", pod.Name, "--", "cat", "/tmp/index.html")
			if err != nil || got != "from "+pod.Name+"\n" {
				return fmt.Errorf("exec prints %q, %s: %w", got, stderr, err)
			}
			return nil
		})
		m.n.session(t, "logs", "--follow", "--tail=1", "--container=main", pod.Name).wait(t, "tick ")
		portForward(t, m.n, pod.Name)
		noGaps(t, m.n, pod.Name)
		for _, event := range m.n.Events(t, pod.Name) {
			if reason, _, _ := strings.Cut(event, ":"); slices.Contains([]string{"Killing", "SandboxChanged", "BackOff", "Failed"}, reason) {
				t.Errorf("pod %s: %s", pod.Name, event)
			}
		}
	}
	if after := m.pods(t); !slices.Equal(after, before) {
		t.Errorf("the pods changed: now\n%s\nbefore\n%s", strings.Join(after, "\n"), strings.Join(before, "\n"))
	}
}

// empties waits until containerd has no pods. It removes stopped sandboxes, for which the kubelet
// would take up to a minute.
func (m *migration) empties(t *testing.T) {
	t.Helper()
	testbed.Eventually(t, patience, func() error {
		left, err := m.containerd.Client.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
		for _, p := range left.GetItems() {
			if p.GetState() == runtimeapi.PodSandboxState_SANDBOX_NOTREADY {
				_, err = m.berth.Client.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.GetId()})
			}
		}
		if err == nil && len(left.GetItems()) > 0 {
			err = fmt.Errorf("containerd still has pods: %v", left)
		}
		return err
	})
}
