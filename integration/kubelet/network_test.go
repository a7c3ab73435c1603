package kubelet

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// hostNetwork runs a pod in the network of its node.
func (b *bed) hostNetwork(t *testing.T, n *Namespace) {
	for _, class := range b.classes {
		if class.sandboxed {
			continue // its network stack is its own
		}
		n.CreateOf(t, class.name, `
  hostNetwork: true
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: IMAGE, command: [sleep, "3600"]}]
`)
		pod := n.WaitReady(t, class.name)
		if pod.Status.PodIP != b.Address.String() {
			t.Errorf("%s: the pod's address is %s, the node's %s", class.name, pod.Status.PodIP, b.Address)
		}
		testbed.Contains(t, n.Exec(t, class.name, "ip", "-o", "address"), b.Address.String()+"/", "%s: the node's address is not inside", class.name)
	}
}

// network looks what a pod of its own network is told, and reaches it by its
// address, by a port of the host and from another pod.
func (b *bed) network(t *testing.T, n *Namespace) {
	ports := map[string]string{}
	for _, class := range b.classes {
		ports[class.name] = freePort(t, b.Address)
		n.Create(t, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %[1]s}
spec:
  runtimeClassName: %[1]s
  hostname: chosen
  subdomain: below
  hostAliases: [{ip: 192.0.2.7, hostnames: [alias.test]}]
  dnsConfig: {options: [{name: ndots, value: "3"}]}
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: IMAGE
    command: [sh, -c, 'echo from $HOSTNAME > /tmp/index.html; httpd -f -p 80 -h /tmp']
    ports: [{containerPort: 80, hostPort: %[2]s}]
    readinessProbe: {httpGet: {port: 80, path: /}, periodSeconds: 1}
`, class.name, ports[class.name]))
	}
	client := &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	var previous *corev1.Pod
	for _, class := range b.classes {
		pod := n.WaitReady(t, class.name)
		for _, address := range []string{net.JoinHostPort(pod.Status.PodIP, "80"), net.JoinHostPort(b.Address.String(), ports[class.name])} {
			response, err := client.Get("http://" + address + "/")
			testbed.Mustf(t, err, "%s", class.name)
			body, err := io.ReadAll(response.Body)
			response.Body.Close()
			if err != nil || string(body) != "from chosen\n" {
				t.Errorf("%s: %s answers %q: %v", class.name, address, body, err)
			}
		}
		if previous != nil {
			testbed.Same(t, n.Exec(t, class.name, "wget", "-qO-", "http://"+previous.Status.PodIP), "from chosen\n", "%s: pod %s answers", class.name, previous.Name)
		}
		previous = pod
		for file, want := range map[string]string{
			"/etc/hosts":       "192.0.2.7\talias.test",
			"/etc/resolv.conf": "nameserver " + ClusterDNS,
			"/etc/hostname":    "chosen",
		} {
			testbed.Contains(t, n.Exec(t, class.name, "cat", file), want, "%s: %s", class.name, file)
		}
		if body := n.Exec(t, class.name, "cat", "/etc/resolv.conf"); !strings.Contains(body, n.Name+".svc.cluster.test") || !strings.Contains(body, "ndots:3") {
			t.Errorf("%s: /etc/resolv.conf is\n%s", class.name, body)
		}
	}
}
