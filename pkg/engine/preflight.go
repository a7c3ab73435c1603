package engine

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/preflight"
	"github.com/berth-cri/berth/pkg/probe"
)

// PreflightPodSandbox refuses a pod that asks for what the handler of the
// Definition in ctx cannot give it. RunPodSandbox does the same, with what it
// then finds; a runtime that does not answer is for it to tell.
func (b *sandboxRuns) PreflightPodSandbox(ctx context.Context, c *runtimeapi.PodSandboxConfig) error {
	d := handler.DefinitionFrom(ctx)
	rt, err := b.prober.Probe(ctx, d)
	if err != nil {
		return nil
	}
	return b.abilities.checkSandbox(ctx, c, d, rt)
}

// abilities tells what handlers can do on this node, and refuses who asks for more.
type abilities struct {
	background context.Context // ends with the engine
	layout     layout
	settings   *settings
	runtimes   *runtimes
	prober     prober
	images     snapshotters
	accepting  func() []*handler.Definition
	idMapping  idMapping
}

// prober asks runtimes what they are.
type prober interface {
	Probe(ctx context.Context, d *handler.Definition) (*probe.Runtime, error)
}

// snapshotters say why one of them cannot do what not all can.
type snapshotters interface {
	Root() string
	CanMap(snapshotter string) error
	TellsWritten(snapshotter string) error
}

// checkSandbox refuses a pod that asks for what its handler, whose runtime is rt,
// cannot give it.
func (a *abilities) checkSandbox(ctx context.Context, c *runtimeapi.PodSandboxConfig, d *handler.Definition, rt *probe.Runtime) error {
	return a.refuse(ctx, d, rt, func(h preflight.Handler) *preflight.Lack { return preflight.Sandbox(c, h) })
}

// checkContainer refuses a container that asks for what the handler of its
// pod cannot give it. A runtime that does not answer is told of later.
func (a *abilities) checkContainer(ctx context.Context, c *runtimeapi.ContainerConfig, s *sandboxSpec) error {
	rt, err := a.prober.Probe(ctx, a.runtimes.of(s))
	if err != nil {
		return nil
	}
	return a.refuse(ctx, s.Definition, rt, func(h preflight.Handler) *preflight.Lack { return preflight.Container(c, h) })
}

func (a *abilities) refuse(ctx context.Context, d *handler.Definition, rt *probe.Runtime, check func(preflight.Handler) *preflight.Lack) error {
	return preflight.Refuse(a.of(ctx, d, rt), func() []preflight.Handler { return a.all(ctx) }, check)
}

// of is what is known of a handler whose runtime is rt.
func (a *abilities) of(ctx context.Context, d *handler.Definition, rt *probe.Runtime) preflight.Handler {
	return preflight.Handler{
		Name: d.Name, Binary: filepath.Base(d.Path), Runtime: rt, HostNetwork: mayUseHostNetwork(d),
		Node:           preflight.Node{MountSetattr: a.settings.node.KernelRRO, AppArmor: a.settings.node.AppArmor, SELinux: a.settings.node.SELinux},
		UserNamespaces: func() error { return a.canMap(ctx, d) },
		Checkpoints:    func() error { return a.canDump(d) },
	}
}

// all asks the handlers that accept pods, all at once. A runtime that
// takes longer than probeWait is not recommended to anybody.
func (a *abilities) all(ctx context.Context) []preflight.Handler {
	asking, cancel := context.WithTimeout(ctx, probeWait)
	defer cancel()
	definitions := a.accepting()
	all := make([]preflight.Handler, len(definitions))
	var wg sync.WaitGroup
	for i, d := range definitions {
		wg.Go(func() {
			rt, err := a.prober.Probe(asking, d)
			if err != nil {
				rt = nil
			}
			all[i] = a.of(ctx, d, rt)
		})
	}
	wg.Wait()
	return all
}

// usesHostNetwork says whether gVisor was told by a flag to use the host's network
// stack, or another.
func usesHostNetwork(d *handler.Definition) (host, told bool) {
	if d.Type != handler.OCI {
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
func (a *abilities) canDump(d *handler.Definition) error {
	if d.Type == handler.Shim && !isRuncShim(d.Path) {
		return fmt.Errorf("%s is no shim that is known to make checkpoints", d.Path)
	}
	if _, err := exec.LookPath("criu"); err != nil {
		return fmt.Errorf("berth finds no criu (%w); install the package criu", err)
	}
	return a.images.TellsWritten(a.settings.today(d).Snapshotter)
}
