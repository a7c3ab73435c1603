package kubelet

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// userNamespaces runs pods with hostUsers: false and volumes of several kinds, and checks the
// owners of the volumes' files.
func (b *bed) userNamespaces(t *testing.T, n *Namespace) {
	n.Create(t, `
{apiVersion: v1, kind: ConfigMap, metadata: {name: config}, data: {key: from a config map}}
---
{apiVersion: v1, kind: Secret, metadata: {name: hidden}, stringData: {key: from a secret}}
`)
	for _, class := range b.classes {
		n.CreateOf(t, class.name, `
  hostUsers: false
  terminationGracePeriodSeconds: 1
  securityContext: {fsGroup: 4242}
  volumes:
  - {name: config, configMap: {name: config}}
  - {name: hidden, secret: {secretName: hidden, defaultMode: 0400}}
  - {name: empty, emptyDir: {}}
  - {name: memory, emptyDir: {medium: Memory}}
  - {name: image, image: {reference: IMAGE, pullPolicy: IfNotPresent}}
  containers:
  - &container
    name: main
    image: IMAGE
    command: [sh, -c, "echo last words > /dev/termination-log; exec sleep 3600"]
    volumeMounts:
    - {name: config, mountPath: /config}
    - {name: hidden, mountPath: /hidden}
    - {name: empty, mountPath: /empty}
    - {name: memory, mountPath: /memory}
    - {name: image, mountPath: /image}
    - {name: image, mountPath: /part, subPath: etc}
  - <<: *container
    name: user
    securityContext: {runAsUser: 1000, runAsGroup: 1000}
`)
	}
	features := b.nodeHandlers(t)
	for _, class := range b.classes {
		t.Run(class.name, func(t *testing.T) {
			if class.sandboxed {
				if features["runsc"].UserNamespaces == nil || *features["runsc"].UserNamespaces {
					t.Error("the node reports that gVisor has user namespaces")
				}
				n.WaitEvent(t, class.name, "FailedCreatePodSandBox", "user namespaces")
				return
			}
			n.WaitReady(t, class.name)
			mapping := strings.Fields(n.Exec(t, class.name, "cat", "/proc/self/uid_map"))
			if len(mapping) != 3 || mapping[0] != "0" || mapping[1] == "0" {
				t.Errorf("the uid map is %v, want one range that does not begin at 0 of the host", mapping)
			}
			for script, want := range map[string]string{
				"cat /config/key /hidden/key":                                          "from a config mapfrom a secret",
				"stat -Lc %u:%g /hidden/key /empty /memory /image/bin/busybox /part":   "0:4242\n0:4242\n0:4242\n0:0\n0:0",
				"echo x > /empty/root; echo x > /memory/root; stat -c %u /empty/root":  "0",
				"cat /part/hostname 2>/dev/null; test -e /part/passwd && echo there":   "there",
				"touch /image/x 2>/dev/null || echo read only":                         "read only",
				"cat /dev/termination-log; stat -c %u /dev/termination-log /etc/hosts": "last words\n0\n0",
			} {
				testbed.Same(t, strings.TrimSpace(n.Exec(t, class.name, "sh", "-c", script)), want, "%s", script)
			}
			testbed.Same(t, n.Kubectl(t, "exec", class.name, "--container=user", "--", "sh", "-c", "id -u; cat /empty/root; echo y > /empty/user && stat -c %u:%g /empty/user"), "1000\nx\n1000:4242\n", "container user prints")
			testbed.Same(t, n.Kubectl(t, "logs", class.name), "", "the log is")
		})
	}
}

// nodeHandlers returns the features of handlers in the node's status.
func (b *bed) nodeHandlers(t *testing.T) map[string]corev1.NodeRuntimeHandlerFeatures {
	t.Helper()
	var nodes corev1.NodeList
	testbed.Must(t, b.get("/api/v1/nodes", &nodes))
	all := map[string]corev1.NodeRuntimeHandlerFeatures{}
	for _, node := range nodes.Items {
		for _, h := range node.Status.RuntimeHandlers {
			if h.Features != nil {
				all[h.Name] = *h.Features
			}
		}
	}
	return all
}
