package kubelet

import (
	"strings"
	"testing"

	"github.com/berth-cri/berth/integration/testbed"
)

// sharedProcesses checks that a container sees and can kill the processes of another container if
// the pod shares its PID namespace.
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
		testbed.Contains(t, processes, "sleep 3601", "%s: processes that the first container sees", class.name)
		if first := n.Exec(t, class.name, "cat", "/proc/1/cmdline"); strings.HasPrefix(first, "sleep") {
			t.Errorf("%s: PID 1 is a process of a container: %q", class.name, first)
		}
		// The other container exits if its process is killed from this one.
		n.Exec(t, class.name, "sh", "-c", "kill -9 $(ps -o pid,args | awk '/[s]leep 3601/ { print $1 }')")
		n.WaitRestarts(t, class.name, "other", 1)
	}
}
