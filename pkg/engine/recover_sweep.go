package engine

import (
	"context"
	"errors"
	"os"

	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/engine/image"
	"github.com/berth-cri/berth/pkg/engine/network"
	"github.com/berth-cri/berth/pkg/engine/pin"
)

// sweep removes what belongs to nobody. Failing at it costs space, not pods.
func (r recovery) sweep(ctx context.Context) {
	k := r.core
	warn := func(err error) {
		if err != nil {
			log.G(ctx).WithError(err).Warn("clean up after an earlier run")
		}
	}
	bounded, cancel := context.WithTimeout(ctx, recoveryAnswer)
	defer cancel()
	warn(k.shims.Sweep(bounded, r.silent.has))
	k.collector.collect()
	left := r.leftovers()
	warn(sweepDirs(k.containerDir(""), func(id string) bool { _, ok := k.ctrs.Get(id); return ok }, func(id string) error {
		if err := k.mounts.unmountParts(id); err != nil {
			return err
		}
		return removeDir(k.containerDir(id))
	}))
	warn(r.sweepSandboxes(func(id string) bool { return !left.Has(id) }))
	go r.releaseAddresses(left)
	var uses []image.Use
	for _, o := range k.ctrs.List() {
		uses = append(uses, layersInUse(o.ID(), o.Spec())...)
	}
	warn(k.images.Retain(ctx, uses))
}

// leftovers are the pods on the network that no record knows any more.
func (r recovery) leftovers() *network.Leftovers {
	var valid []network.Pod
	for _, s := range r.core.objects.allSandboxes() {
		if s.Status().Tried {
			valid = append(valid, attachedPod(s))
		}
	}
	return r.core.cni.Leftovers(valid...)
}

// releaseAddresses disconnects them, and then releases their namespaces, into
// which plugins look. Calls are answered meanwhile: the network's plugins may
// need a pod of this node.
func (r recovery) releaseAddresses(left *network.Leftovers) {
	ctx, cancel := context.WithTimeout(r.core.background, undoTimeout)
	defer cancel()
	err := left.Collect(ctx)
	if r.core.background.Err() != nil {
		return // the next start does it again
	}
	if err := errors.Join(err, r.sweepSandboxes(left.Has)); err != nil {
		log.G(ctx).WithError(err).Warn("clean up after an earlier run")
	}
}

// sweepSandboxes removes what is left of sandboxes that have no record.
func (r recovery) sweepSandboxes(which func(id string) bool) error {
	k := r.core
	known := func(id string) bool { _, ok := k.pods.Get(id); return ok || !which(id) }
	return sweepDirs(k.sandboxDir(""), known, func(id string) error {
		if err := pin.Release(k.nsDir(id)); err != nil {
			return err
		}
		return removeFiles(k.layout, id)
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
