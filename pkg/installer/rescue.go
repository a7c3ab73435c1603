package installer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/log"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/atomicfile"
)

// While the kubelet is moved, a timer of the node's waits to move it back: where neither
// berth nor the kubelet comes up, no pod could finish what was begun.
const (
	rescueProgram = current + "/bin/berth-installer"
	rescueTimer   = "berth-installer-rescue.timer"
	units         = "/etc/systemd/system"
)

var rescueUnits = map[string]string{
	units + "/berth-installer-rescue.service": `# Written by berth-installer.
[Unit]
Description=Undo an interrupted move of the kubelet to berth

[Service]
Type=oneshot
ExecStart=` + rescueProgram + ` rescue
`,
	units + "/" + rescueTimer: `# Written by berth-installer.
[Unit]
Description=Undo an interrupted move of the kubelet to berth

[Timer]
OnActiveSec=5min
OnUnitInactiveSec=5min

[Install]
WantedBy=timers.target
`,
}

// arm has the timer wait, also over a reboot.
func (i *Installer) arm(ctx context.Context) error {
	for path, text := range rescueUnits {
		if err := i.put(path, []byte(text), 0o644); err != nil {
			return err
		}
	}
	if _, err := i.Host.Run(ctx, "systemctl", "daemon-reload"); err != nil {
		return err
	}
	_, err := i.Host.Run(ctx, "systemctl", "enable", "--now", rescueTimer)
	return err
}

// disarm takes the timer away. The service may be what calls it.
func (i *Installer) disarm(ctx context.Context) error {
	if i.existsAny([]string{units + "/" + rescueTimer}) {
		if _, err := i.Host.Run(ctx, "systemctl", "disable", "--now", rescueTimer); err != nil {
			return err
		}
	}
	for path := range rescueUnits {
		there := i.path(path)
		fresh := filepath.Join(filepath.Dir(there), "."+filepath.Base(there)+".new")
		if err := errors.Join(atomicfile.Remove(there), atomicfile.Remove(fresh)); err != nil {
			return err
		}
	}
	_, err := i.Host.Run(ctx, "systemctl", "daemon-reload")
	return err
}

// Rescue undoes a move of the kubelet that was begun and not finished, and nobody is at work
// on. The next installation begins with it again.
func (i *Installer) Rescue(ctx context.Context) error {
	unlock, err := i.lock()
	if errors.Is(err, unix.EWOULDBLOCK) {
		log.G(ctx).Info("Another run is at work on this node")
		return nil
	}
	if err != nil {
		return err
	}
	defer unlock()
	j, err := i.readJournal()
	if err != nil {
		return err
	}
	if e := j.entry(kubeletStep); e == nil || e.State == done {
		return i.disarm(ctx)
	}
	// This node is without a runtime, which is worse than two nodes that change at once.
	i.turn = true
	return i.undo(ctx, j, kubeletStep)
}

// lock keeps other runs from the node. It is on a directory that every node has, so that
// no file is left.
func (i *Installer) lock() (unlock func(), err error) {
	d, err := os.Open(resolved(i.Root, "/var/lib"))
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(d.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", d.Name(), err), d.Close())
	}
	return func() { d.Close() }, nil
}

// waitForLock waits until no other run is at work on the node.
func (i *Installer) waitForLock(ctx context.Context) (unlock func(), err error) {
	for told := false; ; told = true {
		unlock, err = i.lock()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return unlock, err
		}
		if !told {
			log.G(ctx).Info("Waiting for another run on this node")
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}
