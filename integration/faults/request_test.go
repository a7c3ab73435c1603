package faults

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// absent is an ID that no object has.
var absent = strings.Repeat("0123456789abcdef", 4)

// TestBadRequests requests containers whose refusal depends on the node's state. Malformed
// requests are tested in pkg/engine/validate.
func TestBadRequests(t *testing.T) {
	b := newBed(t, testbed.Options{})
	atRest := b.Rest(t)
	pod := b.Client.RunSandbox(t, testbed.PodSpec{})
	security := func(change func(*runtimeapi.LinuxContainerSecurityContext)) func(*runtimeapi.ContainerConfig) {
		return func(c *runtimeapi.ContainerConfig) { change(c.Linux.SecurityContext) }
	}
	for name, c := range map[string]struct {
		sandbox string
		change  func(*runtimeapi.ContainerConfig)
		code    codes.Code
		says    string
	}{
		"absent image": {pod.ID, func(c *runtimeapi.ContainerConfig) { c.Image.Image = b.Registry.Host + "/never/pulled:1" }, codes.NotFound, "pull it"},
		"unknown user": {pod.ID, security(func(s *runtimeapi.LinuxContainerSecurityContext) { s.RunAsUsername = "nobody-knows" }), codes.FailedPrecondition, "nobody-knows"},
		"absent profile": {pod.ID, security(func(s *runtimeapi.LinuxContainerSecurityContext) {
			s.Seccomp = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: "/no/such/profile.json"}
		}), codes.FailedPrecondition, "/no/such/profile.json"},
		"absent sandbox":     {absent, func(*runtimeapi.ContainerConfig) {}, codes.NotFound, "sandbox"},
		"empty sandbox ID":   {"", func(*runtimeapi.ContainerConfig) {}, codes.InvalidArgument, "the sandbox ID is empty"},
		"path as sandbox ID": {"../" + pod.ID, func(*runtimeapi.ContainerConfig) {}, codes.NotFound, "does not exist"},
	} {
		t.Run(name, func(t *testing.T) {
			config := b.Client.ContainerConfig("main", b.Image, "sleep", "3600")
			c.change(config)
			_, err := b.Client.CreateContainer(testbed.Within(t, time.Minute), &runtimeapi.CreateContainerRequest{
				PodSandboxId: c.sandbox, Config: config, SandboxConfig: pod.Config,
			})
			testbed.Refused(t, err, c.code, c.says)
		})
	}
	testbed.Same(t, b.listed(t), "SANDBOX_READY", "after refused containers the states are")
	// The name of the refused containers is free.
	pod.RunContainer(t, "main", testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}})
	b.NothingLeft(t, atRest)
}

// TestARefusalIsSaidOnce checks the text that a kubelet puts into a pod's events. A regression
// test: the text once named the handler twice, and ended with the class of the error.
func TestARefusalIsSaidOnce(t *testing.T) {
	b := newBed(t, testbed.Options{Runtimes: map[string]string{"gvisor": testbed.Part(t, testbed.Runsc)}})
	config := b.Client.SandboxConfig("")
	config.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_NODE
	_, err := b.Client.RunPodSandbox(testbed.Within(t, time.Minute), &runtimeapi.RunPodSandboxRequest{Config: config, RuntimeHandler: "gvisor"})
	testbed.Refused(t, err, codes.FailedPrecondition, "does not support hostPID")
	if text := status.Convert(err).Message(); strings.Count(text, `handler "gvisor"`) != 1 || strings.Contains(text, "precondition") {
		t.Errorf("the text does not name the handler once, without the error's class: %s", text)
	}
	// The error of a missing image has a text, not only the class.
	_, err = b.Client.PullImage(testbed.Within(t, time.Minute), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: strings.Replace(b.Image, "busybox:1", "absent:1", 1)}})
	testbed.Refused(t, err, codes.NotFound, "does not have the image")
}

// TestSysctlsOfTheKernelsLists gives pods namespaced sysctls that runtimes do not know. A
// regression test: they were once refused. kernel.hostname, which berth sets from
// the hostname of the pod, must be refused with the name of the field.
func TestSysctlsOfTheKernelsLists(t *testing.T) {
	b := newBed(t, testbed.Options{})
	atRest := b.Rest(t)
	want := map[string]string{"kernel.shm_next_id": "41", "kernel.sem_next_id": "42", "kernel.msg_next_id": "43", "kernel.auto_msgmni": "0", "kernel.domainname": "of.the.pod"}
	for name, pid := range map[string]runtimeapi.NamespaceMode{
		"with a sandbox process": runtimeapi.NamespaceMode_POD, "without a sandbox process": runtimeapi.NamespaceMode_CONTAINER,
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

// TestHostnameOfAPodInTheNodesNetwork runs a pod with a hostname in the host network, as crictl's
// examples do: hostname prints the node's name.
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
	testbed.Same(t, p.Container.Exec(t, "sh", "-c", "hostname; echo $HOSTNAME; cat /etc/hostname"), want, "the output of hostname, $HOSTNAME and /etc/hostname is")
}

// TestAlias runs a pod under an alias of a handler: the pod's status has the alias, and the
// pod works also after a restart of the daemon.
func TestAlias(t *testing.T) {
	runc := testbed.Part(t, testbed.Runc)
	b := newBed(t, testbed.Options{Runtimes: map[string]string{"runc": runc}, Config: fmt.Sprintf("[runtimes.other]\nalias_of = %q\n", "runc")})
	atRest := b.Rest(t)
	pod := b.Client.RunPod(t, testbed.PodSpec{Handler: "other", Image: b.Image, Command: []string{"sleep", "1000"}})
	if i := b.info(t, pod.Container.ID); i.Handler != "other" {
		t.Errorf("the container's handler is not the alias: %+v", i)
	}
	testbed.Same(t, pod.Status(t).GetRuntimeHandler(), "other", "the handler is")
	b.Restart(t)
	pod.Container.Exec(t, "true")
	b.NothingLeft(t, atRest)
}
