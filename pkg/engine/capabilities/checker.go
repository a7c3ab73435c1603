// Package capabilities tells what handlers can do on this node, and refuses pods,
// containers and checkpoints that ask for more.
package capabilities

import (
	"cmp"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
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

// Checker tells what handlers can do on this node, and refuses who asks for more.
type Checker struct {
	pods      *pod.Registry
	binaries  *binaries.Binaries
	settings  *settings.Settings
	images    *image.Store
	accepting func() []*handler.Definition
	idMapping idMapping
}

// New checks for the handlers of this node. Accepting are those that take new pods.
func New(pods *pod.Registry, s *settings.Settings, b *binaries.Binaries, images *image.Store, accepting func() []*handler.Definition) *Checker {
	return &Checker{pods: pods, settings: s, binaries: b, images: images, accepting: accepting}
}

// Settle waits for the look at whether this node maps ids that is under way: its mounts
// would stay until the next start.
func (a *Checker) Settle(ctx context.Context) { a.idMapping.settle(ctx) }

// CheckSandbox refuses a pod that asks for what its handler, whose runtime is rt,
// cannot give it.
func (a *Checker) CheckSandbox(ctx context.Context, c *runtimeapi.PodSandboxConfig, d *handler.Definition, rt *probe.Runtime) error {
	limit := a.memoryLimit(c, d)
	return a.Refuse(ctx, d, rt, func(h preflight.Handler) *preflight.Refusal {
		return cmp.Or(preflight.Sandbox(c, h), preflight.Memory(limit, h))
	})
}

// memoryLimit is that of the pod's cgroup, which the kubelet makes before it asks for the pod. The
// configuration has the sum of the containers' limits, also where the pod has none.
func (a *Checker) memoryLimit(c *runtimeapi.PodSandboxConfig, d *handler.Definition) uint64 {
	stats, err := cgroup.ReadStats(cgroup.ParentPaths(c.GetLinux().GetCgroupParent(), a.settings.Current(d).CgroupDriver))
	if err != nil {
		return 0
	}
	return stats.MemoryLimit.N
}

// CheckContainer refuses a container that asks for what the handler of its
// pod cannot give it. A runtime that does not answer is told of later.
func (a *Checker) CheckContainer(ctx context.Context, c *runtimeapi.ContainerConfig, s *pod.SandboxSpec) error {
	rt, err := a.binaries.Prober.Probe(ctx, a.binaries.Runtimes.Of(s))
	if err != nil {
		return nil
	}
	return a.Refuse(ctx, s.Definition, rt, func(h preflight.Handler) *preflight.Refusal { return preflight.Container(c, h) })
}

// Refuse returns what check says that the handler lacks, for who asked for a pod.
func (a *Checker) Refuse(ctx context.Context, d *handler.Definition, rt *probe.Runtime, check func(preflight.Handler) *preflight.Refusal) error {
	return preflight.Refuse(a.Of(ctx, d, rt), func() []preflight.Handler { return a.all(ctx) }, check)
}

// Of is what is known of a handler whose runtime is rt.
func (a *Checker) Of(ctx context.Context, d *handler.Definition, rt *probe.Runtime) preflight.Handler {
	return preflight.Handler{
		Name: d.Name, Binary: filepath.Base(d.Path), Runtime: rt, HostNetwork: mayUseHostNetwork(d),
		Node:           preflight.Node{MountSetattr: a.settings.Node.KernelRRO, AppArmor: a.settings.Node.AppArmor, SELinux: a.settings.Node.SELinux},
		UserNamespaces: func() error { return a.canMap(ctx, d) },
		Checkpoints:    func() error { return a.canDump(d) },
	}
}

// all asks the handlers that accept pods, all at once. A runtime that
// takes longer than probeWait is not recommended to anybody.
func (a *Checker) all(ctx context.Context) []preflight.Handler {
	asking, cancel := context.WithTimeout(ctx, ProbeWait)
	defer cancel()
	definitions := a.accepting()
	all := make([]preflight.Handler, len(definitions))
	var wg sync.WaitGroup
	for i, d := range definitions {
		wg.Go(func() {
			rt, _ := a.binaries.Prober.Probe(asking, d) // nil of one that does not answer
			all[i] = a.Of(ctx, d, rt)
		})
	}
	wg.Wait()
	return all
}

// usesHostNetwork says whether gVisor was told by a flag to use the host's network
// stack, or another.
func usesHostNetwork(d *handler.Definition) (host, told bool) {
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

// mayUseHostNetwork says whether gVisor was told to use the host's network stack:
// by a flag, or perhaps by its own configuration file.
func mayUseHostNetwork(d *handler.Definition) bool {
	host, told := usesHostNetwork(d)
	return host || !told && d.ConfigPath != ""
}

// canDump says why, whatever the runtime can do, containers of a handler cannot
// be checkpointed.
func (a *Checker) canDump(d *handler.Definition) error {
	if d.OwnShim() && !handler.IsRuncShim(d.Path) {
		return fmt.Errorf("%s is not known to support checkpoints", d.Path)
	}
	if _, err := exec.LookPath("criu"); err != nil {
		return fmt.Errorf("criu not found (%w); install the package criu", err)
	}
	return a.images.TellsWritten(a.settings.Current(d).Snapshotter)
}

// ProbeWait is how long Status waits for runtimes that were not asked yet. A
// probe goes on without it, so a later Status has the answer.
const ProbeWait = 250 * time.Millisecond
