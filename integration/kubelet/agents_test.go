package kubelet

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/berth-cri/berth/integration/testbed"
)

// TestCAdvisor: the kubelet's built-in cAdvisor, which reads labels from containerd's API, has the
// same series for a pod under berth as under containerd.
func TestCAdvisor(t *testing.T) {
	var under [2]map[string]bool
	t.Run("berth", func(t *testing.T) { under[0] = seriesUnderBerth(t) })
	t.Run("containerd", func(t *testing.T) { under[1] = seriesUnderContainerd(t) })
	if t.Failed() {
		return
	}
	for _, s := range slices.Sorted(maps.Keys(under[0])) {
		if !under[1][s] {
			t.Errorf("series only under berth: %s", s)
		}
	}
	for _, s := range slices.Sorted(maps.Keys(under[1])) {
		if !under[0][s] {
			t.Errorf("series only under containerd: %s", s)
		}
	}
	t.Logf("%d series under both", len(under[0]))
}

func seriesUnderBerth(t *testing.T) map[string]bool {
	t.Helper()
	// cAdvisor has network series only of a sandbox with a process.
	b := testbed.StartBed(t, "kubelet/busybox:1", testbed.Options{Config: fmt.Sprintf(`
[containerd_api]
socket = %q
[engine]
cgroup_prefix = "cri-containerd"
[runtimes.runc]
runtime_path = %q
sandbox_process = "always"
`, wellKnown(t), testbed.Part(t, testbed.Runc)), DefaultRuntime: "runc"})
	return seriesOf(t, Options{Berth: b.Berth}, b.Image)
}

func seriesUnderContainerd(t *testing.T) map[string]bool {
	t.Helper()
	// This berth only provides directories and a network; containerd runs the pod.
	b := testbed.StartBed(t, "kubelet/busybox:1", testbed.Options{})
	daemon := testbed.StartContainerd(t, testbed.ContainerdOptions{
		Runtimes: map[string]string{"runc": testbed.Part(t, testbed.Runc)}, DefaultRuntime: "runc", CNI: b.CNI, Registry: b.Registry,
		SystemdCgroup: testbed.SystemdCgroups(),
	})
	testbed.Must(t, os.Symlink(daemon.Socket, wellKnown(t)))
	return seriesOf(t, Options{Berth: b.Berth, Runtime: daemon}, b.Image)
}

// wellKnown returns the only path at which a kubelet's cAdvisor looks for containerd's socket. It
// removes files that a killed test left there; a cleanup removes those of this test.
func wellKnown(t *testing.T) string {
	t.Helper()
	const path = "/run/containerd/containerd.sock"
	if conn, err := net.Dial("unix", path); err == nil {
		_ = conn.Close()
		testbed.Missing(t, "%s is taken: a containerd runs on this host", path)
	} else if !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	remove := func() {
		for _, left := range []string{path, path + ".lock"} {
			if err := os.Remove(left); err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Error(err)
			}
		}
	}
	remove()
	testbed.Must(t, os.MkdirAll(filepath.Dir(path), 0o711))
	t.Cleanup(func() {
		remove()
		_ = os.Remove(filepath.Dir(path)) // fails if the directory has other files
	})
	return path
}

// seriesOf runs a pod of two containers, and returns cAdvisor's series of the pod.
func seriesOf(t *testing.T, o Options, image string) map[string]bool {
	t.Helper()
	c := Start(t, o)
	n := c.NewNamespace(t, image)
	n.Create(t, `
apiVersion: v1
kind: Pod
metadata: {name: seen, labels: {app: seen}}
spec:
  containers:
  - {name: main, image: IMAGE, command: [sh, -c, "while :; do echo work; sleep 0.1; done"], resources: {limits: {memory: 64Mi, cpu: 500m}}}
  - {name: side, image: IMAGE, command: [sleep, "1000"]}
`)
	n.WaitReady(t, "seen")
	var last map[string]bool
	testbed.Eventually(t, patience, func() error {
		text, stderr, err := n.TryKubectl(t, "", "get", "--raw", "/api/v1/nodes/"+NodeName+"/proxy/metrics/cadvisor")
		if err != nil {
			return fmt.Errorf("metrics: %w: %s", err, stderr)
		}
		before := last
		last = withoutRun(text, n.Name, "seen")
		for _, want := range []string{
			`container_cpu_usage_seconds_total{container="main"`, `container_memory_working_set_bytes{container="side"`,
			`container_network_receive_bytes_total{container=""`, `container_start_time_seconds{container=""`,
		} {
			if !slices.ContainsFunc(slices.Collect(maps.Keys(last)), func(s string) bool { return strings.HasPrefix(s, want) }) {
				return fmt.Errorf("/metrics/cadvisor has no %s in:\n%s", want, strings.Join(slices.Sorted(maps.Keys(last)), "\n"))
			}
		}
		if !maps.Equal(before, last) {
			return errors.New("the series still change")
		}
		return nil
	})
	return last
}

var (
	ids    = regexp.MustCompile(`[0-9a-f]{64}`)
	uids   = regexp.MustCompile(`pod[0-9a-f]{8}[-_][0-9a-f-_]{27}`)
	parent = regexp.MustCompile(`id="/[^"]*/kubepods`)
	pauses = regexp.MustCompile(`image="(berth.dev/pause|[^"]*/testbed/pause:1)"`)
	hosts  = regexp.MustCompile(`image="[^"/]+/`)
)

// withoutRun returns the series of a pod, with placeholders for ids, addresses and other parts that
// differ between two runs.
func withoutRun(text, namespace, pod string) map[string]bool {
	all := map[string]bool{}
	for line := range strings.Lines(text) {
		if !strings.Contains(line, fmt.Sprintf("namespace=%q,pod=%q", namespace, pod)) {
			continue
		}
		series := line[:strings.LastIndexByte(line, '}')+1]
		series = strings.ReplaceAll(series, fmt.Sprintf("namespace=%q", namespace), `namespace="NS"`)
		series = ids.ReplaceAllString(series, "ID")
		series = uids.ReplaceAllString(series, "podUID")
		series = parent.ReplaceAllString(series, `id="/kubepods`)
		series = pauses.ReplaceAllString(series, `image="PAUSE"`)
		all[hosts.ReplaceAllString(series, `image="HOST/`)] = true
	}
	return all
}
