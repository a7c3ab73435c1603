package kubelet

import (
	"os"
	"path/filepath"
	"slices"

	"github.com/berth-cri/berth/integration/testbed"
)

// featureFiles is where Node Feature Discovery reads features from, on each node.
const featureFiles = "/etc/kubernetes/node-feature-discovery/features.d"

// withFeatures runs a command with a directory of the host as that of features.
const withFeatures = `
mount -t tmpfs layer "$1"
mkdir "$1/etc" "$1/work"
mount -t overlay overlay -o "lowerdir=/etc,upperdir=$1/etc,workdir=$1/work" /etc
mkdir -p ` + featureFiles + `
mount --bind "$2" ` + featureFiles + `
shift 2
exec "$@"
`

// StartNFD starts Node Feature Discovery, which from then on labels the node by the
// files of a directory. Without a name it is the one that the node's machine has.
func (c *Cluster) StartNFD(t testbed.T, features string) {
	t.Helper()
	const namespace = "node-feature-discovery"
	crds := filepath.Join(filepath.Dir(testbed.Part(t, testbed.NFDMaster)), "nfd-crds.yaml")
	for _, arguments := range [][]string{
		{"create", "namespace", namespace},
		{"create", "--filename=" + crds},
		{"wait", "--for=condition=Established", "--timeout=1m", "--filename=" + crds},
	} {
		c.Kubectl(t, "", arguments...)
	}
	environment := []string{"env", "KUBERNETES_NAMESPACE=" + namespace, "NODE_NAME=" + NodeName}
	c.runOn(t, environment, testbed.NFDMaster, "-kubeconfig="+c.Kubeconfig(), "-port="+freePort(t, c.Address), "-enable-taints")
	enter := c.machine.Enter
	if features != "" {
		layer := filepath.Join(c.dir, "nfd")
		if err := os.Mkdir(layer, 0o700); err != nil {
			t.Fatalf("%v", err)
		}
		enter = slices.Concat(enter, []string{"unshare", "--mount", "--propagation=private", "sh", "-euc", withFeatures, "sh", layer, features})
	}
	c.runOn(
		t, slices.Concat(enter, environment), testbed.NFDWorker,
		"-kubeconfig="+c.Kubeconfig(), "-port="+freePort(t, c.Address), "-owner-refs=node",
		"-feature-sources=local", "-label-sources=local",
		// It looks when files change, but not twice in one second.
		`-options={"core":{"sleepInterval":"5s"}}`,
	)
}
