package kubelet

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-cri/berth/integration/testbed"
)

// volumes checks volumes of many kinds under each class.
func (b *bed) volumes(t *testing.T, n *Namespace) {
	host := t.TempDir()
	testbed.Must(t, os.WriteFile(filepath.Join(host, "given"), []byte("by the host\n"), 0o600))
	data := b.berth.Registry.Push(t, "kubelet/data:1", testbed.Image(t, testbed.WithLayer(
		testbed.File{Path: "model", Mode: 0o644, Body: []byte("weights")},
	)))
	artifact := b.berth.Registry.Push(t, "kubelet/artifact:1", testbed.Artifact(t,
		testbed.File{Path: "weights/model.bin", Body: []byte("of an artifact")}, testbed.File{Path: "README.md", Body: []byte("read me")},
	))
	n.Create(t, `
{apiVersion: v1, kind: ConfigMap, metadata: {name: config}, data: {key: from a config map, other: unused}}
---
{apiVersion: v1, kind: Secret, metadata: {name: hidden}, stringData: {key: from a secret}}
`)
	for _, class := range b.classes {
		n.Create(t, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %[1]s, labels: {app: volumes}}
spec:
  runtimeClassName: %[1]s
  terminationGracePeriodSeconds: 1
  securityContext: {fsGroup: 4242}
  volumes:
  - {name: config, configMap: {name: config, items: [{key: key, path: sub/key}]}}
  - {name: hidden, secret: {secretName: hidden, defaultMode: 0440}}
  - name: all
    projected:
      sources:
      - configMap: {name: config}
      - secret: {name: hidden, items: [{key: key, path: hidden}]}
      - downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}]}
      - serviceAccountToken: {path: token, audience: someone, expirationSeconds: 3600}
  - {name: empty, emptyDir: {}}
  - {name: memory, emptyDir: {medium: Memory, sizeLimit: 8Mi}}
  - {name: host, hostPath: {path: %[2]q, type: Directory}}
  - {name: file, hostPath: {path: %[2]s/given, type: File}}
  - {name: image, image: {reference: %[3]q}}
  - {name: artifact, image: {reference: %[4]q}}
  containers:
  - &container
    name: main
    image: IMAGE
    command: [sleep, "3600"]
    env:
    - {name: FROM_CONFIG, valueFrom: {configMapKeyRef: {name: config, key: key}}}
    - {name: FROM_SECRET, valueFrom: {secretKeyRef: {name: hidden, key: key}}}
    - {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
    volumeMounts:
    - {name: config, mountPath: /config}
    - {name: hidden, mountPath: /hidden, readOnly: true}
    - {name: all, mountPath: /all}
    - {name: empty, mountPath: /empty}
    - {name: memory, mountPath: /memory}
    - {name: host, mountPath: /host}
    - {name: file, mountPath: /file, readOnly: true}
    - {name: config, mountPath: /one-file, subPath: sub/key}
    - {name: image, mountPath: /image}
    - {name: artifact, mountPath: /artifact}
    - {name: artifact, mountPath: /etc/README, subPath: README.md}
  - <<: *container
    name: other
`, class.name, host, data, artifact))
	}
	for _, class := range b.classes {
		t.Run(class.name, func(t *testing.T) {
			pod := n.WaitReady(t, class.name)
			for script, want := range map[string]string{
				"cat /config/sub/key; echo; ls /config":                                    "from a config map\nsub",
				"cat /one-file":                                                            "from a config map",
				"cat /hidden/key; stat -Lc ' %a %g' /hidden/key":                           "from a secret 440 4242",
				"cat /all/key /all/hidden /all/labels":                                     `from a config mapfrom a secretapp="volumes"`,
				`echo "$FROM_CONFIG, $FROM_SECRET"`:                                        "from a config map, from a secret",
				"echo $POD_IP":                                                             pod.Status.PodIP,
				"cat /image/model; touch /image/x 2>/dev/null || echo ' read only'":        "weights read only",
				"cat /artifact/weights/model.bin; echo; cat /etc/README":                   "of an artifact\nread me",
				"cat /host/given /file":                                                    "by the host\nby the host",
				"echo from inside > /host/" + class.name:                                   "",
				"echo x 2>/dev/null > /hidden/new || echo read only":                       "read only",
				"echo shared > /empty/file; echo shared > /memory/file; stat -c %g /empty": "4242",
				"id -G": "0 4242",
			} {
				testbed.Same(t, strings.TrimSpace(n.Exec(t, class.name, "sh", "-c", script)), want, "%s: output", script)
			}
			testbed.Same(t, readFile(t, filepath.Join(host, class.name)), "from inside\n", "the pod's file on the host has")
			testbed.Same(t, n.Kubectl(t, "exec", class.name, "--container=other", "--", "cat", "/empty/file", "/memory/file"), "shared\nshared\n", "files in the other container are")
			testbed.Contains(t, n.Exec(t, class.name, "sh", "-c", "dd if=/dev/zero of=/memory/large bs=1M count=16 2>&1; rm -f /memory/large"), "No space left", "writing 16 MiB to a volume of 8 MiB")
		})
	}
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	body, err := os.ReadFile(path)
	testbed.Must(t, err)
	return string(body)
}
