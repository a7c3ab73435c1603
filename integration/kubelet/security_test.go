package kubelet

import (
	"strings"
	"testing"

	"github.com/berth-cri/berth/integration/testbed"
)

// sharedProcesses looks from one container at the processes of the other.
func (b *bed) sharedProcesses(t *testing.T, n *Namespace) {
	for _, class := range b.classes {
		n.CreateOf(t, class.name, `
  shareProcessNamespace: true
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: IMAGE, command: [sleep, "3600"]}
  - {name: other, image: IMAGE, command: [sleep, "3601"]}
`)
	}
	for _, class := range b.classes {
		n.WaitReady(t, class.name)
		processes := n.Exec(t, class.name, "ps", "-o", "pid,args")
		testbed.Contains(t, processes, "sleep 3601", "%s: the other container's process is not seen", class.name)
		if first := n.Exec(t, class.name, "cat", "/proc/1/cmdline"); strings.HasPrefix(first, "sleep") {
			t.Errorf("%s: process 1 is a container's: %q", class.name, first)
		}
		// Whoever ends another's process ends the other's container.
		n.Exec(t, class.name, "sh", "-c", "kill -9 $(ps -o pid,args | awk '/[s]leep 3601/ { print $1 }')")
		n.WaitRestarts(t, class.name, "other", 1)
	}
}

// security looks from inside at what a security context asks for.
func (b *bed) security(t *testing.T, n *Namespace) {
	for _, class := range b.classes {
		if class.sandboxed {
			continue // its kernel reports none of these
		}
		n.CreateOf(t, class.name, `
  terminationGracePeriodSeconds: 1
  securityContext:
    seccompProfile: {type: RuntimeDefault}
    supplementalGroups: [3000]
    sysctls: [{name: net.ipv4.ip_unprivileged_port_start, value: "81"}, {name: net.core.somaxconn, value: "321"}]
  containers:
  - name: main
    image: IMAGE
    command: [sleep, "3600"]
    securityContext:
      runAsUser: 1000
      runAsGroup: 1234
      readOnlyRootFilesystem: true
      allowPrivilegeEscalation: false
      capabilities: {drop: [ALL], add: [NET_BIND_SERVICE]}
  - {name: privileged, image: IMAGE, command: [sleep, "3600"], securityContext: {privileged: true}}
`)
	}
	for _, class := range b.classes {
		if class.sandboxed {
			continue
		}
		n.WaitReady(t, class.name)
		for script, want := range map[string]string{
			"id -u; id -g; id -G": "1000\n1234\n1234 2000 3000",
			"grep -E '^(Seccomp|NoNewPrivs|CapBnd):' /proc/self/status | tr -d '\t'": "CapBnd:0000000000000400\nNoNewPrivs:1\nSeccomp:2",
			"touch /file 2>&1": "touch: /file: Read-only file system",
			"cat /proc/sys/net/ipv4/ip_unprivileged_port_start /proc/sys/net/core/somaxconn": "81\n321",
		} {
			got := strings.TrimSpace(n.Exec(t, class.name, "sh", "-c", script+"; true"))
			testbed.Same(t, got, want, "%s: %s", class.name, script)
		}
		testbed.Same(t, n.Kubectl(t, "exec", class.name, "--container=privileged", "--", "sh", "-c", "grep Seccomp: /proc/self/status; test -e /dev/fuse -o -e /dev/loop-control && echo devices"), "Seccomp:\t0\ndevices\n", "%s: the privileged container sees", class.name)
	}
}
