// Package capacity runs berth-controller against a real API server: it keeps the capacity of
// nodes correct when pods, classes and nodes change, when a second controller runs, and when its
// own rights change. Nodes and pods are only objects here; integration/scheduling runs the
// controller with a scheduler and a kubelet.
package capacity

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-cri/berth/integration/kubelet"
	"github.com/berth-cri/berth/integration/testbed"
	"github.com/berth-cri/berth/pkg/nodelabel"
)

// patience is much longer than any step here takes on an idle machine.
const patience = 2 * time.Minute

const (
	kata      = nodelabel.Prefix + "handler.kata"
	kataPods  = corev1.ResourceName(kata + ".pods")
	namespace = "berth-system"
	leasePath = "/apis/coordination.k8s.io/v1/namespaces/" + namespace + "/leases/berth-controller"
)

// bed is an API server with a RuntimeClass kata.
type bed struct{ *kubelet.Server }

func newBed(t *testing.T) *bed {
	t.Helper()
	// Without these admission plugins, pods and nodes stay as a test creates them.
	b := &bed{kubelet.StartServer(t, "--disable-admission-plugins=ServiceAccount,DefaultTolerationSeconds,TaintNodesByCondition")}
	b.class(t)
	b.Kubectl(t, "{apiVersion: v1, kind: Namespace, metadata: {name: "+namespace+"}}", "apply", "--filename=-") // the namespace of the lease
	return b
}

func (b *bed) class(t *testing.T) {
	t.Helper()
	b.create(t, "{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: kata}, handler: kata, overhead: {podFixed: {"+string(kataPods)+": 1}}}")
}

func (b *bed) create(t *testing.T, manifest string) {
	t.Helper()
	b.Kubectl(t, manifest, "create", "--filename=-")
}

// node creates a ready node with labels, as in "a: b, c: d".
func (b *bed) node(t *testing.T, name, labels string) {
	t.Helper()
	b.create(t, "{apiVersion: v1, kind: Node, metadata: {name: "+name+", labels: {"+labels+"}}, status: "+
		"{capacity: {pods: 110}, allocatable: {pods: 110}, conditions: [{type: Ready, status: 'True'}]}}")
}

// label changes labels of a node, in the syntax of `kubectl label`.
func (b *bed) label(t *testing.T, node string, labels ...string) {
	t.Helper()
	b.Kubectl(t, "", append([]string{"label", "node", node, "--overwrite"}, labels...)...)
}

func (b *bed) pod(t *testing.T, name, node string) {
	t.Helper()
	b.create(t, "{apiVersion: v1, kind: Pod, metadata: {name: "+name+"}, spec: {runtimeClassName: kata, nodeName: "+node+", "+
		"containers: [{name: main, image: none}]}}")
}

func (b *bed) delete(t *testing.T, pods ...string) {
	t.Helper()
	b.Kubectl(t, "", append([]string{"delete", "pod", "--force", "--grace-period=0"}, pods...)...)
}

// room waits until a node has the wanted capacity for pods of kata; "" means no such resource.
func (b *bed) room(t *testing.T, name, want string) {
	t.Helper()
	testbed.Eventually(t, patience, func() error {
		node, err := b.Node(name)
		if err != nil {
			return err
		}
		for what, list := range map[string]corev1.ResourceList{"capacity": node.Status.Capacity, "allocatable": node.Status.Allocatable} {
			got := ""
			if q, there := list[kataPods]; there {
				got = q.String()
			}
			if got != want {
				return fmt.Errorf("the %s of node %s is %q, want %q", what, name, got, want)
			}
		}
		return nil
	})
}

// holder is the holder of the lease, or "" without one.
func (b *bed) holder(t *testing.T) string {
	t.Helper()
	status, body := b.Send(t, http.MethodGet, leasePath, nil)
	var lease coordinationv1.Lease
	if status == http.StatusOK {
		testbed.Must(t, json.Unmarshal(body, &lease))
	}
	if lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}

const leads = "Took the lease"

// took waits until one of the controllers has the lease. It returns that one and the others.
func took(t *testing.T, all ...*kubelet.Controller) (leader *kubelet.Controller, others []*kubelet.Controller) {
	t.Helper()
	testbed.Eventually(t, patience, func() error {
		i := slices.IndexFunc(all, func(c *kubelet.Controller) bool { return strings.Contains(c.Log(), leads) })
		if i < 0 {
			return fmt.Errorf("none of %d controllers took the lease", len(all))
		}
		leader, others = all[i], slices.Delete(slices.Clone(all), i, i+1)
		return nil
	})
	return leader, others
}

func TestController(t *testing.T) {
	b := newBed(t)
	ready := kata + ": ready, " + kata + ".present: 'true', " + kata + ".max-pods: '2'"
	b.node(t, "node-1", ready)
	b.node(t, "node-2", "")
	for _, step := range []struct {
		name string
		do   func(*testing.T, *bed)
	}{
		{"pods come and go", pods},
		{"two controllers", two},
		{"a node that is not ready", away},
		{"rights that are missing", forbidden},
		{"rights that are taken away", taken},
		{"a leader that was stopped and reaches no server", slept},
		{"a controller that cannot list pods", blind},
		{"a controller that cannot renew its lease", unrenewed},
		{"a server that does not answer at the start", early},
		{"changes that are not answered", stuck},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.do(t, b) }) {
			return
		}
	}
}

func pods(t *testing.T, b *bed) {
	b.StartController(t)
	b.room(t, "node-1", "2")
	b.room(t, "node-2", "")
	for i := range 3 {
		b.pod(t, fmt.Sprintf("p-%d", i), "node-1")
	}
	b.room(t, "node-1", "3") // more than max-pods: these pods were bound without a scheduler
	b.label(t, "node-1", kata+"-")
	b.delete(t, "p-2")
	b.room(t, "node-1", "2")
	b.delete(t, "p-1")
	b.room(t, "node-1", "1")
	b.label(t, "node-1", kata+"=ready", kata+".max-pods=7")
	b.room(t, "node-1", "7")
	// Pods without a class count for the default handler only.
	b.create(t, "{apiVersion: v1, kind: Pod, metadata: {name: classless}, spec: {nodeName: node-1, containers: [{name: main, image: none}]}}")
	b.label(t, "node-1", kata+".default=true")
	b.room(t, "node-1", "6")
	b.label(t, "node-1", kata+".default-")
	b.room(t, "node-1", "7")
	b.delete(t, "classless")
	// A value that another client writes is replaced.
	b.Kubectl(t, "", "patch", "node", "node-1", "--subresource=status", `--patch={"status":{"capacity":{"`+string(kataPods)+`":"99"}}}`)
	b.room(t, "node-1", "7")
	// A pod that has ended is not counted.
	b.label(t, "node-1", kata+"-")
	b.room(t, "node-1", "1")
	b.Kubectl(t, "", "patch", "pod", "p-0", "--subresource=status", `--patch={"status":{"phase":"Succeeded"}}`)
	b.room(t, "node-1", "0")
	b.delete(t, "p-0")

	// Without the class, the capacity is what the running pods use.
	b.label(t, "node-1", kata+"=ready", kata+".max-pods=2")
	b.pod(t, "p-3", "node-1")
	b.room(t, "node-1", "2")
	b.Kubectl(t, "", "delete", "runtimeclass", "kata")
	b.room(t, "node-1", "1")
	b.delete(t, "p-3")
	b.room(t, "node-1", "")
	b.class(t)
	b.room(t, "node-1", "2")
}

func two(t *testing.T, b *bed) {
	first, rest := took(t, b.StartController(t), b.StartController(t))
	b.room(t, "node-1", "2")
	second := rest[0]
	holder := b.holder(t)
	// A killed controller does not release the lease, which has to expire.
	first.Kill(t)
	if strings.Contains(second.Log(), leads) {
		t.Errorf("both controllers took the lease:\n%s", second.Log())
	}
	b.label(t, "node-1", kata+".max-pods=3")
	took(t, second)
	b.room(t, "node-1", "3")
	if now := b.holder(t); now == holder || now == "" {
		t.Errorf("the lease is held by %q, before by %q", now, holder)
	}
	// A controller that is stopped by SIGTERM releases the lease.
	second.Stop(t)
	if now := b.holder(t); now != "" {
		t.Errorf("the lease is still held by %q", now)
	}
	b.StartController(t)
	b.label(t, "node-1", kata+".max-pods=2")
	b.room(t, "node-1", "2")
}

func away(t *testing.T, b *bed) {
	b.StartController(t)
	b.pod(t, "there", "node-1")
	b.room(t, "node-1", "2")
	is := func(status string) {
		b.Kubectl(t, "", "patch", "node", "node-1", "--subresource=status", `--patch={"status":{"conditions":[{"type":"Ready","status":"`+status+`"}]}}`)
	}
	is("Unknown")
	b.room(t, "node-1", "1")
	is("True")
	b.room(t, "node-1", "2")
	// The node's labels expire: its running pod is still counted.
	b.label(t, "node-1", kata+"-", kata+".max-pods-")
	b.room(t, "node-1", "1")
	b.label(t, "node-1", kata+"=ready", kata+".max-pods=2")
	b.room(t, "node-1", "2")
	b.delete(t, "there")
}

func forbidden(t *testing.T, b *bed) {
	c := b.StartControllerAs(t, b.Kubeconfig(t, kubelet.Guest, ""), namespace)
	testbed.Eventually(t, patience, func() error {
		if log := c.Log(); !strings.Contains(log, `cannot get resource \"leases\" in API group \"coordination.k8s.io\" in the namespace \"berth-system\"`) {
			return fmt.Errorf("the log of the controller is\n%s", log)
		}
		return nil
	})
	unready(t, c)
}

// unready fails unless /readyz of a controller answers 503.
func unready(t *testing.T, c *kubelet.Controller) {
	t.Helper()
	response, err := http.Get(c.URL + "/readyz")
	testbed.Must(t, err)
	response.Body.Close()
	if response.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("/readyz: %s, want 503", response.Status)
	}
}

func taken(t *testing.T, b *bed) {
	c := b.StartController(t)
	b.room(t, "node-1", "2")
	tells(t, c, "/healthz", "")
	tells(t, c, "/readyz", "")
	tells(t, c, "/metrics", "berth_controller_leading 1\n", "berth_controller_nodes 2\n", "berth_controller_failing_nodes 0\n")
	rule := `--patch=[{"op":"replace","path":"/rules/2/verbs","value":["%s"]}]`
	b.Kubectl(t, "", "patch", "clusterrole", "berth-controller-berth-system", "--type=json", fmt.Sprintf(rule, "get"))
	b.label(t, "node-1", kata+".max-pods=5")
	testbed.Eventually(t, patience, func() error {
		if log := c.Log(); !strings.Contains(log, `cannot patch resource \"nodes/status\"`) {
			return fmt.Errorf("the log of the controller is\n%s", log)
		}
		return nil
	})
	tells(t, c, "/metrics", "berth_controller_patch_failures_total{reason=\"Forbidden\"}", "berth_controller_failing_nodes 1\n")
	b.Kubectl(t, "", "patch", "clusterrole", "berth-controller-berth-system", "--type=json", fmt.Sprintf(rule, "patch"))
	b.room(t, "node-1", "5")
	tells(t, c, "/metrics", "berth_controller_failing_nodes 0\n")
}

// slept stops a leader by SIGSTOP until its lease has expired. It then reaches no server: its
// /healthz fails, and it exits, so that two controllers never change nodes.
func slept(t *testing.T, b *bed) {
	var cut atomic.Bool
	renews := make(chan struct{}, 1)
	front := b.Front(t, func(pass http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if cut.Load() {
				if strings.Contains(r.URL.Path, "/leases/") {
					select {
					case renews <- struct{}{}:
					default:
					}
				}
				<-r.Context().Done()
				return
			}
			pass.ServeHTTP(w, r)
		})
	})
	c := b.StartControllerAs(t, b.Kubeconfig(t, kubelet.Admin, front), namespace)
	took(t, c)
	tells(t, c, "/healthz", "")
	cut.Store(true)
	<-renews                                                   // no earlier renewal is still on its way
	const lease, tolerance = 15 * time.Second, 5 * time.Second // as in cmd/berth-controller
	c.Sleep(t, lease+tolerance+time.Second)
	response, err := http.Get(c.URL + "/healthz")
	testbed.Must(t, err)
	defer response.Body.Close()
	if text, err := io.ReadAll(response.Body); response.StatusCode != http.StatusInternalServerError || !strings.Contains(string(text), "failed election to renew leadership") {
		t.Errorf("/healthz: %s: %s, %v, want 500", response.Status, text, err)
	}
	if code := c.Wait(); code != 1 || !strings.Contains(c.Log(), "lost the lease berth-controller: the API server did not answer, or another controller took it") {
		t.Errorf("the controller exited with %d:\n%s", code, c.Log())
	}
	other, _ := took(t, b.StartController(t))
	tells(t, other, "/healthz", "")
}

// blind lets a controller read nodes but not pods. The controller then leaves a node's capacity as
// it is, because pods that it does not know may use it, until it can read pods again.
func blind(t *testing.T, b *bed) {
	var cut atomic.Bool
	watching, end := context.WithCancel(t.Context())
	front := b.Front(t, func(pass http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !strings.HasPrefix(r.URL.Path, "/api/v1/pods") {
				pass.ServeHTTP(w, r)
				return
			}
			if cut.Load() {
				http.Error(w, "none for you", http.StatusForbidden)
				return
			}
			if watching.Err() == nil {
				ctx, stop := context.WithCancel(r.Context())
				defer stop()
				defer context.AfterFunc(watching, stop)()
				r = r.WithContext(ctx)
			}
			pass.ServeHTTP(w, r)
		})
	})
	c := b.StartControllerAs(t, b.Kubeconfig(t, kubelet.Admin, front), namespace)
	b.label(t, "node-1", kata+".max-pods=2")
	b.room(t, "node-1", "2")
	tells(t, c, "/metrics", "berth_controller_watching 1\n")
	cut.Store(true)
	end()
	tells(t, c, "/metrics", "berth_controller_watching 0\n")
	for i := range 3 {
		b.pod(t, fmt.Sprintf("unseen-%d", i), "node-1")
	}
	b.label(t, "node-1", kata+"-")
	tells(t, c, "/metrics", "berth_controller_failing_nodes 1\n")
	b.room(t, "node-1", "2")
	cut.Store(false)
	b.room(t, "node-1", "3")
	tells(t, c, "/metrics", "berth_controller_failing_nodes 0\n")
	b.delete(t, "unseen-0", "unseen-1", "unseen-2")
	b.label(t, "node-1", kata+"=ready")
	b.room(t, "node-1", "2")
}

// unrenewed only prevents a controller from renewing its lease. Once another controller has the
// lease, the first one changes nothing any more, and exits.
func unrenewed(t *testing.T, b *bed) {
	var cut atomic.Bool
	var patches atomic.Int32
	front := b.Front(t, func(pass http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if cut.Load() && strings.Contains(r.URL.Path, "/leases/") {
				<-r.Context().Done()
				return
			}
			if r.Method == http.MethodPatch {
				patches.Add(1)
			}
			pass.ServeHTTP(w, r)
		})
	})
	first := b.StartControllerAs(t, b.Kubeconfig(t, kubelet.Admin, front), namespace)
	took(t, first)
	second := b.StartControllerAs(t, b.Kubeconfig(t, kubelet.Admin, ""), namespace)
	cut.Store(true)
	took(t, second)
	before, holder := patches.Load(), b.holder(t)
	ended := make(chan int, 1)
	go func() { ended <- first.Wait() }()
	for i := 3; ; i++ {
		b.label(t, "node-1", fmt.Sprintf("%s.max-pods=%d", kata, i))
		b.room(t, "node-1", fmt.Sprint(i))
		select {
		case code := <-ended:
			if after := patches.Load(); code != 1 || after != before {
				t.Errorf("the controller exited with %d, after %d changes while another controller led:\n%s", code, after-before, first.Log())
			}
			if now := b.holder(t); now != holder {
				t.Errorf("the holder of the lease was %q and is now %q", holder, now)
			}
			b.label(t, "node-1", kata+".max-pods=2")
			b.room(t, "node-1", "2")
			return
		default:
		}
	}
}

// early starts a controller before the API server answers.
func early(t *testing.T, b *bed) {
	var there atomic.Bool
	front := b.Front(t, func(pass http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !there.Load() {
				panic(http.ErrAbortHandler) // closes the connection
			}
			pass.ServeHTTP(w, r)
		})
	})
	c := b.StartControllerAs(t, b.Kubeconfig(t, kubelet.Admin, front), namespace)
	tells(t, c, "/healthz", "")
	testbed.Eventually(t, patience, func() error {
		if log := c.Log(); !strings.Contains(log, "Error retrieving lease lock") {
			return fmt.Errorf("the log of the controller is\n%s", log)
		}
		return nil
	})
	unready(t, c)
	there.Store(true)
	took(t, c)
	tells(t, c, "/readyz", "")
}

// stuck leaves the patches of several nodes unanswered, more than the controller sends at a time.
// Other nodes are patched nevertheless.
func stuck(t *testing.T, b *bed) {
	const many = 17
	var cut atomic.Bool
	front := b.Front(t, func(pass http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if cut.Load() && r.Method == http.MethodPatch && strings.Contains(r.URL.Path, "/nodes/stuck-") {
				<-r.Context().Done()
				return
			}
			pass.ServeHTTP(w, r)
		})
	})
	c := b.StartControllerAs(t, b.Kubeconfig(t, kubelet.Admin, front), namespace)
	var nodes []string
	for i := range many {
		nodes = append(nodes, fmt.Sprintf("stuck-%d", i))
		b.node(t, nodes[i], kata+": ready, stuck: 'true'")
	}
	for _, name := range nodes {
		b.room(t, name, "110")
	}
	cut.Store(true)
	b.Kubectl(t, "", "label", "node", "--selector=stuck", kata+".max-pods=3")
	tells(t, c, "/metrics", fmt.Sprintf("berth_controller_failing_nodes %d\n", many))
	b.label(t, "node-1", kata+".max-pods=4")
	b.room(t, "node-1", "4")
	cut.Store(false)
	for _, name := range nodes {
		b.room(t, name, "3")
	}
	b.Kubectl(t, "", "delete", "node", "--selector=stuck")
	tells(t, c, "/metrics", "berth_controller_failing_nodes 0\n")
}

// tells waits until a controller's answer at a path contains all these texts.
func tells(t *testing.T, c *kubelet.Controller, path string, wants ...string) {
	t.Helper()
	testbed.Eventually(t, patience, func() error {
		response, err := http.Get(c.URL + path)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		if err != nil || response.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s, %w: %s", path, response.Status, err, text)
		}
		for _, want := range wants {
			if !strings.Contains(string(text), want) {
				return fmt.Errorf("%s does not have %q:\n%s", path, want, text)
			}
		}
		return nil
	})
}

// TestFortyFirst gives a node that all pods prefer a capacity of 40: a real scheduler puts the
// 41st pod on the other node. When that node's handler accepts no more pods, the next pod waits,
// and the running pod stays.
func TestFortyFirst(t *testing.T) {
	b := newBed(t)
	b.StartScheduler(t)
	b.StartController(t)
	node := func(name string, most int) {
		b.node(t, name, fmt.Sprintf("%s: ready, %s.present: 'true', %s.max-pods: '%d'", kata, kata, kata, most))
		b.room(t, name, fmt.Sprint(most))
	}
	node("wanted", 40)
	node("other", 40)
	b.Kubectl(t, "", "label", "node", "wanted", "kubernetes.io/hostname=wanted")
	scheduled := func(names ...string) {
		t.Helper()
		var list []string
		for _, name := range names {
			list = append(list, "{apiVersion: v1, kind: Pod, metadata: {name: "+name+"}, spec: {runtimeClassName: kata, containers: [{name: main, image: none}], "+
				"affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 100, preference: {matchExpressions: "+
				"[{key: kubernetes.io/hostname, operator: In, values: [wanted]}]}}]}}}}")
		}
		b.create(t, strings.Join(list, "\n---\n"))
	}
	on := func(wanted, other, none int) {
		t.Helper()
		want := map[string]int{"wanted": wanted, "other": other, "": none}
		testbed.Eventually(t, patience, func() error {
			var pods corev1.PodList
			if err := json.Unmarshal([]byte(b.Kubectl(t, "", "get", "pods", "--output=json")), &pods); err != nil {
				return err
			}
			got := map[string]int{"wanted": 0, "other": 0, "": 0}
			for i := range pods.Items {
				got[pods.Items[i].Spec.NodeName]++
			}
			if !maps.Equal(got, want) {
				return fmt.Errorf("pods are on %v, want %v", got, want)
			}
			return nil
		})
	}
	var first []string
	for i := range 40 {
		first = append(first, fmt.Sprintf("p-%d", i))
	}
	scheduled(first...)
	on(40, 0, 0)
	scheduled("late")
	on(40, 1, 0)
	b.label(t, "other", kata+"-")
	b.room(t, "other", "1")
	scheduled("waits")
	on(40, 1, 1)
	// The waiting pod is scheduled once another one was deleted.
	b.delete(t, "p-0")
	on(40, 1, 0)
}

// TestPriorities fills a node's capacity for a handler and creates pods of higher priority: the
// scheduler evicts one pod for a pod that may preempt, and none for a pod that may not.
func TestPriorities(t *testing.T) {
	b := newBed(t)
	b.StartScheduler(t)
	b.StartController(t)
	b.node(t, "full", kata+": ready, "+kata+".present: 'true', "+kata+".max-pods: '2'")
	b.room(t, "full", "2")
	b.create(t, `
{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: high}, value: 1000}
---
{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: patient}, value: 1000, preemptionPolicy: Never}
`)
	pod := func(name, priority string) {
		t.Helper()
		b.create(t, "{apiVersion: v1, kind: Pod, metadata: {name: "+name+"}, spec: {runtimeClassName: kata, priorityClassName: '"+priority+"', containers: [{name: main, image: none}]}}")
	}
	is := func(name, want string) {
		t.Helper()
		testbed.Eventually(t, patience, func() error {
			got := b.Kubectl(t, "", "get", "pod", name, `--output=jsonpath={.spec.nodeName}{.status.conditions[?(@.type=="PodScheduled")].reason}`)
			if got != want {
				return fmt.Errorf("pod %s is %q, want %q", name, got, want)
			}
			return nil
		})
	}
	// leaving returns the pods with a deletion timestamp, which a kubelet would stop.
	leaving := func() string {
		return b.Kubectl(t, "", "get", "pods", `--output=jsonpath={.items[?(@.metadata.deletionTimestamp)].metadata.name}`)
	}
	pod("low-0", "")
	pod("low-1", "")
	is("low-0", "full")
	is("low-1", "full")
	pod("patient", "patient")
	is("patient", "Unschedulable")
	if got := leaving(); got != "" {
		t.Errorf("%s was evicted for a pod that may not preempt", got)
	}
	b.delete(t, "patient")

	pod("high", "high")
	var victim string
	testbed.Eventually(t, patience, func() error {
		if victim = leaving(); victim == "" {
			return errors.New("no pod was evicted")
		}
		return nil
	})
	b.delete(t, victim)
	is("high", "full")
	b.room(t, "full", "2")
	if got := leaving(); got != "" {
		t.Errorf("for one pod, %s was evicted besides %s", got, victim)
	}
}
