// Package engine is the embedded backend: it runs pods on OCI runtimes and
// shim-v2 binaries, on containerd's libraries, without a containerd daemon.
//
//	e, err := engine.New(ctx, engine.Config{...})
//	err = e.Recover(ctx)   // before any call is answered
//	e.RunPodSandbox(handler.WithDefinition(ctx, definition), request)
//
// An Engine implements the CRI's two services. It is put together from one small
// type per concern (sandboxes, containers, exec, statistics, the node, events,
// images), each in files of its own; what the CRI has and the engine has not
// answers Unimplemented. Which handler a call belongs to is decided before it
// gets here: a new sandbox brings its Definition in the context, and keeps it,
// with everything that is ever done to it, until it is gone.
//
// What is done and where it is kept is told in docs/architecture.md.
package engine

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/binaries"
	"github.com/berth-cri/berth/pkg/engine/container"
	"github.com/berth-cri/berth/pkg/engine/events"
	"github.com/berth-cri/berth/pkg/engine/image"
	"github.com/berth-cri/berth/pkg/engine/network"
	"github.com/berth-cri/berth/pkg/engine/nri"
	"github.com/berth-cri/berth/pkg/engine/overheads"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/podstats"
	"github.com/berth-cri/berth/pkg/engine/sandbox"
	"github.com/berth-cri/berth/pkg/engine/selfcheck"
	"github.com/berth-cri/berth/pkg/engine/session"
	"github.com/berth-cri/berth/pkg/engine/settings"
	"github.com/berth-cri/berth/pkg/engine/status"
	"github.com/berth-cri/berth/pkg/engine/streaming"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/overhead"
	"github.com/berth-cri/berth/pkg/probe"
	"github.com/berth-cri/berth/pkg/probe/capability"
)

// Config is what an engine needs to know of its node. Every field without a
// remark is required.
type Config struct {
	// Root is kept over reboots, State is not.
	Root, State string
	// Supervisor and Pause are the berth-shim and berth-pause binaries.
	Supervisor, Pause string
	// Version is the daemon's own, for Version and for supervisors.
	Version string
	// RuntimeName is the runtime's name in Version; empty is "berth". It becomes
	// the scheme of container ids in the Kubernetes API.
	RuntimeName string
	// Settings are what new sandboxes keep.
	Settings settings.Config
	// ExecSyncDrainTimeout bounds the wait for a descendant that holds the
	// output of an ended ExecSync command.
	ExecSyncDrainTimeout time.Duration
	// MaxExecSyncs bounds how many ExecSync commands run at once; 0 is no bound.
	MaxExecSyncs int
	CDISpecDirs  []string
	Network      network.Config
	// Plugins says where NRI plugins come from; its name and version are set here.
	Plugins nri.Config
	Images  image.Config
	// Streaming is where exec, attach and port-forward are served.
	Streaming streaming.Config
	// Definitions returns the handlers that Status reports.
	Definitions func() []*handler.Definition
	// Accepting returns those that take new pods, which are recommended to pods that ask
	// another handler for what it does not have. nil is Definitions.
	Accepting func() []*handler.Definition
	// Configured returns all that new pods may come to run under: also handlers that
	// are not ready now, and what they try. nil is Definitions.
	Configured func() []*handler.Definition
	// Prober asks runtimes; nil is one of the engine's own.
	Prober *probe.Prober
}

// Engine is the embedded backend.
type Engine struct {
	sandboxes
	containers
	session.Execs
	session.Streams
	podstats.Stats
	status.Node
	events.Calls
	images
	fallback

	canaries  *selfcheck.Pods
	overheads *overheads.Readings
	processes *sandbox.Processes
	ends      *container.Ends
	core      *core
	stop      context.CancelFunc
}

// sandboxes answer the calls about pod sandboxes.
type sandboxes struct {
	*sandbox.Views
	*sandbox.Runs
	*sandbox.Stops
	*sandbox.Resizing
}

// containers answer the calls about containers.
type containers struct {
	*container.Views
	*container.Creation
	*container.Starts
	*container.Stops
	*container.Resizing
	*container.Checkpoints
	*container.Logs
}

// fallback answers what nothing above it does. It is one level deeper than the
// other parts, so that theirs win.
type fallback struct{ unimplemented }

type unimplemented struct {
	runtimeapi.UnimplementedRuntimeServiceServer
}

type images struct{ *image.Service }

// New opens the engine's state. Nothing runs and nothing may be called until
// Recover has returned.
func New(ctx context.Context, c Config) (*Engine, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	k, err := newCore(background, c)
	if err != nil {
		stop()
		return nil, err
	}
	ownTemporaryMounts(c.State, k.log)
	e := &Engine{core: k, stop: stop}
	if err := e.serve(k); err != nil {
		stop()
		return nil, errors.Join(err, k.close())
	}
	return e, nil
}

func (c Config) check() error {
	for _, f := range []struct{ name, value string }{{"supervisor binary", c.Supervisor}, {"sandbox process binary", c.Pause}} {
		if !filepath.IsAbs(f.value) {
			return fmt.Errorf("engine: %s %q must be an absolute path", f.name, f.value)
		}
	}
	if c.Definitions == nil {
		return errors.New("engine: no handlers given")
	}
	return nil
}

// Close ends what the engine does by itself and lets every pod run.
func (e *Engine) Close(ctx context.Context) error {
	// First, while the commands of sessions can still be killed.
	err := e.Streams.Server.Close()
	e.stop()
	e.canaries.Close(ctx)
	e.core.abilities.IdMapping.Settle(ctx)
	return errors.Join(err, e.core.close())
}

// Canary runs a pod of berth's own under d, of which nobody is told, and takes it
// back; see probe.Canary.
func (e *Engine) Canary(ctx context.Context, d *handler.Definition, rt *probe.Runtime, thorough bool) (probe.Proof, error) {
	if thorough {
		return e.canaries.Prove(ctx, d, rt)
	}
	return nil, e.canaries.Run(ctx, d, nil)
}

// Overhead reads what pods have beyond their containers.
func (e *Engine) Overhead() overhead.Source { return e.overheads }

// ID names the backend.
func (e *Engine) ID() string { return "engine" }

// Inventory lists what the engine has, for the router's owners.
func (e *Engine) Inventory() []handler.Owned {
	var all []handler.Owned
	for _, s := range e.core.objects.AllSandboxes() {
		o := handler.Owned{Sandbox: s.ID(), Handler: s.Spec().Definition.Name, UID: s.Config().GetMetadata().GetUid(), Definition: s.Spec().Definition, Generation: s.Spec().Generation()}
		o.Binaries = owned(e.core.runtimes.Told(s.Spec()))
		for _, c := range e.core.objects.ContainersOf(s.ID()) {
			o.Containers = append(o.Containers, c.ID())
		}
		all = append(all, o)
	}
	return all
}

// Edition implements router.Editioned.
func (e *Engine) Edition() uint64 { return e.core.objects.Added() }

// Installed tells the programs that a new pod of a handler would keep. It costs a few
// stats, unless one of them was changed since somebody looked.
func (e *Engine) Installed(ctx context.Context, d *handler.Definition) ([]handler.OwnedBinary, error) {
	all, err := e.core.runtimes.Installed(ctx, d)
	return owned(all), err
}

func owned(binaries []binaries.BinaryInfo) []handler.OwnedBinary {
	var all []handler.OwnedBinary
	for _, one := range binaries {
		all = append(all, handler.OwnedBinary(one))
	}
	return all
}

// Live says whether a sandbox may still use what pods use. A stop that fails
// half-way leaves it live; after a reboot none is.
func (e *Engine) Live(sandbox string) bool {
	s, err := e.core.objects.Sandbox(sandbox)
	return err == nil && s.Status().Phase == pod.PhaseReady
}

var (
	_ runtimeapi.RuntimeServiceServer = (*Engine)(nil)
	_ runtimeapi.ImageServiceServer   = (*Engine)(nil)
)

// Capabilities tells what a handler, whose runtime is rt, can do for pods on this node,
// and how that is known. Proof is what canary pods did on it; may be nil. It waits for
// the look at whether this node maps ids no longer than probeWait.
func (e *Engine) Capabilities(ctx context.Context, d *handler.Definition, rt *probe.Runtime, proof probe.Proof) capability.Table {
	return e.core.abilities.Survey(ctx, d, rt, proof)
}

const runtimeName = "berth"
