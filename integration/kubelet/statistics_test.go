package kubelet

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// asksAll are feature gates with which a kubelet reads all statistics and metrics from the CRI,
// lists by streams, and follows container events.
var asksAll = map[string]bool{"PodAndContainerStatsFromCRI": true, "CRIListStreaming": true, "EventedPLEG": true, "RuntimeClassInImageCriApi": true}

// TestKubeletAsksForAll has a kubelet read statistics and metrics from berth. By default a kubelet
// reads them from cAdvisor, which does not find berth's pods.
func TestKubeletAsksForAll(t *testing.T) {
	b := newBed(t, asksAll)
	n := b.NewNamespace(t, b.berth.Image)
	for _, class := range b.classes {
		n.CreateOf(t, class.name, busy)
	}
	for _, class := range b.classes {
		n.WaitReady(t, class.name)
		testbed.Eventually(t, patience, func() error { return b.numbersOf(n, class) })
		testbed.Eventually(t, patience, func() error { return b.podNumbersOf(n, class) })
		testbed.Eventually(t, patience, func() error { return b.cadvisorMetricsOf(t, n, class) })
	}
	b.end(t, n)
	// With these gates the kubelet learns of exits by events and requests images with a handler, so
	// restarts and pulls are tested again.
	t.Run("pods", func(t *testing.T) {
		b.pods(t, "back-off", "init-and-sidecars", "liveness", "pull-secret", "shared-processes")
	})
	b.streamed(t)
}

// podNumbersOf returns an error if one of the pod's numbers that only the CRI provides is missing.
func (b *bed) podNumbersOf(n *Namespace, class class) error {
	s, err := b.summary()
	if err != nil {
		return err
	}
	for _, pod := range s.Pods {
		if pod.PodRef.Name != class.name || pod.PodRef.Namespace != n.Name {
			continue
		}
		switch {
		case pod.CPU.UsageNanoCores == nil || *pod.CPU.UsageNanoCores == 0:
			return fmt.Errorf("pod %s uses no CPU: %+v", class.name, pod.CPU)
		case pod.Network == nil || pod.Network.RxBytes == nil || pod.Network.TxBytes == nil:
			return fmt.Errorf("pod %s has no network: %+v", class.name, pod.Network)
		case pod.ProcessStats == nil || pod.ProcessStats.ProcessCount == nil || *pod.ProcessStats.ProcessCount == 0:
			return fmt.Errorf("pod %s has no processes: %+v", class.name, pod.ProcessStats)
		}
		return nil
	}
	return fmt.Errorf("no numbers for pod %s", class.name)
}

// cadvisorMetricsOf returns an error if a pod lacks a cAdvisor metric that dashboards use.
func (b *bed) cadvisorMetricsOf(t *testing.T, n *Namespace, class class) error {
	t.Helper()
	text, stderr, err := n.TryKubectl(t, "", "get", "--raw", "/api/v1/nodes/"+NodeName+"/proxy/metrics/cadvisor")
	if err != nil {
		return fmt.Errorf("metrics: %w: %s", err, stderr)
	}
	pod := fmt.Sprintf(`namespace=%q,pod=%q`, n.Name, class.name)
	for _, want := range []string{
		`container_cpu_usage_seconds_total{container="main",cpu="total",id="[0-9a-f]{64}",image="[^"]+",` + pod + `}`,
		`container_memory_working_set_bytes{container="main",id="[0-9a-f]{64}",image="[^"]+",` + pod + `}`,
		`container_memory_working_set_bytes{container="",id="[0-9a-f]{64}",image="",` + pod + `}`,
		`container_network_receive_bytes_total{container="",id="[0-9a-f]{64}",image="",interface="eth0",` + pod + `}`,
		`container_fs_usage_bytes{container="main",device="[^"]+",id="[0-9a-f]{64}",image="[^"]+",` + pod + `}`,
	} {
		if !regexp.MustCompile(`(?m)^` + want + ` [0-9]`).MatchString(text) {
			return fmt.Errorf("/metrics/cadvisor has no %s", want)
		}
	}
	return nil
}

// end runs a container that exits with 7; berth sends the kubelet an event of the exit.
func (b *bed) end(t *testing.T, n *Namespace) {
	n.CreatePod(t, "ends", `
  restartPolicy: Never
  containers:
  - {name: main, image: IMAGE, command: [sh, -c, "sleep 1; exit 7"]}
`)
	n.WaitPod(t, "ends", func(pod *corev1.Pod) error {
		if pod.Status.Phase != corev1.PodFailed {
			return fmt.Errorf("the pod is %s", pod.Status.Phase)
		}
		if end := pod.Status.ContainerStatuses[0].State.Terminated; end == nil || end.ExitCode != 7 {
			return fmt.Errorf("the container has not exited with 7: %+v", end)
		}
		return nil
	})
}

// streamed fails unless the kubelet called the streaming version of every list. No call may have
// returned Unimplemented, after which the kubelet would use no stream, and no event stream may have
// ended.
func (b *bed) streamed(t *testing.T) {
	t.Helper()
	calls := b.calls(t)
	for _, rpc := range []string{
		"StreamPodSandboxes", "StreamContainers", "StreamPodSandboxStats", "StreamPodSandboxMetrics", "StreamImages", "ListMetricDescriptors",
	} {
		if calls[rpc+" OK"] == 0 {
			t.Errorf("the kubelet did not call %s: %v", rpc, calls)
		}
	}
	for call, times := range calls {
		if strings.HasPrefix(call, "GetContainerEvents ") || strings.HasSuffix(call, " Unimplemented") {
			t.Errorf("unexpected calls: %s, %d times", call, times)
		}
	}
	for _, rpc := range []string{"ListPodSandbox", "ListContainers", "ListPodSandboxStats", "ListPodSandboxMetrics"} {
		if times := calls[rpc+" OK"]; times > 0 {
			t.Errorf("the kubelet called %s %d times instead of its stream", rpc, times)
		}
	}
}

var rpcCount = regexp.MustCompile(`^berth_rpc_duration_seconds_count\{binary="\w*",code="(\w+)",handler="[^"]*",rpc="(\w+)"\} (\d+)`)

// calls returns the number of finished calls in berth's metrics, by "RPC code".
func (b *bed) calls(t *testing.T) map[string]int {
	t.Helper()
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", b.metrics)
		},
	}}
	response, err := client.Get("http://berth/metrics")
	testbed.Mustf(t, err, "berth's metrics")
	defer response.Body.Close()
	calls := map[string]int{}
	lines := bufio.NewScanner(io.LimitReader(response.Body, 1<<20))
	for lines.Scan() {
		if m := rpcCount.FindStringSubmatch(lines.Text()); m != nil {
			times := 0
			if _, err := fmt.Sscan(m[3], &times); err != nil {
				t.Fatalf("%s: %v", lines.Text(), err)
			}
			calls[m[2]+" "+m[1]] += times
		}
	}
	if err := lines.Err(); err != nil || len(calls) == 0 {
		t.Fatalf("berth's metrics have no calls: %v", err)
	}
	return calls
}

func (b *bed) metricsConfig(t *testing.T) string {
	t.Helper()
	b.metrics = filepath.Join(t.TempDir(), "metrics.sock")
	return fmt.Sprintf("[metrics]\naddress = %q\n", "unix://"+b.metrics)
}
