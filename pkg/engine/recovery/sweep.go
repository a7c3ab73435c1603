package recovery

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/engine/binaries"
	"github.com/berth-cri/berth/pkg/engine/image"
	"github.com/berth-cri/berth/pkg/engine/network"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/rootfs"
	"github.com/berth-cri/berth/pkg/engine/sandbox"
	"github.com/berth-cri/berth/pkg/engine/task"
)

// sweeper removes what no record knows of.
type Sweeper struct {
	pod.Layout
	Background context.Context // ends with the engine
	Log        *log.Entry
	Objects    *pod.Index
	Pods       *pod.SandboxRecords
	Ctrs       *pod.ContainerRecords
	Collector  *binaries.Collector
	Mounts     *rootfs.Mounts
	Residue    *rootfs.Residue
	Images     retainer
	Cni        *network.Plugins
	Shims      interface {
		Sweep(ctx context.Context, silent func(key string) bool) error
	}
	Silent *silence
}

// retainer removes what nobody uses of images.
type retainer interface {
	Retain(ctx context.Context, uses []image.Use) error
}

// sweep removes what belongs to nobody. Failing at it costs space, not pods.
func (r *Sweeper) Sweep(ctx context.Context) {
	warn := func(err error) {
		if err != nil {
			log.G(ctx).WithError(err).Warn("clean up after an earlier run")
		}
	}
	bounded, cancel := context.WithTimeout(ctx, task.RecoveryAnswer)
	defer cancel()
	warn(r.Shims.Sweep(bounded, r.Silent.has))
	r.Collector.Collect()
	left := r.leftovers()
	warn(sweepDirs(r.ContainerDir(""), func(id string) bool { _, ok := r.Ctrs.Get(id); return ok }, func(id string) error {
		return r.Residue.Erase(r.ContainerDir(id), func() error { return r.Mounts.EraseContainer(id) })
	}))
	warn(r.sweepSandboxes(func(id string) bool { return !left.Has(id) }))
	go r.releaseAddresses(left)
	var uses []image.Use
	for _, o := range r.Ctrs.List() {
		uses = append(uses, rootfs.LayersInUse(o.ID(), o.Spec())...)
	}
	warn(r.Images.Retain(ctx, uses))
}

// leftovers are the pods on the network that no record knows any more.
func (r *Sweeper) leftovers() *network.Leftovers {
	var valid []network.Pod
	for _, s := range r.Objects.AllSandboxes() {
		if s.Status().Tried {
			valid = append(valid, sandbox.AttachedPod(s))
		}
	}
	return r.Cni.Leftovers(valid...)
}

// releaseAddresses disconnects them, and then releases their namespaces, into
// which plugins look. Calls are answered meanwhile: the network's plugins may
// need a pod of this node.
func (r *Sweeper) releaseAddresses(left *network.Leftovers) {
	ctx, cancel := context.WithTimeout(r.Background, pod.UndoTimeout)
	defer cancel()
	err := left.Collect(ctx)
	if r.Background.Err() != nil {
		return // the next start does it again
	}
	if err := errors.Join(err, r.sweepSandboxes(left.Has)); err != nil {
		log.G(ctx).WithError(err).Warn("clean up after an earlier run")
	}
}

// sweepSandboxes removes what is left of sandboxes that have no record.
func (r *Sweeper) sweepSandboxes(which func(id string) bool) error {
	known := func(id string) bool { _, ok := r.Pods.Get(id); return ok || !which(id) }
	return sweepDirs(r.SandboxDir(""), known, func(id string) error {
		return r.Residue.Erase(r.SandboxDir(id), func() error { return rootfs.EraseSandbox(r.Layout, id) })
	})
}

func sweepDirs(dir string, known func(id string) bool, remove func(id string) error) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if !known(e.Name()) {
			errs = append(errs, remove(e.Name()))
		}
	}
	return errors.Join(errs...)
}

// closePodDirs does so for what an earlier version left open to all.
func (r *Sweeper) ClosePodDirs() {
	closed := func(p *pod.Plan, dir string) {
		if err := p.ClosePodDir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			r.Log.WithError(err).WithField("path", dir).Error("a pod's directory cannot be closed to other users")
		}
	}
	for _, s := range r.Pods.List() {
		closed(&s.Spec().Plan, r.SandboxDir(s.ID()))
	}
	for _, c := range r.Ctrs.List() {
		plan := &pod.Plan{}
		if s, ok := r.Pods.Get(c.Spec().Sandbox); ok {
			plan = &s.Spec().Plan
		}
		closed(plan, r.ContainerDir(c.ID()))
	}
}
