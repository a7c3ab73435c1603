package faults

import (
	"os"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// TestSysctlsOfTheKernelsLists gives pods sysctls that the kernel has in their namespaces
// and runtimes do not know. They were refused, and a pod that named itself by one was
// rolled back after it was recorded.
func TestSysctlsOfTheKernelsLists(t *testing.T) {
	b := newBed(t, testbed.Options{})
	atRest := b.Rest(t)
	want := map[string]string{"kernel.shm_next_id": "41", "kernel.sem_next_id": "42", "kernel.msg_next_id": "43", "kernel.auto_msgmni": "0", "kernel.domainname": "of.the.pod"}
	for name, pid := range map[string]runtimeapi.NamespaceMode{
		"with a sandbox process": runtimeapi.NamespaceMode_POD, "without": runtimeapi.NamespaceMode_CONTAINER,
	} {
		t.Run(name, func(t *testing.T) {
			p := b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}, Sandbox: func(c *runtimeapi.PodSandboxConfig) {
				c.Linux.Sysctls = want
				c.Linux.SecurityContext.NamespaceOptions.Pid = pid
			}})
			for key, value := range want {
				if got := p.Container.Exec(t, "sysctl", "-n", key); got != value+"\n" {
					t.Errorf("%s is %q, want %s", key, got, value)
				}
			}
			p.Remove(t)
		})
	}
	config := b.Client.SandboxConfig("")
	config.Linux.Sysctls = map[string]string{"kernel.hostname": "x"}
	_, err := b.Client.RunPodSandbox(testbed.Within(t, time.Minute), &runtimeapi.RunPodSandboxRequest{Config: config})
	testbed.Refused(t, err, codes.InvalidArgument, "config.linux.sysctls", "hostname of the pod")
	b.NothingLeft(t, atRest)
}

// TestHostnameOfAPodInTheNodesNetwork sends what crictl's examples send.
func TestHostnameOfAPodInTheNodesNetwork(t *testing.T) {
	b := newBed(t, testbed.Options{})
	node, err := os.Hostname()
	testbed.Must(t, err)
	p := b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}, Sandbox: func(c *runtimeapi.PodSandboxConfig) {
		c.Hostname = "web-0"
		c.Linux.SecurityContext.NamespaceOptions.Network = runtimeapi.NamespaceMode_NODE
	}, Container: func(c *runtimeapi.ContainerConfig) {
		c.Linux.SecurityContext.NamespaceOptions.Network = runtimeapi.NamespaceMode_NODE
	}})
	want := node + "\nweb-0\nweb-0\n"
	testbed.Same(t, p.Container.Exec(t, "sh", "-c", "hostname; echo $HOSTNAME; cat /etc/hostname"), want, "its names are")
}
