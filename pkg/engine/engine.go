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
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/log"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/binaries"
	"github.com/berth-cri/berth/pkg/engine/capabilities"
	"github.com/berth-cri/berth/pkg/engine/container"
	"github.com/berth-cri/berth/pkg/engine/containerdapi"
	"github.com/berth-cri/berth/pkg/engine/events"
	"github.com/berth-cri/berth/pkg/engine/hooks"
	"github.com/berth-cri/berth/pkg/engine/image"
	"github.com/berth-cri/berth/pkg/engine/network"
	"github.com/berth-cri/berth/pkg/engine/nri"
	"github.com/berth-cri/berth/pkg/engine/overheads"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/podcheckpoint"
	"github.com/berth-cri/berth/pkg/engine/podstats"
	"github.com/berth-cri/berth/pkg/engine/recovery"
	"github.com/berth-cri/berth/pkg/engine/rootfs"
	"github.com/berth-cri/berth/pkg/engine/sandbox"
	"github.com/berth-cri/berth/pkg/engine/selfcheck"
	"github.com/berth-cri/berth/pkg/engine/session"
	"github.com/berth-cri/berth/pkg/engine/settings"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/engine/status"
	"github.com/berth-cri/berth/pkg/engine/streaming"
	"github.com/berth-cri/berth/pkg/engine/task"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/observe"
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
	// Version is the daemon's own, for Version and for supervisors, Revision its source's.
	Version, Revision string
	// RuntimeName is the runtime's name in Version; empty is "berth". It becomes
	// the scheme of container ids in the Kubernetes API.
	RuntimeName string
	// Settings are what new sandboxes keep.
	Settings    settings.Config
	CDISpecDirs []string
	Network     network.Config
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
	sandboxCalls
	containerCalls
	*sessionCalls
	*podstats.Stats
	*status.Node
	events.Calls
	*podCheckpoints
	*imageCalls
	fallback

	parts     recovery.Deps
	overheads *overheads.Readings
	checker   *capabilities.Checker
	broker    *events.Broker
	agents    *containerdapi.Broker
	api       *containerdapi.Server
	stop      context.CancelFunc
}

// The calls of rooms, under names that differ.
type (
	sandboxCalls   = sandbox.Calls
	containerCalls = container.Calls
	sessionCalls   = session.Calls
	podCheckpoints = podcheckpoint.Service
	imageCalls     = image.Service
)

// fallback answers what nothing above it does. It is two levels deeper than the
// other parts, so that theirs win.
type fallback struct{ unimplemented }

type unimplemented struct{ unanswered }

type unanswered struct {
	runtimeapi.UnimplementedRuntimeServiceServer
}

// New opens the engine's state. Nothing runs and nothing may be called until
// Recover has returned.
func New(ctx context.Context, c Config) (_ *Engine, err error) {
	if err := c.complete(); err != nil {
		return nil, err
	}
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	e := &Engine{stop: stop, broker: events.NewBroker(), agents: &containerdapi.Broker{}}
	defer func() {
		if err != nil {
			stop()
			err = errors.Join(err, e.close())
		}
	}()
	kept, err := settings.New(c.Settings)
	if err != nil {
		return nil, err
	}
	if err := e.open(background, c); err != nil {
		return nil, err
	}
	ownTemporaryMounts(c.State, log.G(background))
	if err := e.serve(c, kept); err != nil {
		return nil, err
	}
	return e, nil
}

// Images are the engine's own.
func (e *Engine) Images() *image.Store { return e.parts.Images }

func (e *Engine) open(background context.Context, c Config) (err error) {
	p, entry := &e.parts, log.G(background)
	if p.Pods, p.Broken, err = pod.Open(background, c.Root, c.State); err != nil {
		return err
	}
	p.Binaries, err = binaries.Open(p.Pods, binaries.Config{
		Root: c.Root, Supervisor: c.Supervisor, Pause: c.Pause, Prober: c.Prober, Unreadable: len(p.Broken.Sandboxes) > 0,
		Reported: c.Definitions, Configured: c.Configured, Log: entry,
	})
	if err != nil {
		return err
	}
	c.Images.Events = e.agents
	if p.Images, err = image.Open(background, c.Images); err != nil {
		return err
	}
	p.Network = network.New(c.Network)
	p.Shims, err = shim.New(shim.Config{
		State: c.State, Supervisor: p.Binaries.Tools.Supervisor, Events: filepath.Join(c.State, "events.sock"), API: apiSocket(c.State), Log: entry,
		Left: p.Binaries.Collector.Collect,
	})
	return err
}

// serve puts together who answers the CRI's calls. What listens comes last: nothing
// fails after it.
func (e *Engine) serve(c Config, kept *settings.Settings) (err error) {
	p := &e.parts
	p.Tasks = task.New(p.Pods, p.Binaries, p.Shims)
	p.Rootfs = rootfs.New(p.Pods, p.Images)
	e.checker = capabilities.New(p.Pods, kept, p.Binaries, p.Images, c.Accepting)
	announcer := events.NewAnnouncer(e.broker, p.Pods, e.agents)
	subjects, resources := hooks.NewSubjects(p.Pods), &container.Resources{Pods: p.Pods, Settings: kept, Tasks: p.Tasks}
	plugins := c.Plugins
	plugins.Name, plugins.Version, plugins.LinkDir = runtimeName, c.Version, p.Pods.PluginLinks()
	if p.Plugins, err = nri.Open(plugins, container.NewPluginNode(subjects, resources)); err != nil {
		return err
	}
	told := hooks.New(subjects, p.Plugins)
	p.Containers = container.New(container.Deps{
		Pods: p.Pods, Settings: kept, Binaries: p.Binaries, Tasks: p.Tasks, Capabilities: e.checker, Rootfs: p.Rootfs,
		Events: announcer, Hooks: told, Images: p.Images, Shims: p.Shims, Resources: resources, CDISpecDirs: c.CDISpecDirs,
	})
	p.Sandboxes = sandbox.New(sandbox.Deps{
		Pods: p.Pods, Settings: kept, Binaries: p.Binaries, Tasks: p.Tasks, Capabilities: e.checker, Rootfs: p.Rootfs,
		Events: announcer, Hooks: told, Network: p.Network, Shims: p.Shims, Containers: p.Containers,
	})
	p.SelfChecks = selfcheck.New(p.Pods, kept, p.Binaries, p.Tasks, e.checker, p.Sandboxes, p.Shims)
	e.sandboxCalls, e.containerCalls = p.Sandboxes.Calls, p.Containers.Calls
	p.PodCheckpoints = podcheckpoint.New(podcheckpoint.Deps{
		Pods: p.Pods, Binaries: p.Binaries, Tasks: p.Tasks, Images: p.Images, Capabilities: e.checker, Sandboxes: p.Sandboxes, Containers: p.Containers,
	})
	e.podCheckpoints = p.PodCheckpoints
	e.Stats = podstats.New(p.Pods, p.Images)
	e.overheads = overheads.New(p.Pods, p.Shims, e.Stats)
	e.Node = status.New(p.Pods, kept, p.Binaries, e.checker, p.Network, status.Config{
		RuntimeName: c.RuntimeName, Version: c.Version, Snapshotter: c.Settings.Snapshotter, Definitions: c.Definitions,
	})
	e.Calls = events.Calls{Broker: e.broker, Log: log.G(p.Pods.Background)}
	e.imageCalls = image.NewService(p.Images)
	e.api = containerdapi.New(containerdapi.Deps{
		Pods: p.Pods, Images: p.Images, Stats: e.Stats, Events: e.agents, OOM: p.Pods.Index.NoteOOM, Version: c.Version, Revision: c.Revision,
	})
	p.Sessions, err = session.New(p.Pods, p.Binaries, p.Tasks, p.Shims, c.Streaming)
	e.sessionCalls = p.Sessions
	return err
}

// Unresponsive has a line for each supervisor and shim that does not answer.
func (e *Engine) Unresponsive(ctx context.Context) []string { return e.parts.Shims.Unresponsive(ctx) }

// Recover takes up what earlier runs of the daemon left. No call may be answered
// before it has returned.
func (e *Engine) Recover(ctx context.Context) error {
	// Shims may call back while their pods are recovered.
	if err := e.serveShims(); err != nil {
		return err
	}
	return recovery.Run(ctx, e.parts)
}

func apiSocket(state string) string { return filepath.Join(state, "containerd.sock") }

func (e *Engine) serveShims() error {
	ctx, path := e.parts.Pods.Background, apiSocket(e.parts.Pods.State)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "unix", path)
	if err != nil {
		return fmt.Errorf("listen for shims: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return errors.Join(fmt.Errorf("listen for shims: %w", err), l.Close())
	}
	go func() {
		if err := e.api.Serve(ctx, l, containerdapi.Shims, observe.NewContainerd(nil).ServerOptions()...); err != nil {
			log.G(ctx).WithError(err).Error("Failed to serve shims that call back")
		}
	}()
	return nil
}

// ServeContainerdAPI shows the engine's images and pods to agents by the API of containerd,
// on l, until ctx or the engine ends. It is called after Recover.
func (e *Engine) ServeContainerdAPI(ctx context.Context, l net.Listener, options ...grpc.ServerOption) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.parts.Pods.Background, cancel)()
	return e.api.Serve(ctx, l, containerdapi.Agents, options...)
}

// complete checks c, and fills in what may be left out.
func (c *Config) complete() error {
	for _, f := range []struct{ name, value string }{{"supervisor binary", c.Supervisor}, {"sandbox process binary", c.Pause}} {
		if !filepath.IsAbs(f.value) {
			return fmt.Errorf("engine: %s %q must be an absolute path", f.name, f.value)
		}
	}
	if c.Definitions == nil {
		return errors.New("engine: no handlers given")
	}
	if c.Accepting == nil {
		c.Accepting = c.Definitions
	}
	if c.Configured == nil {
		c.Configured = c.Definitions
	}
	c.RuntimeName = cmp.Or(c.RuntimeName, runtimeName)
	if c.Prober == nil {
		c.Prober = probe.New(shim.Protocol{})
	}
	return nil
}

// Close ends what the engine does by itself and lets every pod run.
func (e *Engine) Close(ctx context.Context) error {
	// First, while the commands of sessions can still be killed.
	err := e.parts.Sessions.Close()
	e.stop()
	e.parts.SelfChecks.Close(ctx)
	e.checker.Settle(ctx)
	return errors.Join(err, e.close())
}

// close closes what was opened, however much of it there is.
func (e *Engine) close() (err error) {
	if e.parts.Shims != nil {
		e.parts.Shims.Close()
	}
	e.broker.Close()
	if e.parts.Plugins != nil {
		err = e.parts.Plugins.Close()
	}
	if e.parts.Images != nil {
		err = errors.Join(err, e.parts.Images.Close())
	}
	return err
}

// SelfCheck runs a pod of berth's own under d, which no list shows, and takes it
// back; see probe.SelfChecker.
func (e *Engine) SelfCheck(ctx context.Context, d *handler.Definition, rt *probe.Runtime, thorough bool) (probe.Proof, error) {
	if thorough {
		return e.parts.SelfChecks.Prove(ctx, d, rt)
	}
	return nil, e.parts.SelfChecks.Run(ctx, d, nil)
}

// CheckpointsInUse returns the directories of checkpoints that restored pods still read.
func (e *Engine) CheckpointsInUse() []string { return e.parts.PodCheckpoints.Waiting() }

// CheckpointDurations is the metric of checkpoints and restores of pods.
func (e *Engine) CheckpointDurations() prometheus.Collector {
	return e.parts.PodCheckpoints.Durations
}

// LastFailure is what the runtime of a handler wrote when it last could not start a container
// since the node booted; empty if it could, and for shims.
func (e *Engine) LastFailure(handler string) string {
	text, err := os.ReadFile(e.parts.Pods.Layout.FailureLog(handler))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err.Error()
	}
	return string(text)
}

// Overhead reads what ready pods have beyond their containers, by handler.
func (e *Engine) Overhead(ctx context.Context) (map[string]overhead.Pods, error) {
	return e.overheads.Pods(ctx)
}

// ID names the backend.
func (e *Engine) ID() string { return "engine" }

// Inventory lists what the engine has, for the router's owners.
func (e *Engine) Inventory() []handler.Owned {
	var all []handler.Owned
	for _, s := range e.parts.Pods.Index.AllSandboxes() {
		o := handler.Owned{Sandbox: s.ID(), Handler: s.Spec().Definition.Name, UID: s.Config().GetMetadata().GetUid(), Definition: s.Spec().Definition, Generation: s.Spec().Pinned.Generation}
		o.Binaries = e.parts.Binaries.Runtimes.Describe(s.Spec())
		for _, c := range e.parts.Pods.Index.ContainersOf(s.ID()) {
			o.Containers = append(o.Containers, c.ID())
		}
		all = append(all, o)
	}
	return all
}

// Installed tells the programs that a new pod of a handler would keep. It costs a few
// stats, unless one of them was changed since somebody looked.
func (e *Engine) Installed(ctx context.Context, d *handler.Definition) ([]handler.OwnedBinary, error) {
	return e.parts.Binaries.Runtimes.Installed(ctx, d)
}

// Live says whether a sandbox may still use what pods use. A stop that fails
// half-way leaves it live; after a reboot none is.
func (e *Engine) Live(sandbox string) bool {
	s, err := e.parts.Pods.Index.Sandbox(sandbox)
	return err == nil && s.Status().Phase == pod.PhaseReady
}

var (
	_ runtimeapi.RuntimeServiceServer = (*Engine)(nil)
	_ runtimeapi.ImageServiceServer   = (*Engine)(nil)
)

// Capabilities tells what a handler, whose runtime is rt, can do for pods on this node,
// and how that is known. Proof is what self-check pods did on it; may be nil. It waits for
// the look at whether this node maps ids no longer than probeWait.
func (e *Engine) Capabilities(ctx context.Context, d *handler.Definition, rt *probe.Runtime, proof probe.Proof) capability.Table {
	return e.checker.Table(ctx, d, rt, proof)
}

const runtimeName = "berth"

// ownTemporaryMounts has mounts that are made to look into an image made where
// nobody else's are, and takes away what a killed daemon left there. That place is
// one for the whole process.
func ownTemporaryMounts(state string, entry *log.Entry) {
	dir := filepath.Join(state, "mounts")
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		err = mount.SetTempMountLocation(dir)
	}
	var left []error
	if err == nil {
		left, err = mount.CleanupTempMounts(0)
	}
	if err = errors.Join(append(left, err)...); err != nil {
		entry.WithError(err).Warn("Failed to remove temporary mounts of an earlier daemon")
	}
}
