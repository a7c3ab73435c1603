package engine

import (
	"context"

	"github.com/berth-cri/berth/pkg/engine/recovery"
	"github.com/berth-cri/berth/pkg/engine/sandbox"
)

// Recover takes up what earlier runs of the daemon left. It assumes:
//
//   - A record without a phase was never shown to anybody. What there may be of
//     such an object is taken back and the record removed.
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
//   - A pod's directory may be open to all users, as earlier versions made it.
//   - A directory, mount, or supervisor without a record belongs to nobody.
//
// No call may be answered before it has returned.
func (e *Engine) Recover(ctx context.Context) error {
	k, silent := e.core, recovery.NewSilence()
	broken := &recovery.Unreadable{
		Background: k.background, Log: k.log, Clock: k.clock, Broken: k.broken, Pods: k.pods, Ctrs: k.ctrs, Shims: k.shims, Silent: silent,
	}
	sweeper := &recovery.Sweeper{
		Layout: k.Layout, Background: k.background, Log: k.log, Objects: k.objects, Pods: k.pods, Ctrs: k.ctrs, Collector: k.collector,
		Mounts: k.mounts, Residue: k.residue, Images: k.images, Cni: k.cni, Shims: k.shims, Silent: silent,
	}
	halfMade := &recovery.Partial{
		Background: k.background, Objects: k.objects, Names: k.names, Labels: k.labels, Pods: k.pods, Ctrs: k.ctrs,
		Stops: e.sandboxes.Stops, Canaries: e.canaries, Creation: e.containers.Creation, Ends: e.ends, Silent: silent,
	}
	r := &recovery.Recovery{
		Layout: k.Layout, Background: k.background, Boot: k.boot, Log: k.log, Objects: k.objects, Names: k.names, Labels: k.labels,
		Clock: k.clock, Pods: k.pods, Ctrs: k.ctrs, Tasks: k.tasks, Exits: k.exits, Shims: k.shims, Processes: e.processes,
		Starts: e.containers.Starts, Ends: e.ends, Abandoned: e.Execs, Silent: silent,
	}
	if err := complete(broken, sweeper, halfMade, r); err != nil {
		return err
	}
	sandbox.ShareNetns(ctx)
	r.Listen(ctx)
	broken.ShowBroken()
	sweeper.ClosePodDirs()
	if err := r.Sandboxes(ctx); err != nil {
		return err
	}
	if err := r.Containers(ctx); err != nil {
		return err
	}
	halfMade.DropHalfMade(ctx)
	r.Thaw(ctx)
	if err := k.shims.ServeEvents(k.background, k.objects.NoteOOM); err != nil {
		return err
	}
	sweeper.Sweep(ctx)
	if err := k.plugins.Start(); err != nil {
		return err
	}
	go k.inspection.Run()
	return nil
}
