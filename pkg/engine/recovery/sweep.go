package recovery

import (
	"context"
	"errors"
	"os"

	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/engine/binaries"
	"github.com/berth-cri/berth/pkg/engine/container"
	"github.com/berth-cri/berth/pkg/engine/image"
	"github.com/berth-cri/berth/pkg/engine/image/containerfs"
	"github.com/berth-cri/berth/pkg/engine/network"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/rootfs"
	"github.com/berth-cri/berth/pkg/engine/sandbox"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/engine/task"
)

// sweeper removes what no record knows of.
type sweeper struct {
	pods         *pod.Registry
	binaries     *binaries.Binaries
	rootfs       *rootfs.Mounts
	images       *image.Store
	cni          *network.Plugins
	containers   *container.Service
	shims        *shim.Manager
	unresponsive *unresponsive
}

// sweep removes what belongs to nobody. Failing at it costs space, not pods.
func (r *sweeper) sweep(ctx context.Context) {
	warn := func(err error) {
		if err != nil {
			log.G(ctx).WithError(err).Warn("Failed to clean up after an earlier run")
		}
	}
	bounded, cancel := context.WithTimeout(ctx, task.RecoveryAnswer)
	defer cancel()
	warn(r.shims.Sweep(bounded, r.unresponsive.has))
	r.binaries.Collector.Collect()
	left := r.leftovers()
	warn(sweepDirs(r.pods.ContainerDir(""), func(id string) bool { _, ok := r.pods.Containers.Get(id); return ok }, func(id string) error {
		return r.rootfs.Residue.Erase(r.pods.ContainerDir(id), func() error { return r.rootfs.EraseContainer(id) })
	}))
	warn(r.containers.SweepRestores())
	warn(r.sweepSandboxes(func(id string) bool { return !left.Has(id) }))
	go r.releaseAddresses(left)
	var uses []containerfs.Use
	for _, o := range r.pods.Containers.List() {
		uses = append(uses, rootfs.LayersInUse(o.ID(), o.Spec())...)
	}
	warn(r.images.Retain(ctx, uses))
}

// leftovers are the pods on the network that no record knows any more.
func (r *sweeper) leftovers() *network.Leftovers {
	var valid []network.Pod
	for _, s := range r.pods.Index.AllSandboxes() {
		if s.Status().Tried {
			valid = append(valid, sandbox.AttachedPod(s))
		}
	}
	return r.cni.Leftovers(valid...)
}

// releaseAddresses disconnects them, and then releases their namespaces, into
// which plugins look. Calls are answered meanwhile: the network's plugins may
// need a pod of this node.
func (r *sweeper) releaseAddresses(left *network.Leftovers) {
	ctx, cancel := context.WithTimeout(r.pods.Background, pod.UndoTimeout)
	defer cancel()
	err := left.Collect(ctx)
	if r.pods.Background.Err() != nil {
		return // the next start does it again
	}
	if err := errors.Join(err, r.sweepSandboxes(left.Has)); err != nil {
		log.G(ctx).WithError(err).Warn("Failed to clean up after an earlier run")
	}
}

// sweepSandboxes removes what is left of sandboxes that have no record.
func (r *sweeper) sweepSandboxes(which func(id string) bool) error {
	known := func(id string) bool { _, ok := r.pods.Sandboxes.Get(id); return ok || !which(id) }
	return sweepDirs(r.pods.SandboxDir(""), known, func(id string) error {
		return r.rootfs.Residue.Erase(r.pods.SandboxDir(id), func() error { return rootfs.EraseSandbox(r.pods.Layout, id) })
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
