package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/engine/binaries"
	"github.com/berth-cri/berth/pkg/engine/capabilities"
	"github.com/berth-cri/berth/pkg/engine/events"
	"github.com/berth-cri/berth/pkg/engine/hooks"
	"github.com/berth-cri/berth/pkg/engine/image"
	"github.com/berth-cri/berth/pkg/engine/network"
	"github.com/berth-cri/berth/pkg/engine/nri"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/recovery"
	"github.com/berth-cri/berth/pkg/engine/reserve"
	"github.com/berth-cri/berth/pkg/engine/rootfs"
	"github.com/berth-cri/berth/pkg/engine/settings"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/engine/store"
	"github.com/berth-cri/berth/pkg/engine/task"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/probe"
)

// core is what the parts share. It has no behaviour of its own.
type core struct {
	pod.Layout
	settings   *settings.Settings
	runtimes   *binaries.Runtimes
	tasks      *task.Tasks
	burials    *task.LostShims
	exits      *task.Exits
	abilities  *capabilities.Checker
	mounts     *rootfs.Mounts
	residue    *rootfs.Residue
	events     *events.Announcer
	hooks      *hooks.Hooks
	collector  *binaries.Collector
	inspection *binaries.Inspection
	config     Config
	log        *log.Entry
	background context.Context // ends with the engine
	objects    *pod.Index
	names      *reserve.Names
	labels     *reserve.Labels
	clock      *pod.Clock
	pods       *pod.SandboxRecords
	ctrs       *pod.ContainerRecords
	broken     recovery.BrokenRecords
	images     *image.Store
	cni        *network.Plugins
	plugins    *nri.Plugins // nil unless there can be any
	shims      *shim.Manager
	prober     *probe.Prober
	broker     *events.Broker
	tools      binaries.Tools
	binaries   *binaries.Copies
	boot       string // this boot of the node, by the kernel's random id
	closers    []io.Closer
}

// newCore opens what there is on disk. After an error nothing stays open.
func newCore(ctx context.Context, c Config) (_ *core, err error) {
	k := &core{config: c, log: log.G(ctx), background: ctx, objects: pod.NewIndex(), names: reserve.NewNames(), labels: reserve.NewLabels(), clock: &pod.Clock{}, broker: events.NewBroker()}
	defer func() {
		if err != nil {
			err = errors.Join(err, k.close())
		}
	}()
	if k.Layout, err = pod.NewLayout(c.Root, c.State); err != nil {
		return nil, err
	}
	for _, d := range []string{c.Root, c.State, k.SandboxDir(""), k.ContainerDir("")} {
		if err := os.MkdirAll(d, 0o711); err != nil {
			return nil, fmt.Errorf("engine: %w", err)
		}
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("engine: %w", err)
	}
	k.boot = strings.TrimSpace(string(boot))
	if k.tools, err = binaries.NewTools(c.Root, c.Supervisor, c.Pause, k.log); err != nil {
		return nil, err
	}
	if k.settings, err = settings.New(ctx, c.Settings); err != nil {
		return nil, err
	}
	if k.pods, k.broken.Sandboxes, err = store.Open[pod.SandboxSpec, pod.SandboxStatus](filepath.Join(c.Root, "records", "sandboxes")); err != nil {
		return nil, err
	}
	if k.ctrs, k.broken.Containers, err = store.Open[pod.ContainerSpec, pod.ContainerStatus](filepath.Join(c.Root, "records", "containers")); err != nil {
		return nil, err
	}
	if k.images, err = image.Open(ctx, c.Images); err != nil {
		return nil, err
	}
	k.closers = append(k.closers, k.images)
	k.cni = network.New(c.Network)
	if k.prober = c.Prober; k.prober == nil {
		k.prober = probe.New(shim.Protocol{})
	}
	k.binaries = binaries.NewCopies(k.tools.Dir, k.prober, k.tools.NoExec, k.log, func() { go k.collector.CollectUnlessClosed() })
	for _, o := range k.pods.List() {
		for _, one := range o.Spec().Binaries() {
			k.binaries.Store.Know(one)
		}
	}
	k.shims, err = shim.New(shim.Config{
		State: c.State, Supervisor: k.tools.Supervisor, Events: filepath.Join(c.State, "events.sock"), Log: k.log,
		Left: func() { k.collector.Collect() },
	})
	if err != nil {
		return nil, err
	}
	k.runtimes = binaries.NewRuntimes(k.binaries, k.log)
	k.tasks = task.New(k.Layout, k.settings, k.runtimes, k.shims)
	k.burials = task.NewLostShims(k.Layout, k.settings, k.runtimes, k.shims, k.ctrs)
	k.exits = task.NewExits(ctx, k.tasks, k.burials, k.shims)
	k.abilities = &capabilities.Checker{
		Background: ctx, Layout: k.Layout, Settings: k.settings, Runtimes: k.runtimes,
		Prober: k.prober, Images: k.images, Accepting: c.accepting(),
	}
	k.mounts = rootfs.New(k.Layout, k.images)
	k.residue = rootfs.NewResidue(ctx)
	k.events = events.NewAnnouncer(k.broker, k.clock, k.objects)
	k.hooks = hooks.NewHooks(ctx, k.Layout, k.settings)
	k.collector = &binaries.Collector{
		Background: ctx, Log: k.log, Tools: k.tools, Binaries: k.binaries, Programs: k.shims,
		Pods: k.pods, Unreadable: len(k.broken.Sandboxes) > 0, Configured: c.configured(),
	}
	k.prober.OnAnswer(k.binaries.Prepare)
	k.inspection = &binaries.Inspection{
		Background: ctx, Log: k.log, Binaries: k.binaries, Runtimes: k.runtimes, Collector: k.collector,
		Prober: k.prober, Objects: k.objects, Definitions: c.Definitions, Configured: c.configured(),
	}
	return k, complete(k.settings, k.runtimes, k.tasks, k.burials, k.exits, k.abilities, k.mounts, k.events, k.hooks, k.collector, k.inspection)
}

func (c Config) configured() func() []*handler.Definition {
	if c.Configured == nil {
		return c.Definitions
	}
	return c.Configured
}

func (c Config) accepting() func() []*handler.Definition {
	if c.Accepting == nil {
		return c.Definitions
	}
	return c.Accepting
}

func (k *core) close() error {
	if k.shims != nil {
		k.shims.Close()
	}
	k.broker.Close()
	var errs []error
	for i := len(k.closers) - 1; i >= 0; i-- {
		errs = append(errs, k.closers[i].Close())
	}
	return errors.Join(errs...)
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
