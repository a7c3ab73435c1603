package engine

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/engine/image"
	"github.com/berth-cri/berth/pkg/engine/network"
)

// sweeper removes what no record knows of.
type sweeper struct {
	layout
	background context.Context // ends with the engine
	log        *log.Entry
	objects    *objects
	pods       *sandboxRecords
	ctrs       *containerRecords
	collector  *collector
	mounts     *mounts
	residue    *residue
	images     retainer
	cni        *network.Plugins
	shims      interface {
		Sweep(ctx context.Context, silent func(key string) bool) error
	}
	silent *silence
}

// retainer removes what nobody uses of images.
type retainer interface {
	Retain(ctx context.Context, uses []image.Use) error
}

// sweep removes what belongs to nobody. Failing at it costs space, not pods.
func (r *sweeper) sweep(ctx context.Context) {
	warn := func(err error) {
		if err != nil {
			log.G(ctx).WithError(err).Warn("clean up after an earlier run")
		}
	}
	bounded, cancel := context.WithTimeout(ctx, recoveryAnswer)
	defer cancel()
	warn(r.shims.Sweep(bounded, r.silent.has))
	r.collector.collect()
	left := r.leftovers()
	warn(sweepDirs(r.containerDir(""), func(id string) bool { _, ok := r.ctrs.Get(id); return ok }, func(id string) error {
		return r.residue.erase(r.containerDir(id), func() error { return r.mounts.eraseContainer(id) })
	}))
	warn(r.sweepSandboxes(func(id string) bool { return !left.Has(id) }))
	go r.releaseAddresses(left)
	var uses []image.Use
	for _, o := range r.ctrs.List() {
		uses = append(uses, layersInUse(o.ID(), o.Spec())...)
	}
	warn(r.images.Retain(ctx, uses))
}

// leftovers are the pods on the network that no record knows any more.
func (r *sweeper) leftovers() *network.Leftovers {
	var valid []network.Pod
	for _, s := range r.objects.allSandboxes() {
		if s.Status().Tried {
			valid = append(valid, attachedPod(s))
		}
	}
	return r.cni.Leftovers(valid...)
}

// releaseAddresses disconnects them, and then releases their namespaces, into
// which plugins look. Calls are answered meanwhile: the network's plugins may
// need a pod of this node.
func (r *sweeper) releaseAddresses(left *network.Leftovers) {
	ctx, cancel := context.WithTimeout(r.background, undoTimeout)
	defer cancel()
	err := left.Collect(ctx)
	if r.background.Err() != nil {
		return // the next start does it again
	}
	if err := errors.Join(err, r.sweepSandboxes(left.Has)); err != nil {
		log.G(ctx).WithError(err).Warn("clean up after an earlier run")
	}
}

// sweepSandboxes removes what is left of sandboxes that have no record.
func (r *sweeper) sweepSandboxes(which func(id string) bool) error {
	known := func(id string) bool { _, ok := r.pods.Get(id); return ok || !which(id) }
	return sweepDirs(r.sandboxDir(""), known, func(id string) error {
		return r.residue.erase(r.sandboxDir(id), func() error { return r.eraseSandbox(id) })
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
func (r *sweeper) closePodDirs() {
	closed := func(p *sandboxPlan, dir string) {
		if err := p.closePodDir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			r.log.WithError(err).WithField("path", dir).Error("a pod's directory cannot be closed to other users")
		}
	}
	for _, s := range r.pods.List() {
		closed(&s.Spec().Plan, r.sandboxDir(s.ID()))
	}
	for _, c := range r.ctrs.List() {
		plan := &sandboxPlan{}
		if s, ok := r.pods.Get(c.Spec().Sandbox); ok {
			plan = &s.Spec().Plan
		}
		closed(plan, r.containerDir(c.ID()))
	}
}
