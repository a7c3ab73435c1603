// Package recovery takes up what earlier runs of the daemon left.
package recovery

import (
	"context"

	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/engine/sandbox"
)

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
	r.takeSandboxes(ctx)
	r.takeContainers(ctx)
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
