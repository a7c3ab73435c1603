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

	"github.com/berth-cri/berth/pkg/engine/image"
	"github.com/berth-cri/berth/pkg/engine/network"
	"github.com/berth-cri/berth/pkg/engine/nri"
	"github.com/berth-cri/berth/pkg/engine/streaming"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/overhead"
	"github.com/berth-cri/berth/pkg/probe"
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
	// CgroupDriver is auto, cgroupfs or systemd.
	CgroupDriver string
	Snapshotter  string
	// MaxLogLineSize bounds the content of a log line in bytes; -1 is no bound.
	MaxLogLineSize int
	// ExecSyncDrainTimeout bounds the wait for a descendant that holds the
	// output of an ended ExecSync command.
	ExecSyncDrainTimeout time.Duration
	// MaxExecSyncs bounds how many ExecSync commands run at once; 0 is no bound.
	MaxExecSyncs      int
	UnprivilegedPorts bool
	UnprivilegedICMP  bool
	// TolerateMissingHugetlb ignores hugepage limits where there is no controller.
	TolerateMissingHugetlb bool
	// IgnoreImageVolumes makes no volumes that images define; MaxImageVolumes is how
	// many an image may define otherwise, and 0 is 100.
	IgnoreImageVolumes bool
	MaxImageVolumes    int
	// DefaultSeccomp is the file of the RuntimeDefault profile; empty is built in.
	DefaultSeccomp string
	CDISpecDirs    []string
	Network        network.Config
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
	*sandboxViews
	*sandboxRuns
	*sandboxStops
	*sandboxResizing
	*containerViews
	*creation
	*starts
	*stops
	*resizing
	*checkpoints
	*logs
	execs
	streams
	stats
	node
	events
	images
	fallback

	canaries  *canaries
	overheads *overheads
	processes *sandboxProcesses
	ends      *ends
	core      *core
	stop      context.CancelFunc
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
	err := e.streams.server.Close()
	e.stop()
	e.canaries.close(ctx)
	e.core.abilities.idMapping.settle(ctx)
	return errors.Join(err, e.core.close())
}

// Canary runs a pod of berth's own under d, of which nobody is told, and takes it
// back; see probe.Canary.
func (e *Engine) Canary(ctx context.Context, d *handler.Definition, rt *probe.Runtime, thorough bool) (probe.Proof, error) {
	if thorough {
		return e.canaries.prove(ctx, d, rt)
	}
	return nil, e.canaries.run(ctx, d, nil)
}

// Overhead reads what pods have beyond their containers.
func (e *Engine) Overhead() overhead.Source { return e.overheads }

// ID names the backend.
func (e *Engine) ID() string { return "engine" }

// Inventory lists what the engine has, for the router's owners.
func (e *Engine) Inventory() []handler.Owned {
	var all []handler.Owned
	for _, s := range e.core.objects.allSandboxes() {
		o := handler.Owned{Sandbox: s.ID(), Handler: s.Spec().Definition.Name, UID: s.config().GetMetadata().GetUid(), Definition: s.Spec().Definition, Generation: s.Spec().generation()}
		o.Binaries = owned(e.core.runtimes.told(s.Spec()))
		for _, c := range e.core.objects.containersOf(s.ID()) {
			o.Containers = append(o.Containers, c.ID())
		}
		all = append(all, o)
	}
	return all
}

// Edition implements router.Editioned.
func (e *Engine) Edition() uint64 { return e.core.objects.added() }

// Installed tells the programs that a new pod of a handler would keep. It costs a few
// stats, unless one of them was changed since somebody looked.
func (e *Engine) Installed(ctx context.Context, d *handler.Definition) ([]handler.OwnedBinary, error) {
	all, err := e.core.runtimes.installed(ctx, d)
	return owned(all), err
}

func owned(binaries []binaryInfo) []handler.OwnedBinary {
	var all []handler.OwnedBinary
	for _, one := range binaries {
		all = append(all, handler.OwnedBinary(one))
	}
	return all
}

// Live says whether a sandbox may still use what pods use. A stop that fails
// half-way leaves it live; after a reboot none is.
func (e *Engine) Live(sandbox string) bool {
	s, err := e.core.objects.sandbox(sandbox)
	return err == nil && s.Status().Phase == phaseReady
}

var (
	_ runtimeapi.RuntimeServiceServer = (*Engine)(nil)
	_ runtimeapi.ImageServiceServer   = (*Engine)(nil)
)
