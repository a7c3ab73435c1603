// Package engine is the embedded backend: it runs pods on OCI runtimes and
// shim-v2 binaries, on containerd's libraries, without a containerd daemon.
//
//	e, err := engine.New(ctx, engine.Config{...})
//	err = e.Recover(ctx)   // before any other call
//	e.RunPodSandbox(handler.WithDefinition(ctx, definition), request)
//
// An Engine implements the CRI's two services. It consists of one small type per concern
// (sandboxes, containers, exec, statistics, the node, events, images), each in its own package;
// other calls of the CRI return Unimplemented. The router selects the handler of a call: a new
// sandbox gets its Definition from the context, and keeps it until it is removed.
//
// docs/architecture.md describes the design and the files on disk.
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

// Config configures an engine. Fields without a default are required.
type Config struct {
	// Root is a directory that survives reboots, State one that does not.
	Root, State string
	// Supervisor and Pause are the berth-shim and berth-pause binaries.
	Supervisor, Pause string
	// Version is the daemon's version, for the Version call, the containerd API and NRI plugins.
	// Revision is the commit that the daemon was built from.
	Version, Revision string
	// RuntimeName is the runtime's name in the Version call; empty is "berth". It becomes the
	// scheme of container ids in the Kubernetes API.
	RuntimeName string
	// Settings apply to new sandboxes. A sandbox keeps the settings that it was created with.
	Settings    settings.Config
	CDISpecDirs []string
	Network     network.Config
	// Plugins selects the NRI plugins; New sets its Name, Version and LinkDir.
	Plugins nri.Config
	Images  image.Config
	// Streaming configures the server of exec, attach and port-forward.
	Streaming streaming.Config
	// Definitions returns the handlers that Status reports.
	Definitions func() []*handler.Definition
	// Accepting returns the handlers that accept new pods. An error about a capability that a pod's
	// handler lacks recommends handlers among them. nil is Definitions.
	Accepting func() []*handler.Definition
	// Configured returns all handlers that new pods may run under, including candidates and those
	// that are not ready. nil is Definitions.
	Configured func() []*handler.Definition
	// Prober probes runtimes; nil creates one.
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

// Aliases with different names, because embedded fields must differ.
type (
	sandboxCalls   = sandbox.Calls
	containerCalls = container.Calls
	sessionCalls   = session.Calls
	podCheckpoints = podcheckpoint.Service
	imageCalls     = image.Service
)

// fallback serves calls that no other part implements. It is nested deeper than the other parts, so
// that their methods have precedence.
type fallback struct{ unimplemented }

type unimplemented struct{ unanswered }

type unanswered struct {
	runtimeapi.UnimplementedRuntimeServiceServer
}

// New opens the engine's state. It starts no work on pods, and no calls are allowed, until Recover
// has returned.
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

// Images returns the engine's image store.
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

// serve creates the services of the CRI's calls. The service of sessions listens, so it is created
// last: no later failure has to close it.
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
		Pods: p.Pods, Images: p.Images, Stats: e.Stats, Events: e.agents, OOM: p.Pods.Index.RecordOOM, Version: c.Version, Revision: c.Revision,
	})
	p.Sessions, err = session.New(p.Pods, p.Binaries, p.Tasks, p.Shims, c.Streaming)
	e.sessionCalls = p.Sessions
	return err
}

// Unresponsive returns a line for each supervisor and shim that does not answer.
func (e *Engine) Unresponsive(ctx context.Context) []string { return e.parts.Shims.Unresponsive(ctx) }

// Recover restores the state of earlier runs of the daemon. Calls are allowed only after it has
// returned.
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

// ServeContainerdAPI serves the engine's images and pods to agents by the API of containerd, on l,
// until ctx or the engine ends. It is called after Recover.
func (e *Engine) ServeContainerdAPI(ctx context.Context, l net.Listener, options ...grpc.ServerOption) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.parts.Pods.Background, cancel)()
	return e.api.Serve(ctx, l, containerdapi.Agents, options...)
}

// complete checks c and sets defaults.
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

// Close stops the engine's background work; the pods keep running.
func (e *Engine) Close(ctx context.Context) error {
	// Sessions end first, while their commands can still be killed.
	err := e.parts.Sessions.Close()
	e.stop()
	e.parts.SelfChecks.Close(ctx)
	e.checker.Settle(ctx)
	return errors.Join(err, e.close())
}

func (e *Engine) close() (err error) {
	if e.parts.Shims != nil {
		e.parts.Shims.Close()
	}
	e.broker.Close()
	if e.parts.Plugins != nil {
		err = e.parts.Plugins.Close()
	}
	if e.parts.Network != nil {
		err = errors.Join(err, e.parts.Network.Close())
	}
	if e.parts.Images != nil {
		err = errors.Join(err, e.parts.Images.Close())
	}
	return err
}

// SelfCheck runs a self-check pod under d and removes it; no call lists the pod. See
// probe.SelfChecker.
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

// LastFailure returns what a handler's runtime printed when it last failed to start a container.
// Aborted starts, and failures that the pod caused, are not recorded. It is empty after a boot, and
// always for shims; a later success does not clear it.
func (e *Engine) LastFailure(handler string) string {
	text, err := os.ReadFile(e.parts.Pods.Layout.FailureLog(handler))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err.Error()
	}
	return string(text)
}

// Overhead measures what ready pods use beyond their containers, by handler.
func (e *Engine) Overhead(ctx context.Context) (map[string]overhead.Pods, error) {
	return e.overheads.Pods(ctx)
}

// ID is the backend's id.
func (e *Engine) ID() string { return "engine" }

// Inventory lists the engine's sandboxes and containers, so that the router finds the
// backend of an ID.
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

// Installed returns the binaries that a new pod of a handler would keep. It calls stat a few times,
// and reads a binary only if the file has changed since the last call.
func (e *Engine) Installed(ctx context.Context, d *handler.Definition) ([]handler.OwnedBinary, error) {
	return e.parts.Binaries.Runtimes.Installed(ctx, d)
}

// Live reports whether a sandbox may still use the resources of pods. A sandbox is live after a
// failed stop, but not after a reboot.
func (e *Engine) Live(sandbox string) bool {
	s, err := e.parts.Pods.Index.Sandbox(sandbox)
	return err == nil && s.Status().Phase == pod.PhaseReady
}

var (
	_ runtimeapi.RuntimeServiceServer = (*Engine)(nil)
	_ runtimeapi.ImageServiceServer   = (*Engine)(nil)
)

// Capabilities returns what a handler with runtime rt can do for pods on this node, and how that is
// known. proof, which may be nil, is the result of a self-check pod. It waits at most
// capabilities.ProbeWait to detect the node's id mapping.
func (e *Engine) Capabilities(ctx context.Context, d *handler.Definition, rt *probe.Runtime, proof probe.Proof) capability.Table {
	return e.checker.Table(ctx, d, rt, proof)
}

const runtimeName = "berth"

// ownTemporaryMounts makes containerd's libraries mount images temporarily in a directory of berth,
// and removes mounts left there by a killed daemon.
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
		entry.WithError(err).Warn("Failed to prepare the directory of temporary mounts")
	}
}
