// Package capabilities determines the capabilities of handlers on this node, and refuses pods,
// containers and checkpoints that exceed them.
package capabilities

import (
	"cmp"
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/binaries"
	"github.com/berth-cri/berth/pkg/engine/cgroup"
	"github.com/berth-cri/berth/pkg/engine/image"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/settings"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/preflight"
	"github.com/berth-cri/berth/pkg/probe"
)

// Checker determines the capabilities of handlers on this node, and refuses requests that exceed
// them.
type Checker struct {
	pods      *pod.Registry
	binaries  *binaries.Binaries
	settings  *settings.Settings
	images    *image.Store
	accepting func() []*handler.Definition
	idMapping idMapping
}

// New returns a Checker. accepting returns the handlers that accept new pods.
func New(pods *pod.Registry, s *settings.Settings, b *binaries.Binaries, images *image.Store, accepting func() []*handler.Definition) *Checker {
	return &Checker{pods: pods, settings: s, binaries: b, images: images, accepting: accepting}
}

// Settle waits for a running test of id-mapped mounts. Otherwise its mounts would stay until the
// next start.
func (a *Checker) Settle(ctx context.Context) { a.idMapping.settle(ctx) }

// CheckSandbox refuses a pod with a request that its handler does not support; rt is the handler's
// runtime.
func (a *Checker) CheckSandbox(ctx context.Context, c *runtimeapi.PodSandboxConfig, d *handler.Definition, rt *probe.Runtime) error {
	limit := a.memoryLimit(c, d)
	return a.Refuse(ctx, d, rt, func(h preflight.Handler) *preflight.Refusal {
		return cmp.Or(preflight.Sandbox(c, h), preflight.Memory(limit, h))
	})
}

// memoryLimit returns the limit of the pod's cgroup, which the kubelet creates before it calls
// RunPodSandbox. The configuration is not used: it contains the sum of the containers' limits even
// if the pod has no limit.
func (a *Checker) memoryLimit(c *runtimeapi.PodSandboxConfig, d *handler.Definition) uint64 {
	stats, err := cgroup.ReadStats(cgroup.ParentPaths(c.GetLinux().GetCgroupParent(), a.settings.Current(d).CgroupDriver))
	if err != nil {
		return 0
	}
	return stats.MemoryLimit.N
}

// CheckContainer refuses a container with a request that its pod's handler does not support. An
// unresponsive runtime is reported by a later step.
func (a *Checker) CheckContainer(ctx context.Context, c *runtimeapi.ContainerConfig, s *pod.SandboxSpec) error {
	rt, err := a.binaries.Prober.Probe(ctx, a.binaries.Runtimes.Of(s))
	if err != nil {
		return nil
	}
	return a.Refuse(ctx, s.Definition, rt, func(h preflight.Handler) *preflight.Refusal { return preflight.Container(c, h) })
}

// Refuse returns the error for a request that fails check, with the handlers that support it.
func (a *Checker) Refuse(ctx context.Context, d *handler.Definition, rt *probe.Runtime, check func(preflight.Handler) *preflight.Refusal) error {
	return preflight.Refuse(a.Of(ctx, d, rt), func() []preflight.Handler { return a.all(ctx) }, check)
}

// Of returns what is known of a handler; rt is its runtime.
func (a *Checker) Of(ctx context.Context, d *handler.Definition, rt *probe.Runtime) preflight.Handler {
	return preflight.Handler{
		Name: d.Name, Runtime: rt, HostNetwork: mayUseHostNetwork(d),
		Node:           preflight.Node{MountSetattr: a.settings.Node.KernelRRO, AppArmor: a.settings.Node.AppArmor, SELinux: a.settings.Node.SELinux},
		UserNamespaces: func() error { return a.canMap(ctx, d) },
		Checkpoints:    func() error { return a.canDump(d) },
	}
}

// all probes the handlers that accept pods, in parallel. A runtime that takes longer than ProbeWait
// is not recommended.
func (a *Checker) all(ctx context.Context) []preflight.Handler {
	asking, cancel := context.WithTimeout(ctx, ProbeWait)
	defer cancel()
	definitions := a.accepting()
	all := make([]preflight.Handler, len(definitions))
	var wg sync.WaitGroup
	for i, d := range definitions {
		wg.Go(func() {
			rt, _ := a.binaries.Prober.Probe(asking, d) // nil if the runtime does not respond
			all[i] = a.Of(ctx, d, rt)
		})
	}
	wg.Wait()
	return all
}

// usesHostNetwork reports whether a flag makes gVisor use the host's network stack; selected is set
// if a flag or the handler's shim selects any stack.
func usesHostNetwork(d *handler.Definition) (host, selected bool) {
	if d.OwnShim() {
		return false, true
	}
	flags := d.OCI.GlobalFlags
	for i, f := range flags {
		name, value, given := strings.Cut(strings.TrimLeft(f, "-"), "=")
		if name != "network" {
			continue
		}
		return given && value == "host" || !given && slices.Equal(flags[i+1:min(i+2, len(flags))], []string{"host"}), true
	}
	return false, false
}

// mayUseHostNetwork reports whether gVisor uses the host's network stack by a flag, or may do so by
// its own configuration file.
func mayUseHostNetwork(d *handler.Definition) bool {
	host, selected := usesHostNetwork(d)
	return host || !selected && d.ConfigPath != ""
}

// canDump returns why containers of a handler cannot be checkpointed, whatever the runtime
// supports, or nil.
func (a *Checker) canDump(d *handler.Definition) error {
	if d.OwnShim() && !handler.IsRuncShim(d.Path) {
		return fmt.Errorf("%s is not known to support checkpoints", d.Path)
	}
	if _, err := exec.LookPath("criu"); err != nil {
		return fmt.Errorf("criu not found (%w); install the package criu", err)
	}
	return a.images.CheckWritten(a.settings.Current(d).Snapshotter)
}

// ProbeWait is how long Status and refusals wait for runtimes that do not respond, and Status and
// Table for the detection of id mapping. The work continues, so that a later call has its result.
const ProbeWait = 250 * time.Millisecond
