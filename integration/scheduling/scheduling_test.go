// Package scheduling checks that generated classes put pods only on a node whose handler accepts
// them. It uses a real control plane, a node whose kubelet uses berth, a larger node without
// handlers, Node Feature Discovery, which labels the first node from berth's file, and
// berth-controller.
package scheduling

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-cri/berth/integration/conformance"
	"github.com/berth-cri/berth/integration/kubelet"
	"github.com/berth-cri/berth/integration/testbed"
	"github.com/berth-cri/berth/pkg/nodelabel"
)

// patience is how long a test waits for the cluster.
const patience = 2 * time.Minute

// elsewhere is a node without handlers. It is larger than the node with handlers.
const elsewhere = "node-2"

// measurements has the overhead for the classes. It is fixed, so that tests can check exact
// numbers.
const measurements = `
handlers:
- {name: crun, overhead: {pods: 10, memory: {p50: 90Mi, p95: 96Mi, max: 97Mi}, cpu: {p50: 90m, p95: 100m, max: 101m}}}
`

// maxPods is how many pods crun accepts on the node.
const maxPods = 4

// The p95 of measurements, as in the classes.
const (
	overheadMemory = 96 << 20
	overheadCPU    = 100 // millicores
)

// bed is a cluster with classes for the handlers runc and crun, which one of its nodes has.
type bed struct {
	*kubelet.Cluster
	berth *testbed.Berth
	n     *kubelet.Namespace
	crun  string // the path of the handler's runtime, which a test may move away
}

func newBed(t *testing.T) *bed {
	t.Helper()
	b := &bed{crun: filepath.Join(t.TempDir(), "crun")}
	program, err := os.ReadFile(testbed.Part(t, testbed.Crun))
	if err == nil {
		err = os.WriteFile(b.crun, program, 0o755)
	}
	testbed.Must(t, err)
	features := filepath.Join(t.TempDir(), "features.d")
	testbed.Must(t, os.Mkdir(features, 0o755))
	on := testbed.StartBed(t, "scheduling/busybox:1", testbed.Options{
		Runtimes:       map[string]string{"runc": testbed.Part(t, testbed.Runc)},
		DefaultRuntime: "runc",
		Config: fmt.Sprintf("[node_labels]\nfile = %q\n[handlers]\nprobe_interval = \"1s\"\n[runtimes.crun]\nruntime_path = %q\nmax_pods = %d\n",
			filepath.Join(features, "berth"), b.crun, maxPods),
	})
	b.berth = on.Berth
	b.Cluster = kubelet.Start(t, kubelet.Options{Berth: b.berth})
	b.Register(t, elsewhere, corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("64"), corev1.ResourceMemory: resource.MustParse("256Gi"), corev1.ResourcePods: resource.MustParse("110"),
	})
	b.StartNFD(t, features)
	b.StartController(t)
	b.n = b.NewNamespace(t, on.Image)
	return b
}

// classes generates a class for each handler and applies them, as an operator does.
func (b *bed) classes(t *testing.T) {
	t.Helper()
	measured := filepath.Join(t.TempDir(), "measured.yaml")
	testbed.Must(t, os.WriteFile(measured, []byte(measurements), 0o600))
	command := exec.CommandContext(t.Context(), filepath.Join(b.berth.Bin, "berth"), "capabilities", "-o", "json",
		"--admin-socket="+filepath.Join(filepath.Dir(b.berth.Socket), "admin.sock"))
	command.Stderr = os.Stderr
	known, err := command.Output()
	testbed.Mustf(t, err, "berth capabilities")
	handlers := filepath.Join(t.TempDir(), "handlers.json")
	testbed.Must(t, os.WriteFile(handlers, known, 0o600))
	b.Kubectl(t, b.Kubectl(t, "", "berth", "generate", "--handlers="+handlers, "--measurements="+measured), "apply", "--server-side", "--filename=-")
	// An older kind of class for crun: it selects nodes whose handler is ready, and has no overhead.
	b.Kubectl(t, `
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: crun-for-nothing}
handler: crun
scheduling: {nodeSelector: {`+nodelabel.Handler("crun")+`: `+nodelabel.Ready+`}}
`, "create", "--filename=-")
	b.labelled(t, "crun", "runc")
	b.room(t, kubelet.NodeName, maxPods)
}

// room waits until a node's capacity for pods of crun exceeds by the given number what its pods use
// as the scheduler counts it.
func (b *bed) room(t *testing.T, name string, more int64) {
	t.Helper()
	testbed.Eventually(t, patience, func() error {
		var pods corev1.PodList
		if err := json.Unmarshal([]byte(b.Kubectl(t, "", "get", "pods", "--all-namespaces", "--field-selector=spec.nodeName="+name, "-o", "json")), &pods); err != nil {
			return err
		}
		taken := int64(0)
		for _, p := range pods.Items {
			for _, has := range []corev1.ResourceList{p.Spec.Overhead, p.Status.AllocatedResources} {
				if q := has[crunPods]; p.Status.Phase != corev1.PodFailed {
					taken += q.Value()
				}
			}
		}
		node, err := b.Node(name)
		if err != nil {
			return err
		}
		for what, list := range map[string]corev1.ResourceList{"capacity": node.Status.Capacity, "allocatable": node.Status.Allocatable} {
			if q, there := list[crunPods]; !there || q.Value() != taken+more {
				return fmt.Errorf("node %s has %s %v of %s, want %d and %d", name, what, q.String(), crunPods, taken, more)
			}
		}
		return nil
	})
}

const crunPods = corev1.ResourceName(nodelabel.Prefix + "handler.crun.pods")

// full is the scheduler's message about a node without room for more pods of crun.
const full = "1 Insufficient " + string(crunPods)

// labelled waits until the node's labels have exactly these handlers as ready.
func (b *bed) labelled(t *testing.T, handlers ...string) {
	t.Helper()
	testbed.Eventually(t, patience, func() error {
		node, err := b.Node(kubelet.NodeName)
		if err != nil {
			return err
		}
		for _, name := range []string{"crun", "runc"} {
			want := ""
			if slices.Contains(handlers, name) {
				want = nodelabel.Ready
			}
			if got := node.Labels[nodelabel.Handler(name)]; got != want {
				return fmt.Errorf("the label of handler %s is %q, want %q", name, got, want)
			}
			if got := node.Labels[nodelabel.Present(name)]; got != nodelabel.True {
				return fmt.Errorf("the label of the presence of handler %s is %q, want true", name, got)
			}
		}
		return nil
	})
}

func TestScheduling(t *testing.T) {
	b := newBed(t)
	b.classes(t)
	for _, step := range []struct {
		name string
		do   func(*testing.T)
	}{
		{"pods run on the node with the handler", b.chosen},
		{"overhead is counted", b.overhead},
		{"one pod more than the node accepts runs elsewhere", b.overflow},
		{"a handler that is not ready gets no new pods and keeps its pods", b.withdrawn},
	} {
		if !t.Run(step.name, step.do) {
			return
		}
	}
}

// pod creates a pod with resources, of a class or, if class is empty, of none.
func (b *bed) pod(t *testing.T, name, class, resources string) {
	t.Helper()
	of := ""
	if class != "" {
		of = "runtimeClassName: " + class
	}
	b.n.Create(t, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  %s
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: IMAGE, command: [sleep, "3600"], resources: %s}]
`, name, of, resources))
}

// placed waits until a pod is bound, and fails unless it is bound to the given node.
func (b *bed) placed(t *testing.T, name, node string) {
	t.Helper()
	pod := b.n.WaitPod(t, name, func(pod *corev1.Pod) error {
		if pod.Spec.NodeName == "" {
			return fmt.Errorf("pod %s is not bound yet: %+v", name, pod.Status.Conditions)
		}
		return nil
	})
	if pod.Spec.NodeName != node {
		t.Errorf("pod %s is on node %s, want %s", name, pod.Spec.NodeName, node)
	}
}

// refused waits until the scheduler has an event that it cannot place a pod, with these words.
func (b *bed) refused(t *testing.T, name string, words ...string) {
	t.Helper()
	event := b.n.WaitEvent(t, name, "FailedScheduling", words[0])
	for _, word := range words {
		if !strings.Contains(event, word) {
			t.Errorf("the event of pod %s is %q, want %q in it", name, event, word)
		}
	}
	if node := b.n.Pod(t, name).Spec.NodeName; node != "" {
		t.Errorf("pod %s is on node %s, want on none", name, node)
	}
}

const notThere = "didn't match Pod's node affinity/selector"

func (b *bed) chosen(t *testing.T) {
	const more = `{requests: {cpu: "32"}}` // more than the node with the handlers has
	b.pod(t, "of-crun", "crun", "{}")
	b.pod(t, "of-runc", "runc", "{}")
	b.pod(t, "of-crun-and-large", "crun", more)
	b.pod(t, "of-no-class-and-large", "", more)
	b.Kubectl(t, "{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: of-nobody}, handler: of-nobody, "+
		"scheduling: {nodeSelector: {"+nodelabel.Handler("of-nobody")+": "+nodelabel.Ready+"}}}", "create", "--filename=-")
	b.pod(t, "of-nobody", "of-nobody", "{}")

	for name, runtime := range map[string]string{"crun": b.crun, "runc": testbed.Part(t, testbed.Runc)} {
		pod := b.n.WaitReady(t, "of-"+name)
		b.placed(t, pod.Name, kubelet.NodeName)
		if got := pod.Spec.NodeSelector[nodelabel.Present(name)]; got != nodelabel.True {
			t.Errorf("the pod of the class %s has the selector %v, want the label of presence", name, pod.Spec.NodeSelector)
		}
		conformance.RanByOCIRuntime(runtime, filepath.Join(b.berth.State, "runtimes", name))(t, b.running(pod))
	}
	// A pod without a class runs on the other node, which has room.
	b.placed(t, "of-no-class-and-large", elsewhere)
	b.refused(t, "of-crun-and-large", "1 Insufficient cpu", "1 node(s) "+notThere)
	b.refused(t, "of-nobody", "2 node(s) "+notThere)
	b.n.Kubectl(t, "delete", "pods", "--all", "--timeout=2m")
}

func (b *bed) running(pod *corev1.Pod) conformance.Running {
	_, id, _ := strings.Cut(pod.Status.ContainerStatuses[0].ContainerID, "://")
	return conformance.Running{ContainerID: id, Exec: func(t *testing.T, command ...string) string {
		t.Helper()
		return b.n.Exec(t, pod.Name, command...)
	}}
}

// overhead checks that a class's overhead is in the pod and its cgroup, and that the scheduler and
// the kubelet count it.
func (b *bed) overhead(t *testing.T) {
	node, err := b.Node(kubelet.NodeName)
	testbed.Must(t, err)
	memory, cpu := node.Status.Allocatable.Memory().Value(), node.Status.Allocatable.Cpu().MilliValue()
	allButHalf := [2]string{
		fmt.Sprintf(`{requests: {memory: "%d"}}`, memory-overheadMemory/2),
		fmt.Sprintf(`{requests: {cpu: %dm}}`, cpu-overheadCPU/2),
	}
	// Each request fits alone, but not with the overhead of the class.
	b.pod(t, "memory", "crun", allButHalf[0])
	b.pod(t, "cpu", "crun", allButHalf[1])
	b.refused(t, "memory", "1 Insufficient memory", "1 node(s) "+notThere)
	b.refused(t, "cpu", "1 Insufficient cpu", "1 node(s) "+notThere)
	b.pod(t, "memory-alone", "crun-for-nothing", allButHalf[0])
	b.pod(t, "cpu-alone", "crun-for-nothing", allButHalf[1])
	for _, name := range []string{"memory-alone", "cpu-alone"} {
		b.n.WaitReady(t, name)
		b.placed(t, name, kubelet.NodeName)
	}
	b.n.Kubectl(t, "delete", "pods", "--all", "--timeout=2m")

	// A pod that needs all resources to the last byte fits, for the scheduler and the kubelet.
	b.pod(t, "all", "crun", fmt.Sprintf(`{requests: {memory: "%d", cpu: %dm}}`, memory-overheadMemory, cpu-overheadCPU))
	pod := b.n.WaitReady(t, "all")
	b.placed(t, "all", kubelet.NodeName)
	if got := pod.Spec.Overhead; got.Memory().Value() != overheadMemory || got.Cpu().MilliValue() != overheadCPU {
		t.Errorf("the overhead of the pod is %v, want that of the class", got)
	}
	b.n.Kubectl(t, "delete", "pods", "--all", "--timeout=2m")

	b.pod(t, "limited", "crun", `{requests: {memory: 16Mi, cpu: 50m}, limits: {memory: 32Mi, cpu: 200m}}`)
	cgroup := b.PodCgroup(b.n.WaitReady(t, "limited"))
	if limit := kubelet.MemoryLimit(t, cgroup); limit != 32<<20+overheadMemory {
		t.Errorf("the memory limit of the pod is %d, want its limit and the overhead", limit)
	}
	if quota, period := kubelet.CPULimit(t, cgroup); quota*1000 != period*(200+overheadCPU) {
		t.Errorf("the CPU quota of the pod is %d µs in %d µs, want its limit and the overhead", quota, period)
	}
	if shares, there := kubelet.CPUShares(t, cgroup); there && shares != (50+overheadCPU)*1024/1000 {
		t.Errorf("the pod has %d CPU shares, want its request and the overhead", shares)
	}
}

// overflow fills the node, and labels the other node with the handler while a pod waits.
func (b *bed) overflow(t *testing.T) {
	b.n.Kubectl(t, "delete", "pods", "--all", "--timeout=2m")
	for i := range maxPods {
		b.pod(t, "of-many-"+strconv.Itoa(i), "crun", "{}")
	}
	for i := range maxPods {
		b.n.WaitReady(t, "of-many-"+strconv.Itoa(i))
	}
	b.room(t, kubelet.NodeName, 0)
	b.pod(t, "one-more", "crun", "{}")
	b.refused(t, "one-more", full, "1 node(s) "+notThere)
	b.Kubectl(t, "", "label", "node", elsewhere, nodelabel.Present("crun")+"="+nodelabel.True, nodelabel.Handler("crun")+"="+nodelabel.Ready)
	b.placed(t, "one-more", elsewhere)
	b.room(t, elsewhere, 109)
	b.Kubectl(t, "", "label", "node", elsewhere, nodelabel.Present("crun")+"-", nodelabel.Handler("crun")+"-")
	b.room(t, elsewhere, 0)
	b.n.Kubectl(t, "delete", "pods", "--all", "--timeout=2m")
	b.room(t, kubelet.NodeName, maxPods)
}

// withdrawn removes the runtime of a handler while pods run.
func (b *bed) withdrawn(t *testing.T) {
	// A container of another handler that requests the resource takes no capacity from crun.
	b.pod(t, "greedy", "", `{limits: {"`+string(crunPods)+`": "2"}}`)
	b.n.WaitReady(t, "greedy")
	b.room(t, kubelet.NodeName, maxPods)
	counted := []string{"first", "second"}
	for _, name := range counted {
		b.pod(t, name, "crun", "{}")
	}
	b.pod(t, "by-readiness", "crun-for-nothing", "{}")
	was := map[string]corev1.ContainerStatus{}
	for _, name := range append(counted, "by-readiness", "greedy") {
		was[name] = b.n.WaitReady(t, name).Status.ContainerStatuses[0]
	}
	// The pod without overhead takes capacity, too.
	b.room(t, kubelet.NodeName, maxPods-int64(len(counted))-1)
	testbed.Must(t, os.Rename(b.crun, b.crun+".away"))
	broken := time.Now()
	b.notReady(t)
	berth := time.Since(broken)
	b.room(t, kubelet.NodeName, 0)
	t.Logf("berth noticed the missing runtime after %v, the scheduler after %v", berth, time.Since(broken))
	b.labelled(t, "runc")
	b.pod(t, "late", "crun", "{}")
	b.pod(t, "of-runc", "runc", "{}")
	b.refused(t, "late", full, "1 node(s) "+notThere)
	b.n.WaitReady(t, "of-runc")
	for _, name := range counted {
		b.alive(t, name, was[name])
	}
	b.judgedAnew(t)
	for _, name := range counted {
		b.alive(t, name, was[name])
	}
	b.alive(t, "greedy", was["greedy"])

	testbed.Must(t, os.Rename(b.crun+".away", b.crun))
	b.labelled(t, "crun", "runc")
	b.n.WaitReady(t, "late")
	b.placed(t, "late", kubelet.NodeName)
}

// notReady waits until berth shows crun as not-ready.
func (b *bed) notReady(t *testing.T) {
	t.Helper()
	testbed.Eventually(t, patience, func() error {
		out, err := exec.CommandContext(t.Context(), filepath.Join(b.berth.Bin, "berth"), "handlers",
			"--admin-socket="+filepath.Join(filepath.Dir(b.berth.Socket), "admin.sock")).Output()
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(out)) {
			if words := strings.Fields(line); words[0] == "crun" && words[1] == "not-ready" {
				return nil
			}
		}
		return fmt.Errorf("berth handlers prints\n%s", out)
	})
}

// alive fails unless a pod's container runs commands and was not restarted.
func (b *bed) alive(t *testing.T, name string, was corev1.ContainerStatus) {
	t.Helper()
	testbed.Eventually(t, patience, func() error {
		got, stderr, err := b.n.TryKubectl(t, "", "exec", "--quiet", name, "--", "echo", "here")
		if err != nil || got != "here\n" {
			return fmt.Errorf("exec in the pod prints %q, %s: %w", got, stderr, err)
		}
		return nil
	})
	if now := b.n.Pod(t, name).Status.ContainerStatuses[0]; now.ContainerID != was.ContainerID || now.RestartCount != was.RestartCount {
		t.Errorf("the container is %+v, before it was %+v", now, was)
	}
}

// judgedAnew restarts the kubelet, which then admits all pods again, and rejects those whose node
// selector no longer matches. All kubelets do so; docs/runtimeclass.md warns of it.
func (b *bed) judgedAnew(t *testing.T) {
	t.Helper()
	b.RestartKubelet(t, b.berth.Socket)
	b.n.WaitEvent(t, "by-readiness", "NodeAffinity", notThere)
	b.n.WaitReady(t, "of-runc")
}
