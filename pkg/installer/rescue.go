package installer

import (
	"context"
	"errors"
	"maps"
	"path/filepath"
	"slices"

	"github.com/containerd/log"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/atomicfile"
	"github.com/berth-cri/berth/pkg/installer/nodefs"
)

// While the kubelet is moved, or the berth that it uses is changed, a timer of the node's waits
// to go back: where neither berth nor the kubelet comes up, no pod could finish what was begun.
const (
	rescueProgram = current + "/bin/berth-installer"
	rescueTimer   = "berth-installer-rescue.timer"
	units         = "/etc/systemd/system"
)

var rescueUnits = map[string]string{
	units + "/berth-installer-rescue.service": `# Written by berth-installer.
[Unit]
Description=Undo an interrupted change that leaves the kubelet without a runtime

[Service]
Type=oneshot
ExecStart=` + rescueProgram + ` rescue
`,
	units + "/" + rescueTimer: `# Written by berth-installer.
[Unit]
Description=Undo an interrupted change that leaves the kubelet without a runtime

[Timer]
OnActiveSec=5min
OnUnitInactiveSec=5min

[Install]
WantedBy=timers.target
`,
}

// rescue is that timer.
type rescue struct {
	root nodefs.Root
	host Host
}

// arm has the timer wait, also over a reboot.
func (r rescue) arm(ctx context.Context) error {
	for path, text := range rescueUnits {
		if err := r.root.Put(path, []byte(text), 0o644); err != nil {
			return err
		}
	}
	if _, err := r.host.Run(ctx, "systemctl", "daemon-reload"); err != nil {
		return err
	}
	_, err := r.host.Run(ctx, "systemctl", "enable", "--now", rescueTimer)
	return err
}

// disarm takes the timer away. The service may be what calls it.
func (r rescue) disarm(ctx context.Context) error {
	if !r.root.ExistsAny(slices.Collect(maps.Keys(rescueUnits))...) {
		return nil
	}
	if r.root.ExistsAny(units + "/" + rescueTimer) {
		if _, err := r.host.Run(ctx, "systemctl", "disable", "--now", rescueTimer); err != nil {
			return err
		}
	}
	for path := range rescueUnits {
		there := r.root.Path(path)
		fresh := filepath.Join(filepath.Dir(there), "."+filepath.Base(there)+".new")
		if err := errors.Join(atomicfile.Remove(there), atomicfile.Remove(fresh)); err != nil {
			return err
		}
	}
	_, err := r.host.Run(ctx, "systemctl", "daemon-reload")
	return err
}

// Rescue undoes what was begun and not finished, and nobody is at work on, if it keeps the node
// from having a runtime: a move of the kubelet, or another version or configuration of a berth
// that does not run. The next installation begins with it again.
func (i *Installer) Rescue(ctx context.Context) error {
	unlock, err := lock(i.root())
	if errors.Is(err, unix.EWOULDBLOCK) {
		log.G(ctx).Info("Another run is at work on this node")
		return nil
	}
	if err != nil {
		return err
	}
	defer unlock()
	j, err := readJournal(i.root())
	if err != nil {
		return err
	}
	var unsaved error
	unfinished := false
	if e := j.entry(startStep); e != nil && e.State == doing {
		s := i.startOf(ctx, j)
		unsaved = s.save(ctx, e.Saved)
		unfinished = s.used()
	}
	if e := j.entry(kubeletStep); e == nil || e.State == done {
		if unsaved != nil || unfinished {
			return unsaved // the timer stays until a run has finished what it began
		}
		return rescue{i.root(), i.Host}.disarm(ctx)
	}
	// This node is without a runtime, which is worse than two nodes that change at once.
	i.turn = true
	return errors.Join(unsaved, i.undo(ctx, j, kubeletStep))
}
