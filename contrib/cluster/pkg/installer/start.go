package installer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/log"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/atomicfile"
)

// stateDirs are what a daemon makes, and what has no use without one.
var stateDirs = []string{"/var/lib/berth", "/run/berth"}

// labelFiles are what it writes of its handlers for Node Feature Discovery, of which one does not
// expire.
var labelFiles = []string{
	"/etc/kubernetes/node-feature-discovery/features.d/berth",
	"/etc/kubernetes/node-feature-discovery/features.d/berth-present",
}

// start has berth run as it is wanted, and returns what is healthy then. If it is not, the version
// and the files that it was last healthy with are linked and started again.
func (r *run) start(ctx context.Context) (release, error) {
	text, err := os.ReadFile(filepath.Join(r.Payload, "berth.service"))
	if err != nil {
		return release{}, err
	}
	unit := signed(strings.ReplaceAll(string(text), "/usr/bin/", Programs+"/"))
	wanted := release{Version: r.w.Version, Unit: unit, Files: configTexts(r.beside, r.w.Config), Beside: r.beside}
	for _, rt := range r.w.Runtimes {
		// A runtime that is served stays so; its next version is a step of its own.
		if text := r.st.Healthy.Files[rt.file()]; r.st.Healthy.Version != "" && strings.Contains(text, rt.home()+"/") {
			wanted.Files[rt.file()] = text
		}
	}
	log.G(ctx).WithField("version", wanted.Version).Info("Starting berth")
	err = r.become(ctx, wanted)
	if err == nil || r.st.Healthy.Version == "" {
		return wanted, err
	}
	// An interrupted run leaves the node with a daemon, too: for a kubelet there may be no other.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Minute)
	defer cancel()
	last := r.st.Healthy
	if back := r.become(ctx, last); back != nil {
		return last, errors.Join(err, fmt.Errorf("roll back to version %s: %w", last.Version, told(back)))
	}
	log.G(ctx).WithField("version", last.Version).Warn("Rolled back to the last healthy version")
	return last, errors.Join(err, r.st.save())
}

// become has the daemon be of a version, with a unit and files. What only a restart brings is
// noted before it is changed.
func (r *run) become(ctx context.Context, to release) error {
	if err := r.writeFiles(r.st, to.Files); err != nil {
		return err
	}
	binary := filepath.Join(home, to.Version, "bin/berth")
	_, err := r.Host.Run(ctx, binary, "check")
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%s cannot be run: %w; is that filesystem mounted with noexec?", binary, err)
	}
	if err != nil && exitStatus(err) != degraded {
		return fmt.Errorf("berth refuses the configuration: %w", err)
	}
	link, _ := os.Readlink(r.root().Path(current))
	unit, _ := os.ReadFile(r.root().Path(unitFile))
	r.st.Restart = r.st.Restart || link != to.Version || string(unit) != to.Unit || !r.active(ctx)
	if err := r.st.save(); err != nil {
		return err
	}
	if err := r.writeFile(unitFile, to.Unit, true, true); err != nil {
		return err
	}
	r.at("installer.unit.done")
	if err := r.root().Link(current, to.Version); err != nil {
		return err
	}
	r.at("installer.start.linked")
	if _, err := r.Host.Run(ctx, "systemctl", "enable", "berth.service"); err != nil {
		return err
	}
	if err := r.rerun(ctx); err != nil {
		return err
	}
	r.at("installer.start.run")
	if err := r.green(ctx, false); err != nil {
		return err
	}
	r.st.Restart = false
	return nil
}

// rerun has the daemon use its files: by a reload, or by a restart where that is needed. Pods go
// on meanwhile: they are not its children.
func (r *run) rerun(ctx context.Context) error {
	if !r.st.Restart {
		waits, err := r.reload(ctx)
		if err != nil || len(waits) == 0 {
			return err
		}
		log.G(ctx).WithField("settings", waits).Info("Restarting berth for settings that count from its start")
	}
	if err := r.restart(ctx, "berth"); err != nil {
		return fmt.Errorf("berth does not start: %w; see \"journalctl -u berth\"", err)
	}
	return nil
}

// stop stops the daemon for good, also where its unit was removed, and removes what it has made.
func (i *Installer) stop(ctx context.Context, st *state) error {
	if i.active(ctx) {
		if _, err := i.Host.Run(ctx, "systemctl", "stop", "berth.service"); err != nil {
			return err
		}
	}
	if i.root().ExistsAny(unitFile) {
		if _, err := i.Host.Run(ctx, "systemctl", "disable", "berth.service"); err != nil {
			return err
		}
	} else {
		link := i.root().Path(wants)
		if err := atomicfile.Remove(link); err != nil && !errors.Is(err, syscall.ENOTDIR) {
			return err
		}
		os.Remove(filepath.Dir(link)) // as systemd does with an empty one
	}
	i.at("installer.start.stopped")
	for _, file := range labelFiles {
		if err := atomicfile.Remove(i.root().Path(file)); err != nil {
			return err
		}
	}
	for _, dir := range stateDirs {
		if slices.Contains(st.Made, dir) {
			if err := i.removeState(ctx, i.root().Path(dir)); err != nil {
				return err
			}
		}
	}
	return nil
}

// removeState removes a directory of the daemon. A directory with mounts of pods is left, because
// they may be in use. The empty network namespace that gVisor keeps after its last pod is
// unmounted.
func (i *Installer) removeState(ctx context.Context, dir string) error {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return err
	}
	for _, m := range mounts {
		if filepath.Base(m.Mountpoint) != "null-netns" {
			log.G(ctx).WithField("path", m.Mountpoint).Warn("Directory is left: something is mounted in it")
			return nil
		}
	}
	for _, m := range mounts {
		if err := unix.Unmount(m.Mountpoint, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount %s: %w", m.Mountpoint, err)
		}
	}
	i.at("installer.start.removing")
	return os.RemoveAll(dir)
}
