package engine

import (
	"context"
	"fmt"
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
func (b sandboxes) PreflightPodSandbox(ctx context.Context, c *runtimeapi.PodSandboxConfig) error {
	d := handler.DefinitionFrom(ctx)
	rt, err := b.prober.Probe(ctx, d)
	if err != nil {
		return nil
	}
	return b.preflightSandbox(ctx, c, d, rt)
}

func (k *core) preflightSandbox(ctx context.Context, c *runtimeapi.PodSandboxConfig, d *handler.Definition, rt *probe.Runtime) error {
	return k.refuse(ctx, d, rt, func(h preflight.Handler) *preflight.Lack { return preflight.Sandbox(c, h) })
}

// preflightContainer refuses a container that asks for what the handler of its
// pod cannot give it. A runtime that does not answer is told of later.
func (k *core) preflightContainer(ctx context.Context, c *runtimeapi.ContainerConfig, s *sandboxSpec) error {
	rt, err := k.prober.Probe(ctx, k.runtimes.of(s))
	if err != nil {
		return nil
	}
	return k.refuse(ctx, s.Definition, rt, func(h preflight.Handler) *preflight.Lack { return preflight.Container(c, h) })
}

func (k *core) refuse(ctx context.Context, d *handler.Definition, rt *probe.Runtime, check func(preflight.Handler) *preflight.Lack) error {
	return preflight.Refuse(k.abilities(ctx, d, rt), func() []preflight.Handler { return k.allAbilities(ctx) }, check)
}

// abilities is what is known of a handler whose runtime is rt.
func (k *core) abilities(ctx context.Context, d *handler.Definition, rt *probe.Runtime) preflight.Handler {
	return preflight.Handler{
		Name: d.Name, Binary: filepath.Base(d.Path), Runtime: rt, HostNetwork: mayUseHostNetwork(d),
		Node:           preflight.Node{RecursiveReadOnly: k.settings.node.KernelRRO, AppArmor: k.settings.node.AppArmor, SELinux: k.settings.node.SELinux},
		UserNamespaces: func() error { return k.canMap(ctx, d) },
		Checkpoints:    func() error { return k.canDump(d) },
	}
}

// allAbilities asks the handlers that accept pods, all at once. A runtime that
// takes longer than probeWait is not recommended to anybody.
func (k *core) allAbilities(ctx context.Context) []preflight.Handler {
	asking, cancel := context.WithTimeout(ctx, probeWait)
	defer cancel()
	definitions := k.config.Definitions()
	all := make([]preflight.Handler, len(definitions))
	var wg sync.WaitGroup
	for i, d := range definitions {
		wg.Go(func() {
			rt, err := k.prober.Probe(asking, d)
			if err != nil {
				rt = nil
			}
			all[i] = k.abilities(ctx, d, rt)
		})
	}
	wg.Wait()
	return all
}

// mayUseHostNetwork says whether gVisor was told to use the host's network stack:
// by a flag, or perhaps by its own configuration file.
func mayUseHostNetwork(d *handler.Definition) bool {
	if d.Type != handler.OCI {
		return false
	}
	flags := d.OCI.GlobalFlags
	for i, f := range flags {
		name, value, given := strings.Cut(strings.TrimLeft(f, "-"), "=")
		if name != "network" {
			continue
		}
		return given && value == "host" || !given && slices.Equal(flags[i+1:min(i+2, len(flags))], []string{"host"})
	}
	return d.ConfigPath != ""
}

// canDump says why, whatever the runtime can do, containers of a handler cannot
// be checkpointed.
func (k *core) canDump(d *handler.Definition) error {
	if d.Type == handler.Shim && !isRuncShim(d.Path) {
		return fmt.Errorf("%s is no shim that is known to make checkpoints", d.Path)
	}
	return k.images.TellsWritten(k.settings.today(d).Snapshotter)
}
