package kubelet

import (
	"fmt"
	"strings"
	"testing"

	"github.com/berth-cri/berth/integration/testbed"
)

// snapshotters runs one image on each of them, whichever the kubelet pulled it for.
func (b *bed) snapshotters(t *testing.T, n *Namespace) {
	image := b.berth.Registry.Push(t, "kubelet/estargz:1", testbed.EStargz(t, testbed.Busybox(t, testbed.WithLayer(
		testbed.File{Path: "model", Mode: 0o644, Body: []byte("weights")},
	))))
	for _, class := range []string{"on-stargz", "on-erofs", "runc"} {
		n.Create(t, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %[1]s}
spec:
  runtimeClassName: %[1]s
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: %[2]q, command: [sleep, "3600"]}]
`, class, image))
	}
	for _, class := range []string{"on-stargz", "on-erofs", "runc"} {
		n.WaitReady(t, class)
		testbed.Same(t, strings.TrimSpace(n.Exec(t, class, "sh", "-c", "cat /model && echo ' mine' > /new && cat /new")), "weights mine", "%s", class)
	}
}
