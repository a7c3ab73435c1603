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
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/log"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/image"
	"github.com/berth-cri/berth/pkg/engine/network"
	"github.com/berth-cri/berth/pkg/engine/nri"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/engine/store"
	"github.com/berth-cri/berth/pkg/engine/streaming"
	"github.com/berth-cri/berth/pkg/handler"
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
	UnprivilegedPorts    bool
	UnprivilegedICMP     bool
	// TolerateMissingHugetlb ignores hugepage limits where there is no controller.
	TolerateMissingHugetlb bool
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

// core is what the parts share. It has no behaviour of its own.
type core struct {
	layout
	settings   *settings
	runtimes   *runtimes
	tasks      *tasks
	burials    *burials
	exits      *exits
	abilities  *abilities
	mounts     *mounts
	events     *announcer
	hooks      *hooks
	collector  *collector
	inspection *inspection
	config     Config
	log        *log.Entry
	background context.Context // ends with the engine
	objects    *objects
	names      *names
	labels     *labels
	clock      *clock
	pods       *sandboxRecords
	ctrs       *containerRecords
	broken     brokenRecords
	images     *image.Store
	cni        *network.Plugins
	plugins    *nri.Plugins // nil unless there can be any
	shims      *shim.Manager
	prober     *probe.Prober
	broker     *broker
	tools      tools
	binaries   *binaries
	features   featureMemory
	boot       string // this boot of the node, by the kernel's random id
	closers    []io.Closer
}

// brokenRecords are records that could not be read at start.
type brokenRecords struct{ sandboxes, containers []store.Broken }

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
	e.events = events{k}
	limits := newResources(k.layout, k.settings, k.tasks)
	if k.plugins, err = openPlugins(c.Plugins, c.Version, pluginNode{k.objects, k.hooks, limits}); err != nil {
		stop()
		return nil, errors.Join(err, k.close())
	}
	k.closers = append(k.closers, k.plugins)
	if err := e.serveContainers(k, limits); err != nil {
		stop()
		return nil, errors.Join(err, k.close())
	}
	if err := e.serveSandboxes(k); err != nil {
		stop()
		return nil, errors.Join(err, k.close())
	}
	e.execs = execs{k}
	server, err := streaming.Serve(c.Streaming, sessions{k})
	if err != nil {
		stop()
		return nil, errors.Join(err, k.close())
	}
	e.streams = streams{k, server}
	e.stats = stats{k, newLanes()}
	e.node = node{k}
	e.images = images{image.NewService(k.images)}
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
		entry.WithError(err).Warn("temporary mounts of an earlier daemon are left")
	}
}

func newCore(ctx context.Context, c Config) (_ *core, err error) {
	k := &core{config: c, log: log.G(ctx), background: ctx, objects: newObjects(), names: newNames(), labels: newLabels(), clock: &clock{}, broker: newBroker()}
	defer func() {
		if err != nil {
			err = errors.Join(err, k.close())
		}
	}()
	if k.layout, err = newLayout(c.Root, c.State); err != nil {
		return nil, err
	}
	for _, d := range []string{c.Root, c.State, k.sandboxDir(""), k.containerDir("")} {
		if err := os.MkdirAll(d, 0o711); err != nil {
			return nil, fmt.Errorf("engine: %w", err)
		}
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("engine: %w", err)
	}
	k.boot = strings.TrimSpace(string(boot))
	if k.tools, err = newTools(c, k.log); err != nil {
		return nil, err
	}
	if k.settings, err = newSettings(ctx, c); err != nil {
		return nil, err
	}
	if k.pods, k.broken.sandboxes, err = store.Open[sandboxSpec, sandboxStatus](filepath.Join(c.Root, "records", "sandboxes")); err != nil {
		return nil, err
	}
	if k.ctrs, k.broken.containers, err = store.Open[containerSpec, containerStatus](filepath.Join(c.Root, "records", "containers")); err != nil {
		return nil, err
	}
	if k.images, err = image.Open(ctx, c.Images); err != nil {
		return nil, err
	}
	k.closers = append(k.closers, k.images)
	k.cni = network.New(c.Network)
	if k.prober = c.Prober; k.prober == nil {
		k.prober = probe.New()
	}
	k.binaries = newBinaries(k.tools.dir, k.prober, k.tools.noExec, k.log, func() { go k.collector.collectUnlessClosed() })
	for _, o := range k.pods.List() {
		for _, one := range o.Spec().binaries() {
			k.binaries.store.Know(one)
		}
	}
	k.shims, err = shim.New(shim.Config{
		State: c.State, Supervisor: k.tools.supervisor, Events: filepath.Join(c.State, "events.sock"), Log: k.log,
		Left: func() { k.collector.collect() },
	})
	if err != nil {
		return nil, err
	}
	k.runtimes = newRuntimes(k.binaries, k.log)
	k.tasks = newTasks(k.layout, k.settings, k.runtimes, k.shims)
	k.burials = newBurials(k.layout, k.settings, k.runtimes, k.shims, k.ctrs)
	k.exits = newExits(ctx, k.tasks, k.burials, k.shims)
	k.abilities = &abilities{
		background: ctx, layout: k.layout, settings: k.settings, runtimes: k.runtimes,
		prober: k.prober, images: k.images, definitions: c.Definitions,
	}
	k.mounts = newMounts(k.layout, k.images)
	k.events = newAnnouncer(k.broker, k.clock, k.objects)
	k.hooks = newHooks(ctx, k.layout, k.settings)
	k.collector = &collector{
		background: ctx, log: k.log, tools: k.tools, binaries: k.binaries, programs: k.shims,
		pods: k.pods, unreadable: len(k.broken.sandboxes) > 0, definitions: c.Definitions,
	}
	k.prober.OnAnswer(k.binaries.Prepare)
	k.inspection = &inspection{
		background: ctx, log: k.log, binaries: k.binaries, runtimes: k.runtimes, collector: k.collector,
		prober: k.prober, objects: k.objects, definitions: c.Definitions,
	}
	return k, complete(k.settings, k.runtimes, k.tasks, k.burials, k.exits, k.abilities, k.mounts, k.events, k.hooks, k.collector, k.inspection)
}

// Close ends what the engine does by itself and lets every pod run.
func (e *Engine) Close(context.Context) error {
	// First, while the commands of sessions can still be killed.
	err := e.streams.server.Close()
	e.stop()
	return errors.Join(err, e.core.close())
}

func (k *core) close() error {
	if k.shims != nil {
		k.shims.Close()
	}
	k.broker.close()
	var errs []error
	for i := len(k.closers) - 1; i >= 0; i-- {
		errs = append(errs, k.closers[i].Close())
	}
	return errors.Join(errs...)
}

// ID names the backend.
func (e *Engine) ID() string { return "engine" }

// Inventory lists what the engine has, for the router's owners.
func (e *Engine) Inventory() []handler.Owned {
	var all []handler.Owned
	for _, s := range e.core.objects.allSandboxes() {
		o := handler.Owned{Sandbox: s.ID(), Handler: s.Spec().Definition.Name, UID: s.config().GetMetadata().GetUid(), Definition: s.Spec().Definition}
		for _, one := range e.core.runtimes.told(s.Spec()) {
			o.Binaries = append(o.Binaries, handler.OwnedBinary(one))
		}
		for _, c := range e.core.objects.containersOf(s.ID()) {
			o.Containers = append(o.Containers, c.ID())
		}
		all = append(all, o)
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
