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

	"github.com/berth-cri/berth/pkg/engine/image"
	"github.com/berth-cri/berth/pkg/engine/network"
	"github.com/berth-cri/berth/pkg/engine/nri"
	"github.com/berth-cri/berth/pkg/engine/reserve"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/engine/store"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/probe"
)

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
	residue    *residue
	events     *announcer
	hooks      *hooks
	collector  *collector
	inspection *inspection
	config     Config
	log        *log.Entry
	background context.Context // ends with the engine
	objects    *objects
	names      *reserve.Names
	labels     *reserve.Labels
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
	boot       string // this boot of the node, by the kernel's random id
	closers    []io.Closer
}

// brokenRecords are records that could not be read at start.
type brokenRecords struct{ sandboxes, containers []store.Broken }

// newCore opens what there is on disk. After an error nothing stays open.
func newCore(ctx context.Context, c Config) (_ *core, err error) {
	k := &core{config: c, log: log.G(ctx), background: ctx, objects: newObjects(), names: reserve.NewNames(), labels: reserve.NewLabels(), clock: &clock{}, broker: newBroker()}
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
		k.prober = probe.New(shim.Protocol{})
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
		prober: k.prober, images: k.images, accepting: c.accepting(),
	}
	k.mounts = newMounts(k.layout, k.images)
	k.residue = newResidue(ctx)
	k.events = newAnnouncer(k.broker, k.clock, k.objects)
	k.hooks = newHooks(ctx, k.layout, k.settings)
	k.collector = &collector{
		background: ctx, log: k.log, tools: k.tools, binaries: k.binaries, programs: k.shims,
		pods: k.pods, unreadable: len(k.broken.sandboxes) > 0, configured: c.configured(),
	}
	k.prober.OnAnswer(k.binaries.Prepare)
	k.inspection = &inspection{
		background: ctx, log: k.log, binaries: k.binaries, runtimes: k.runtimes, collector: k.collector,
		prober: k.prober, objects: k.objects, definitions: c.Definitions, configured: c.configured(),
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
	k.broker.close()
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
