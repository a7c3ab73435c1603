package guide

import (
	"fmt"
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-cri/berth/integration/kubelet"
	"github.com/berth-cri/berth/integration/testbed"
)

func TestRuntimeClassPage(t *testing.T) {
	walk(t, "../../docs/runtimeclass.md", "## From two runtimes to pods that chose them", 8, newClusterNode)
}

// twoRuntimes adds gVisor, kubectl and kubectl-berth to a node.
const twoRuntimes = `
cp -r "$RUNSC" "$(dirname "$RUNSC")/gvisor-bin" /usr/local/bin/
cp "$KUBECTL" /usr/local/bin/kubectl
cp "$BERTH/kubectl-berth" /usr/local/bin/
`

// newClusterNode is a node with two runtimes, in a cluster with a second node without any.
func newClusterNode(t *testing.T) *node {
	t.Helper()
	testbed.NeedRoot(t)
	testbed.NeedNetwork(t)
	network, registry := testbed.NewCNI(t), testbed.NewRegistry(t, testbed.RegistryOptions{})
	registry.Push(t, "busybox:1", testbed.Busybox(t))
	n := enterNode(t, registry, twoRuntimes,
		fmt.Sprintf("[cni]\nconf_dir = %q\nbin_dirs = [%q]\n", network.ConfDir, network.BinDir),
		"RUNSC="+testbed.Part(t, testbed.Runsc), "KUBECTL="+testbed.Part(t, testbed.Kubectl))
	n.client = testbed.Dial(t, n.inside("/run/berth/berth.sock"), n.logs, n.cgroup)
	t.Cleanup(n.killRest)
	n.serve()
	c := kubelet.Start(t, kubelet.Options{Machine: &kubelet.Machine{
		Enter:  []string{"nsenter", "--mount", fmt.Sprintf("--target=%d", n.holder.Process.Pid), "--"},
		Socket: "/run/berth/berth.sock", Cgroup: n.cgroup,
	}})
	c.Register(t, "node-2", corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("64"), corev1.ResourceMemory: resource.MustParse("256Gi"), corev1.ResourcePods: resource.MustParse("110"),
	})
	n.dir = "/opt"
	n.environment = []string{"KUBECONFIG=" + c.Kubeconfig()}
	n.more = map[string]func(*testing.T){
		"start nfd": func(t *testing.T) {
			// A kubelet would create this directory for the worker's volume.
			testbed.Must(t, os.MkdirAll(n.inside("/etc/kubernetes/node-feature-discovery/features.d"), 0o755))
			c.StartNFD(n.t, "")
		},
		"start controller": func(*testing.T) { c.StartController(n.t) },
	}
	return n
}
