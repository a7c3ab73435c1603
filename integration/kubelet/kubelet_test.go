package kubelet

import (
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-cri/berth/integration/conformance"
	"github.com/berth-cri/berth/integration/testbed"
)

// bed is a cluster whose node has three runtimes, with a registry that requires a password.
type bed struct {
	*Cluster
	berth   *testbed.Bed
	private *testbed.Registry // requires the password
	secret  string            // an image of the private registry
	classes []class
	metrics string // the socket of berth's own metrics
}

// class is a RuntimeClass.
type class struct {
	name string
	// ran fails the test unless the container runs under the class's runtime.
	ran func(*testing.T, conformance.Running)
	// sandboxed is true if the runtime gives each pod a kernel of its own.
	sandboxed bool
}

const (
	username = "puller"
	password = "for-tests-only"
)

func newBed(t *testing.T, gates map[string]bool) *bed {
	t.Helper()
	return newBedOf(t, Options{FeatureGates: gates})
}

// newBedOf is newBed with all options of the cluster.
func newBedOf(t *testing.T, o Options) *bed {
	t.Helper()
	runc, crun, runsc := testbed.Part(t, testbed.Runc), testbed.Part(t, testbed.Crun), testbed.Part(t, testbed.Runsc)
	b := &bed{
		private: testbed.NewRegistry(t, testbed.RegistryOptions{TLS: true, Username: username, Password: password}),
	}
	b.secret = b.private.Push(t, "kubelet/secret:1", testbed.Busybox(t, testbed.WithUser("app")))
	b.berth = testbed.StartBed(t, "kubelet/busybox:1", testbed.Options{
		Runtimes:       map[string]string{"runc": runc, "crun": crun, "runsc": runsc},
		DefaultRuntime: "runc",
		Registries:     []*testbed.Registry{b.private},
		Config: b.metricsConfig(t) + fmt.Sprintf(`
[snapshotters.stargz]
address = %q
[runtimes.on-erofs]
runtime_path = %[2]q
snapshotter = "erofs"
[runtimes.on-stargz]
runtime_path = %[2]q
snapshotter = "stargz"
`, testbed.StartStargz(t).Socket, runc),
	})
	o.Berth, o.NodeLabels = b.berth.Berth, "berth.test/sandboxes=yes,"+labels(t, b.berth.Berth)
	b.Cluster = Start(t, o)
	root := func(handler string) string { return filepath.Join(b.berth.State, "runtimes", handler) }
	b.classes = []class{
		{name: "runc", ran: conformance.RanByOCIRuntime(runc, root("runc"))},
		{name: "crun", ran: conformance.RanByOCIRuntime(crun, root("crun"))},
		{name: "gvisor", ran: conformance.RanByGVisor(runsc, root("runsc")), sandboxed: true},
	}
	b.Kubectl(t, runtimeClasses, "create", "--filename=-")
	return b
}

// labels returns the node labels that berth prints for nodes without Node Feature Discovery, in the
// form of the kubelet's --node-labels.
func labels(t *testing.T, berth *testbed.Berth) string {
	t.Helper()
	printed, err := exec.CommandContext(t.Context(), filepath.Join(berth.Bin, "berth"), "handlers", "--print-labels",
		"--admin-socket="+filepath.Join(filepath.Dir(berth.Socket), "admin.sock")).Output()
	testbed.Mustf(t, err, "berth handlers --print-labels")
	return strings.Join(strings.Fields(string(printed)), ",")
}

// runtimeClasses are the classes of the tests. Pods of the last two cannot run: no node matches
// elsewhere, and unknown names a handler that does not exist.
const runtimeClasses = `
{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: runc}, handler: runc}
---
{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: crun}, handler: crun}
---
{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: on-erofs}, handler: on-erofs}
---
{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: on-stargz}, handler: on-stargz}
---
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: gvisor}
handler: runsc
overhead: {podFixed: {memory: 96Mi, cpu: 100m}}
scheduling: {nodeSelector: {berth.test/sandboxes: "yes"}}
---
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: elsewhere}
handler: runc
scheduling: {nodeSelector: {berth.test/sandboxes: "no"}}
---
{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: unknown}, handler: kata-nowhere}
`

// TestKubelet runs all checks on one cluster, with the kubelet's default feature gates.
func TestKubelet(t *testing.T) {
	b := newBed(t, nil)
	before := b.berth.Snapshot(t)
	t.Run("pods", func(t *testing.T) { b.pods(t) })
	t.Run("restarts", b.restarts)
	t.Run("reboot", b.reboot)
	t.Run("nothing is left", func(t *testing.T) { b.leaves(t, before) })
}

// pods runs the checks with these names, or all. The checks do not disturb each other and mostly
// wait, so several run at once.
func (b *bed) pods(t *testing.T, names ...string) {
	slots := make(chan struct{}, atOnce)
	var group sync.WaitGroup
	checks := map[string]func(*testing.T, *Namespace){
		"back-off":          b.backOff,
		"deployments":       b.deployments,
		"handlers":          b.handlers,
		"init-and-sidecars": b.initAndSidecars,
		"liveness":          b.liveness,
		"log-rotation":      b.logRotation,
		"pull-secret":       b.pullSecret,
		"resize":            b.resize,
		"runtime-classes":   b.runtimeClasses,
		"shared-processes":  b.sharedProcesses,
		"snapshotters":      b.snapshotters,
		"static-pod":        b.staticPod,
		"statistics":        b.statistics,
		"streams":           b.streams,
		"user-namespaces":   b.userNamespaces,
		"volumes":           b.volumes,
	}
	if len(names) == 0 {
		names = slices.Collect(maps.Keys(checks))
	}
	for _, name := range names {
		check := checks[name]
		if check == nil {
			t.Errorf("check %q does not exist", name)
			continue
		}
		group.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			t.Run(name, func(t *testing.T) { check(t, b.NewNamespace(t, b.berth.Image)) })
		})
	}
	group.Wait()
}

// atOnce is the number of checks that run at once.
const atOnce = 5

// running describes the first container of a pod to class.ran.
func running(n *Namespace, pod *corev1.Pod) conformance.Running {
	return conformance.Running{
		ContainerID: containerID(pod.Status.ContainerStatuses[0]),
		Exec: func(t *testing.T, cmd ...string) string {
			t.Helper()
			return n.Exec(t, pod.Name, cmd...)
		},
	}
}
