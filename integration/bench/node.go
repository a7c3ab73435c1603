package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-cri/berth/integration/kubelet"
	"github.com/berth-cri/berth/integration/testbed"
)

// disks are the kinds of disks that have the node's directories.
var disks = []struct {
	kind  string
	flush time.Duration
}{
	{"plain", 0},
	{"throttled", 5 * time.Millisecond},
}

const (
	// calm is the time for a new control plane to become idle.
	calm = 10 * time.Second
	// fleetTimeout limits the start, and the removal, of all pods of a node.
	fleetTimeout = 10 * time.Minute
)

// nodeMetrics has the metrics of a node in the order of the table.
var nodeMetrics = []metric{
	{key: "rate", name: "pods ready", unit: "pods/s"},
	{key: "p50", name: "created → ready, p50", unit: "s"},
	{key: "p95", name: "– p95", unit: "s"},
	{key: "kubelet", name: "kubelet_pod_start_duration_seconds, mean", unit: "s"},
	{key: "sandbox", name: "RunPodSandbox as the kubelet measures it, mean", unit: "s"},
	{key: "flushes", name: "disk flushes per pod"},
	{key: "daemon", name: "CPU of daemon and helpers per pod", unit: "ms"},
	{key: "node", name: "CPU of the whole node per pod", unit: "ms"},
}

// nodes compares the peers under a kubelet. Every measurement has a new disk, daemon and cluster.
func nodes(t testbed.T, o options) report {
	testbed.NeedNetwork(t)
	keepForwarding(t)
	registry := testbed.NewRegistry(t, testbed.RegistryOptions{})
	image := registry.Push(t, "bench/busybox:1", testbed.Busybox(t))
	backing := newBacking(t)
	r := newReport(t, o, nil)
	r.Fleets = o.runs
	for _, handler := range o.handlers {
		for _, d := range disks {
			all := samples{}
			for round := range o.runs {
				order := o.starters()
				if round%2 == 1 {
					slices.Reverse(order)
				}
				for _, start := range order {
					testbed.Check(t, testbed.Run(t.Context(), "node", os.Stderr, func(t testbed.T) {
						disk := newDisk(t, backing, d.flush)
						p := start(on{t, disk}, registry, map[string]string{handler: testbed.Part(t, handler)}, handler)
						r.version(t, p)
						t.Logf("%s: %s, %s disk, round %d", handler, p.name, d.kind, round+1)
						p.Client.Pull(t, handler, image)
						n := newNode(t, o, p, disk, image)
						n.samples = all
						n.fleet()
					}))
				}
			}
			r.add(handler+" on a "+d.kind+" disk", nodeMetrics, all)
		}
	}
	r.finish()
	return r
}

// node is a cluster whose node uses a peer.
type node struct {
	testbed.T
	options

	peer    *peer
	disk    *disk
	image   string
	client  *rest.RESTClient
	space   string // the namespace of the pods
	samples samples
}

// newNode starts a control plane, and a kubelet whose directory is on the disk. It returns after
// a pod was ready.
func newNode(t testbed.T, o options, p *peer, d *disk, image string) *node {
	t.Helper()
	cluster := kubelet.Start(on{t, d}, kubelet.Options{
		Machine: &kubelet.Machine{Socket: p.Socket, Cgroup: p.Cgroup},
		// The defaults of a kubelet; the tests' values are shorter.
		Kubelet: map[string]any{
			"nodeStatusUpdateFrequency": "10s", "fileCheckFrequency": "20s", "volumeStatsAggPeriod": "1m",
			"containerLogMaxSize": "10Mi", "containerLogMaxFiles": 5, "containerLogMonitorInterval": "10s",
		},
	})
	config, err := clientcmd.BuildConfigFromFlags("", cluster.Kubeconfig())
	testbed.Mustf(t, err, "read the kubeconfig")
	config.QPS = -1 // no limit, so that all pods are requested at once
	config.APIPath, config.GroupVersion, config.NegotiatedSerializer = "/api", &corev1.SchemeGroupVersion, scheme.Codecs.WithoutConversion()
	client, err := rest.RESTClientFor(config)
	testbed.Mustf(t, err, "make a client of the API server")
	space := cluster.NewNamespace(t, image)
	n := &node{T: t, options: o, peer: p, disk: d, image: image, client: client, space: space.Name}
	t.Cleanup(n.empty)
	testbed.Mustf(t, n.create(t.Context(), "first"), "create the first pod")
	space.WaitReady(t, "first")
	space.Delete(t, "first")
	time.Sleep(calm)
	return n
}

// create creates a pod of one container that sleeps.
func (n *node) create(ctx context.Context, name string) error {
	second := int64(1)
	return n.client.Post().Namespace(n.space).Resource("pods").Body(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: &second,
			Containers:                    []corev1.Container{{Name: "main", Image: n.image, Command: []string{"sleep", sleepFor(sleeps.Add(1))}}},
		},
	}).Do(ctx).Error()
}

// get is a request for all pods.
func (n *node) get() *rest.Request { return n.client.Get().Namespace(n.space).Resource("pods") }

// empty deletes all pods and waits until the kubelet has removed them.
func (n *node) empty() {
	ctx := context.WithoutCancel(n.Context())
	testbed.Checkf(n, n.client.Delete().Namespace(n.space).Resource("pods").Do(ctx).Error(), "delete all pods")
	testbed.Eventually(n, fleetTimeout, func() error {
		var list corev1.PodList
		err := n.get().Do(ctx).Into(&list)
		if err == nil && len(list.Items) > 0 {
			err = fmt.Errorf("%d pods are left", len(list.Items))
		}
		return err
	})
}

// fleet creates all pods at once, and measures until they are ready.
func (n *node) fleet() {
	before := n.read()
	begin := time.Now()
	times, err := n.start()
	took := time.Since(begin)
	testbed.Mustf(n, err, "start all pods")
	after := n.read()
	slices.Sort(times)
	pods := float64(n.pods)
	for key, value := range map[string]float64{
		"rate":    pods / took.Seconds(),
		"p50":     times[len(times)/2].Seconds(),
		"p95":     times[len(times)*95/100].Seconds(),
		"kubelet": after.pods.mean(before.pods),
		"sandbox": after.sandboxes.mean(before.sandboxes),
		"flushes": (after.flushes - before.flushes) / pods,
		"daemon":  1000 * (after.daemon - before.daemon) / pods,
		"node":    1000 * (after.node - before.node) / pods,
	} {
		n.samples.add(key, n.peer.name, value)
	}
}

// start creates all pods at once, and returns the time from the first request until the API server
// reports each one as ready.
func (n *node) start() ([]time.Duration, error) {
	ctx, cancel := context.WithTimeout(n.Context(), fleetTimeout)
	defer cancel()
	requests, creating := errgroup.WithContext(ctx)
	requests.SetLimit(10)
	begin := time.Now()
	for i := range n.pods {
		requests.Go(func() error { return n.create(creating, "pod-"+strconv.Itoa(i)) })
	}
	if err := requests.Wait(); err != nil {
		return nil, err
	}
	ready := map[string]time.Duration{}
	note := func(pod *corev1.Pod) {
		if _, known := ready[pod.Name]; !known && kubelet.Ready(pod) == nil {
			ready[pod.Name] = time.Since(begin)
		}
	}
	// The API server disconnects watches that are slow.
	for len(ready) < n.pods {
		var list corev1.PodList
		if err := n.get().Do(ctx).Into(&list); err != nil {
			return nil, fmt.Errorf("%d pods are ready: %w", len(ready), err)
		}
		for i := range list.Items {
			note(&list.Items[i])
		}
		events, err := n.get().Param("watch", "true").Param("resourceVersion", list.ResourceVersion).Watch(ctx)
		if err != nil {
			return nil, fmt.Errorf("%d pods are ready: %w", len(ready), err)
		}
		for event := range events.ResultChan() {
			if pod, ok := event.Object.(*corev1.Pod); ok {
				note(pod)
			}
			if len(ready) == n.pods {
				break
			}
		}
		events.Stop()
	}
	return slices.Collect(maps.Values(ready)), nil
}

// reading has the counters before or after a measurement.
type reading struct {
	pods, sandboxes total
	flushes         float64
	daemon, node    float64 // seconds of CPU
}

func (n *node) read() reading {
	n.Helper()
	helpers, err := n.peer.helpers()
	testbed.Mustf(n, err, "look for helpers")
	daemon, err := cpuSeconds(append(helpers, n.peer.PID()))
	testbed.Mustf(n, err, "read CPU times")
	stat, err := os.ReadFile("/proc/stat")
	testbed.Mustf(n, err, "read the kernel's counters")
	node, err := parseBusy(string(stat))
	testbed.Mustf(n, err, "read the kernel's counters")
	text, err := n.client.Get().AbsPath("/api/v1/nodes/" + kubelet.NodeName + "/proxy/metrics").DoRaw(n.Context())
	testbed.Mustf(n, err, "read the kubelet's metrics")
	page := string(text)
	pods, err := parseTotal(page, "kubelet_pod_start_duration_seconds", "")
	testbed.Mustf(n, err, "read the kubelet's metrics")
	sandboxes, err := parseTotal(page, "kubelet_runtime_operations_duration_seconds", `{operation_type="run_podsandbox"}`)
	testbed.Mustf(n, err, "read the kubelet's metrics")
	return reading{pods: pods, sandboxes: sandboxes, flushes: n.disk.flushes(n), daemon: daemon, node: node}
}

// total is the total of a histogram.
type total struct{ sum, count float64 }

func (t total) mean(before total) float64 { return (t.sum - before.sum) / (t.count - before.count) }

// parseTotal reads a histogram's total from a page of metrics.
func parseTotal(page, name, labels string) (t total, err error) {
	for line := range strings.Lines(page) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch series {
		case name + "_sum" + labels:
			t.sum, err = strconv.ParseFloat(value, 64)
		case name + "_count" + labels:
			t.count, err = strconv.ParseFloat(value, 64)
		}
	}
	if err == nil && t.count == 0 {
		err = fmt.Errorf("%s%s has no observations", name, labels)
	}
	return t, err
}

// parseBusy returns how many seconds all processors have worked since the boot.
func parseBusy(stat string) (float64, error) {
	var user, nice, system, idle, iowait, irq, softirq float64
	_, err := fmt.Sscanf(stat, "cpu %f %f %f %f %f %f %f", &user, &nice, &system, &idle, &iowait, &irq, &softirq)
	return (user + nice + system + irq + softirq) / userHz, err
}
