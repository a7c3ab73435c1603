// Package recovery takes up what earlier runs of the daemon left.
package recovery

import (
	"context"

	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/engine/binaries"
	"github.com/berth-cri/berth/pkg/engine/container"
	"github.com/berth-cri/berth/pkg/engine/image"
	"github.com/berth-cri/berth/pkg/engine/network"
	"github.com/berth-cri/berth/pkg/engine/nri"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/podcheckpoint"
	"github.com/berth-cri/berth/pkg/engine/rootfs"
	"github.com/berth-cri/berth/pkg/engine/sandbox"
	"github.com/berth-cri/berth/pkg/engine/selfcheck"
	"github.com/berth-cri/berth/pkg/engine/session"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/engine/task"
)

// Deps are what looks after pods from then on.
type Deps struct {
	Pods       *pod.Registry
	Broken     pod.Broken
	Binaries   *binaries.Binaries
	Tasks      *task.Service
	Rootfs     *rootfs.Mounts
	Images     *image.Store
	Network    *network.Plugins
	Plugins    *nri.Plugins // nil unless there can be any
	Shims      *shim.Manager
	Containers *container.Service
	Sandboxes  *sandbox.Service
	Sessions   *session.Calls
	SelfChecks *selfcheck.Pods
	// PodCheckpoints knows of pods that were being written and restored.
	PodCheckpoints *podcheckpoint.Service
}

// Run finds out what became of all that is on record. It assumes:
//
//   - A record without a phase was never shown to anybody. What there may be of
//     such an object is rolled back and the record removed.
//   - A sandbox that is ready and one of whose namespaces is gone went with a
//     reboot, or lost it to who unmounts what is not theirs; it is NOTREADY until
//     the kubelet removes it.
//   - A container that runs by its record is asked for at its supervisor, which
//     outlives the daemon, or is started again and then reads its journal. One
//     that does not answer is not waited for: its objects keep their state.
//   - A start goes on without the daemon that asked for it. Its container is
//     created until it has ended, and calls that change it wait so long.
//   - A record that cannot be read is shown as NOTREADY or UNKNOWN, so that the
//     kubelet removes it.
//   - A directory, mount, or supervisor without a record belongs to nobody.
//
// No call may be answered before it has returned.
func Run(ctx context.Context, d Deps) error {
	r := &recovery{Deps: d, log: log.G(d.Pods.Background)}
	sandbox.ShareNetns(ctx)
	r.listen(ctx)
	r.showBroken()
	if err := r.takeSandboxes(ctx); err != nil {
		return err
	}
	if err := r.takeContainers(ctx); err != nil {
		return err
	}
	r.dropUnfinished(ctx)
	d.PodCheckpoints.Recover(ctx)
	r.thaw(ctx)
	if err := d.Shims.ServeEvents(d.Pods.Background, d.Pods.Index.NoteOOM); err != nil {
		return err
	}
	r.sweep(ctx)
	if err := d.Plugins.Start(); err != nil {
		return err
	}
	go d.Binaries.Inspect()
	return nil
}
