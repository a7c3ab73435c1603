// Package labels checks that a node's labels follow berth's handlers: a real berth writes its
// feature file, the worker of a real Node Feature Discovery reads it, and its master sets labels
// and taints on a node of a real API server, also by NodeFeatureRules.
package labels

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-cri/berth/integration/kubelet"
	"github.com/berth-cri/berth/integration/testbed"
	"github.com/berth-cri/berth/pkg/nodelabel"
)

// patience is much longer than any step here takes on an idle machine.
const patience = 2 * time.Minute

// bed is a node whose labels come from a berth. Its handlers are runc, gvisor, and kata, which runs
// crun but has this name because the rules use it.
type bed struct {
	*kubelet.Server
	berth *testbed.Berth
	kata  string // the path of the handler's runtime, which a test may move away
}

func newBed(t *testing.T) *bed {
	t.Helper()
	b := &bed{kata: filepath.Join(t.TempDir(), "crun")}
	program, err := os.ReadFile(testbed.Part(t, testbed.Crun))
	if err == nil {
		err = os.WriteFile(b.kata, program, 0o755)
	}
	features := filepath.Join(t.TempDir(), "features.d")
	if err == nil {
		err = os.Mkdir(features, 0o755)
	}
	testbed.Must(t, err)
	b.berth = testbed.StartBerth(t, testbed.Options{
		Runtimes:       map[string]string{"runc": testbed.Part(t, testbed.Runc), "gvisor": testbed.Part(t, testbed.Runsc), "kata": b.kata},
		DefaultRuntime: "runc",
		Config: fmt.Sprintf("[node_labels]\nfile = %q\nlifetime = \"10s\"\n[handlers]\nprobe_interval = \"1s\"\n",
			filepath.Join(features, "berth")),
	})
	b.Server = kubelet.StartServer(t)
	for _, node := range []string{kubelet.NodeName, byHand} {
		// As on every node there are labels and annotations, to which NFD adds.
		b.Kubectl(t, "{apiVersion: v1, kind: Node, metadata: {name: "+node+", labels: {node: test}, annotations: {node: test}}, "+
			"status: {capacity: {pods: 1}, allocatable: {pods: 1}}}", "create", "--filename=-")
	}
	b.StartNFD(t, features)
	return b
}

// byHand is a node on which Node Feature Discovery does not run.
const byHand = "node-2"

// run runs a command of berth, and returns its output.
func (b *bed) run(t *testing.T, arguments ...string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), filepath.Join(b.berth.Bin, "berth"), arguments...)
	command.Env = append(os.Environ(), "BERTH_ADMIN_SOCKET="+filepath.Join(filepath.Dir(b.berth.Socket), "admin.sock"))
	var problems bytes.Buffer
	command.Stderr = &problems
	out, err := command.Output()
	if err != nil {
		t.Fatalf("berth %v: %v: %s", arguments, err, problems.String())
	}
	return string(out)
}

// labels are wanted labels of a node by their keys; an empty value means that the label is missing.
type labels map[string]string

// wait waits until a node has the wanted labels.
func (b *bed) wait(t *testing.T, name string, want labels) *corev1.Node {
	t.Helper()
	var node *corev1.Node
	testbed.Eventually(t, patience, func() (err error) {
		if node, err = b.Node(name); err != nil {
			return err
		}
		for key, value := range want {
			if got := node.Labels[key]; got != value {
				return fmt.Errorf("node %s has %s=%q, want %q; all its labels: %v", name, key, got, value, node.Labels)
			}
		}
		return nil
	})
	return node
}

// ruled waits until the node has the taint of nodes dedicated to kata, or does not have it.
func (b *bed) ruled(t *testing.T, tainted bool) {
	t.Helper()
	testbed.Eventually(t, patience, func() error {
		node, err := b.Node(kubelet.NodeName)
		if err != nil {
			return err
		}
		taint := corev1.Taint{Key: nodelabel.Prefix + "dedicated", Value: "kata", Effect: corev1.TaintEffectNoSchedule}
		has := false
		for i := range node.Spec.Taints {
			has = has || node.Spec.Taints[i].Value == taint.Value && node.Spec.Taints[i].MatchTaint(&taint)
		}
		if has != tainted {
			return fmt.Errorf("the node has the taint: %v, want %v", has, tainted)
		}
		return nil
	})
}

// byHand labels the other node by a command, as the documentation describes, and fails unless both
// nodes then have the same labels of handlers.
func (b *bed) byHand(t *testing.T) {
	t.Helper()
	b.Kubectl(t, b.run(t, "handlers", "--print-labels", "--node="+byHand, "-o", "yaml"),
		"apply", "--server-side", "--field-manager=berth-labels", "--filename=-")
	node, err := b.Node(byHand)
	testbed.Must(t, err)
	other := b.wait(t, kubelet.NodeName, nil)
	for _, labels := range []map[string]string{node.Labels, other.Labels} {
		maps.DeleteFunc(labels, func(key, _ string) bool { return !strings.HasPrefix(key, nodelabel.Prefix+"handler.") })
	}
	if !maps.Equal(node.Labels, other.Labels) {
		t.Errorf("labelled by hand: %v\nby Node Feature Discovery: %v", node.Labels, other.Labels)
	}
	lines := strings.Fields(b.run(t, "handlers", "--print-labels"))
	b.Kubectl(t, "", slices.Concat([]string{"label", "node", byHand, "--overwrite"}, lines)...)
	if len(lines) != len(node.Labels) {
		t.Errorf("berth prints the labels %v, the node has %v", lines, node.Labels)
	}
}

func TestNodeFeatureDiscovery(t *testing.T) {
	b := newBed(t)
	all := labels{nodelabel.About("runc", "user-namespaces"): "true", nodelabel.About("runc", "state"): ""}
	none := labels{}
	for name, isolation := range map[string]string{"runc": "shared-kernel", "gvisor": "user-space-kernel", "kata": "shared-kernel"} {
		all[nodelabel.Handler(name)], all[nodelabel.About(name, "isolation")] = nodelabel.Ready, isolation
		none[nodelabel.Handler(name)], none[nodelabel.About(name, "isolation")] = "", ""
		all[nodelabel.Present(name)], none[nodelabel.Present(name)] = nodelabel.True, nodelabel.True
	}
	b.wait(t, kubelet.NodeName, all)
	b.byHand(t)

	for _, file := range []string{"nodefeaturerule.yaml", "nodefeaturerule-dedicated.yaml"} {
		b.Kubectl(t, "", "create", "--validate=strict", "--filename="+filepath.Join("../../contrib/kubernetes", file))
	}
	const isolated, broken = nodelabel.Prefix + "isolation.", nodelabel.Prefix + "handlers-not-ready"
	b.wait(t, kubelet.NodeName, labels{isolated + "shared-kernel": "true", isolated + "user-space-kernel": "true", isolated + "vm": "", broken: ""})
	b.ruled(t, true)

	b.run(t, "handler", "cordon", "gvisor")
	b.wait(t, kubelet.NodeName, labels{nodelabel.Handler("gvisor"): "", nodelabel.Present("gvisor"): nodelabel.True, nodelabel.Handler("runc"): nodelabel.Ready, isolated + "user-space-kernel": "", broken: ""})
	b.byHand(t)
	b.run(t, "handler", "uncordon", "gvisor")
	b.wait(t, kubelet.NodeName, all)
	b.wait(t, kubelet.NodeName, labels{isolated + "user-space-kernel": "true"})

	testbed.Must(t, os.Rename(b.kata, b.kata+".away"))
	b.wait(t, kubelet.NodeName, labels{nodelabel.Handler("kata"): "", nodelabel.Present("kata"): nodelabel.True, nodelabel.About("kata", "isolation"): "", broken: "true"})
	b.ruled(t, true)
	testbed.Must(t, os.Rename(b.kata+".away", b.kata))
	b.wait(t, kubelet.NodeName, all)
	b.wait(t, kubelet.NodeName, labels{broken: ""})
	b.ruled(t, true)

	// A short restart of berth changes nothing. After the lifetime of its file, of these labels only
	// those of the presence of handlers stay.
	b.berth.Kill9(t)
	b.berth.Start(t)
	b.wait(t, kubelet.NodeName, all)
	b.berth.Stop(t)
	b.wait(t, kubelet.NodeName, all)
	b.wait(t, kubelet.NodeName, none)
	b.ruled(t, false)
	b.berth.Start(t)
	b.wait(t, kubelet.NodeName, all)
}
