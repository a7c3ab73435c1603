package conformance

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/patience"
	"github.com/berth-cri/berth/integration/testbed"
)

// serial makes pod names unique within the process; the process id makes them
// unique on the node.
var serial atomic.Int64

// pod is a sandbox that a check created, with the config that was sent.
type pod struct {
	*node
	ID     string
	Config *runtimeapi.PodSandboxConfig
}

// podConfig is what a kubelet sends for a plain pod, changed by opts.
func (n *node) podConfig(t *testing.T, opts ...func(*runtimeapi.PodSandboxConfig)) *runtimeapi.PodSandboxConfig {
	t.Helper()
	name := fmt.Sprintf("conf-%d-%d", os.Getpid(), serial.Add(1))
	c := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{
			Name: name, Uid: "uid-" + name, Namespace: "conformance",
		},
		Hostname:     name,
		LogDirectory: filepath.Join(t.TempDir(), "logs"),
		Labels:       map[string]string{"io.kubernetes.pod.uid": "uid-" + name},
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
				NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
			},
		},
	}
	if n.CgroupParent != "" {
		c.Linux.CgroupParent = filepath.Join(n.CgroupParent, name)
	}
	for _, o := range opts {
		o(c)
	}
	if c.LogDirectory != "" {
		must(t, os.MkdirAll(c.LogDirectory, 0o755), "log directory")
	}
	return c
}

// pod runs a sandbox and removes it when the check ends.
func (n *node) pod(t *testing.T, opts ...func(*runtimeapi.PodSandboxConfig)) *pod {
	t.Helper()
	p, err := n.tryPod(t, n.podConfig(t, opts...))
	must(t, err, "RunPodSandbox")
	return p
}

// tryPod is pod for sandboxes that may be refused.
func (n *node) tryPod(t *testing.T, c *runtimeapi.PodSandboxConfig) (*pod, error) {
	t.Helper()
	r, err := n.Runtime.RunPodSandbox(call(t), &runtimeapi.RunPodSandboxRequest{Config: c, RuntimeHandler: n.Handler})
	if err != nil {
		return nil, err
	}
	p := &pod{node: n, ID: r.GetPodSandboxId(), Config: c}
	t.Cleanup(func() { p.destroy(t) })
	return p, nil
}

// destroy stops and removes the sandbox, as the kubelet does.
func (p *pod) destroy(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience.Of(time.Minute))
	defer cancel()
	if _, err := p.Runtime.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: p.ID}); err != nil {
		t.Errorf("StopPodSandbox at the end: %v", err)
	}
	if _, err := p.Runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.ID}); err != nil {
		t.Errorf("RemovePodSandbox at the end: %v", err)
	}
	// Hundreds of empty cgroups make the kernel slow.
	if parent := p.Config.GetLinux().GetCgroupParent(); p.CgroupParent != "" && strings.HasPrefix(parent, p.CgroupParent+"/") {
		testbed.RemoveCgroup(parent)
	}
}

func (p *pod) status(t *testing.T) *runtimeapi.PodSandboxStatus {
	t.Helper()
	r, err := p.Runtime.PodSandboxStatus(call(t), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: p.ID})
	must(t, err, "PodSandboxStatus")
	return r.GetStatus()
}

func (p *pod) stop(t *testing.T) {
	t.Helper()
	_, err := p.Runtime.StopPodSandbox(call(t), &runtimeapi.StopPodSandboxRequest{PodSandboxId: p.ID})
	must(t, err, "StopPodSandbox")
}

func (p *pod) remove(t *testing.T) {
	t.Helper()
	_, err := p.Runtime.RemovePodSandbox(call(t), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.ID})
	must(t, err, "RemovePodSandbox")
}

// hostNetwork puts the pod in the host's network namespace.
func hostNetwork(c *runtimeapi.PodSandboxConfig) {
	c.Hostname = ""
	c.Linux.SecurityContext.NamespaceOptions.Network = runtimeapi.NamespaceMode_NODE
}

// inline is a command on one line, for messages.
func inline(cmd []string) string { return "[" + strings.Join(cmd, " ") + "]" }
