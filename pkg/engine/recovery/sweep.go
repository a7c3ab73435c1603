package recovery

import (
	"context"
	"errors"
	"os"

	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/engine/image/containerfs"
	"github.com/berth-cri/berth/pkg/engine/namespaces"
	"github.com/berth-cri/berth/pkg/engine/network"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/rootfs"
	"github.com/berth-cri/berth/pkg/engine/sandbox"
	"github.com/berth-cri/berth/pkg/engine/task"
)

// sweep removes leftovers without a record. A failure wastes space, but harms no pod.
func (r *recovery) sweep(ctx context.Context) {
	warn := func(err error) {
		if err != nil {
			log.G(ctx).WithError(err).Warn("Failed to clean up after an earlier run")
		}
	}
	bounded, cancel := context.WithTimeout(ctx, task.RecoveryAnswer)
	defer cancel()
	warn(r.Shims.Sweep(bounded, r.unresponsive.has))
	r.Binaries.Collector.Collect()
	left := r.leftovers()
	warn(sweepDirs(r.Pods.ContainerDir(""), func(id string) bool { _, ok := r.Pods.Containers.Get(id); return ok }, func(id string) error {
		return r.Rootfs.Residue.Erase(r.Pods.ContainerDir(id), func() error { return r.Rootfs.EraseContainer(id) })
	}))
	warn(r.Containers.SweepRestores())
	warn(r.sweepSandboxes(func(id string) bool { return !left.Has(id) }))
	go r.releaseAddresses(left)
	var uses []containerfs.Use
	for _, o := range r.Pods.Containers.List() {
		uses = append(uses, rootfs.LayersInUse(o.ID(), o.Spec())...)
	}
	warn(r.Images.Retain(ctx, uses))
}

// leftovers returns pods on the network without a record.
func (r *recovery) leftovers() *network.Leftovers {
	var valid []network.Pod
	connected := map[string]*network.Result{}
	for _, s := range r.Pods.Index.AllSandboxes() {
		if s.Status().Tried {
			valid = append(valid, sandbox.AttachedPod(s))
			if n := s.Status().Network; n != nil && namespaces.Exists(s.Status().Namespaces.Net) {
				connected[s.ID()] = n
			}
		}
	}
	if err := r.Network.Resume(connected); err != nil {
		log.L.WithError(err).Warn("Failed to restore the masquerading of pods")
	}
	return r.Network.Leftovers(valid...)
}

// releaseAddresses disconnects leftovers, and then releases their namespaces, which plugins use. It
// runs while calls are served, because the network's plugins may need a pod of this node.
func (r *recovery) releaseAddresses(left *network.Leftovers) {
	ctx, cancel := context.WithTimeout(r.Pods.Background, pod.UndoTimeout)
	defer cancel()
	err := left.Collect(ctx)
	if r.Pods.Background.Err() != nil {
		return // repeated at the next start
	}
	if err := errors.Join(err, r.sweepSandboxes(left.Has)); err != nil {
		log.G(ctx).WithError(err).Warn("Failed to clean up after an earlier run")
	}
}

// sweepSandboxes removes the directories of sandboxes without a record.
func (r *recovery) sweepSandboxes(which func(id string) bool) error {
	known := func(id string) bool { _, ok := r.Pods.Sandboxes.Get(id); return ok || !which(id) }
	return sweepDirs(r.Pods.SandboxDir(""), known, func(id string) error {
		return r.Rootfs.Residue.Erase(r.Pods.SandboxDir(id), func() error { return rootfs.EraseSandbox(r.Pods.Layout, id) })
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
