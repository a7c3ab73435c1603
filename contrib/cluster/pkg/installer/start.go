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

// stateDirs are created by the berth daemon and useless without it.
var stateDirs = []string{"/var/lib/berth", "/run/berth"}

// labelFiles are berth's files for Node Feature Discovery; the second one does not expire.
var labelFiles = []string{
	"/etc/kubernetes/node-feature-discovery/features.d/berth",
	"/etc/kubernetes/node-feature-discovery/features.d/berth-present",
}

// start runs the desired version of berth and returns the release that is healthy then. If the
// version fails, start rolls back to the last healthy release.
func (r *run) start(ctx context.Context) (release, error) {
	text, err := os.ReadFile(filepath.Join(r.Payload, "berth.service"))
	if err != nil {
		return release{}, err
	}
	unit := signed(strings.ReplaceAll(string(text), "/usr/bin/", Programs+"/"))
	wanted := release{Version: r.w.Version, Unit: unit, Files: configTexts(r.beside, r.w.Config), Beside: r.beside}
	for _, rt := range r.w.Runtimes {
		// A runtime that is already served stays; serveRuntime installs its next version.
		if text := r.st.Healthy.Files[rt.file()]; r.st.Healthy.Version != "" && strings.Contains(text, rt.home()+"/") {
			wanted.Files[rt.file()] = text
		}
	}
	log.G(ctx).WithField("version", wanted.Version).Info("Starting berth")
	err = r.activate(ctx, wanted)
	if err == nil || r.st.Healthy.Version == "" {
		return wanted, err
	}
	// A run that is interrupted must leave a daemon, too: it may be the kubelet's only one.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Minute)
	defer cancel()
	last := r.st.Healthy
	if back := r.activate(ctx, last); back != nil {
		return last, errors.Join(err, fmt.Errorf("roll back to version %s: %w", last.Version, textOnly(back)))
	}
	log.G(ctx).WithField("version", last.Version).Warn("Rolled back to the last healthy version")
	return last, errors.Join(err, r.st.save())
}

// activate makes the daemon run a release. It records before the change whether a restart is
// needed.
func (r *run) activate(ctx context.Context, to release) error {
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
	if err := r.applyFiles(ctx); err != nil {
		return err
	}
	r.at("installer.start.run")
	if err := r.checkHealth(ctx, false); err != nil {
		return err
	}
	r.st.Restart = false
	return nil
}

// applyFiles applies the files by a reload, or by a restart if that is needed. Pods keep running:
// they are not the daemon's children.
func (r *run) applyFiles(ctx context.Context) error {
	if !r.st.Restart {
		waits, err := r.reload(ctx)
		if err != nil || len(waits) == 0 {
			return err
		}
		log.G(ctx).WithField("settings", waits).Info("Restarting berth for settings that a reload does not apply")
	}
	if err := r.restart(ctx, "berth"); err != nil {
		return fmt.Errorf("berth does not start: %w; see \"journalctl -u berth\"", err)
	}
	return nil
}

// stop stops and disables the daemon, even without its unit file, and removes its labels and state.
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
		os.Remove(filepath.Dir(link)) // systemd removes an empty directory, too
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

// removeState removes a directory of the daemon. It keeps a directory with mounts, which pods may
// use. Only the empty network namespace that gVisor keeps after its last pod is unmounted.
func (i *Installer) removeState(ctx context.Context, dir string) error {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return err
	}
	for _, m := range mounts {
		if filepath.Base(m.Mountpoint) != "null-netns" {
			log.G(ctx).WithField("path", m.Mountpoint).Warn("Keeping a directory that contains a mount")
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
