package testbed

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/berth-cri/berth/integration/patience"
)

// sweep removes from the host what a killed or failed daemon has left. It uses only what the kernel
// lists, because the daemon may not answer.
func (d *Daemon) sweep(t T) {
	t.Helper()
	err := errors.Join(d.killProcesses(), d.unmount(), d.removeCgroups(), os.RemoveAll(d.Dir), os.RemoveAll(d.Root))
	Checkf(t, err, "clean up after the daemon")
}

// killProcesses kills the processes in the pods' cgroups, and all with a path of this daemon in
// their command line: supervisors, shims, runtimes.
func (d *Daemon) killProcesses() error {
	var processes []hostProcess
	err := wait.PollUntilContextTimeout(context.Background(), 10*time.Millisecond, patience.Of(30*time.Second), true, func(context.Context) (bool, error) {
		processes = d.processes()
		for _, p := range processes {
			if err := unix.Kill(p.pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				return false, fmt.Errorf("kill %v: %w", p, err)
			}
		}
		return len(processes) == 0, nil
	})
	if wait.Interrupted(err) {
		return fmt.Errorf("processes that are still alive after SIGKILL: %v", processes)
	}
	return err
}

// hostProcess is a process that belongs to a daemon.
type hostProcess struct {
	pid     int
	command string
}

func (p hostProcess) String() string { return fmt.Sprintf("%d (%s)", p.pid, p.command) }

// processes returns the living processes of this daemon, except for the daemon itself and this
// process.
func (d *Daemon) processes() []hostProcess {
	inside := map[int]bool{}
	for _, dir := range d.cgroups() {
		procs, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil {
			continue // a removed or a threaded cgroup
		}
		for _, field := range strings.Fields(string(procs)) {
			if pid, err := strconv.Atoi(field); err == nil {
				inside[pid] = true
			}
		}
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var found []hostProcess
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == os.Getpid() || pid == d.PID() {
			continue
		}
		cmdline, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "cmdline"))
		if err != nil || !inside[pid] && !d.owns(string(cmdline)) {
			continue
		}
		if zombie(pid) {
			continue // dead; its parent, or init, will reap it
		}
		command := strings.TrimSpace(strings.ReplaceAll(string(cmdline), "\x00", " "))
		found = append(found, hostProcess{pid: pid, command: command})
	}
	return found
}

func (d *Daemon) owns(cmdline string) bool {
	return strings.Contains(cmdline, d.Dir+"/") || strings.Contains(cmdline, d.Root+"/")
}

func zombie(pid int) bool {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return true
	}
	// The state follows the name, which is in parentheses and may itself have some.
	_, rest, _ := strings.Cut(string(stat[strings.LastIndexByte(string(stat), ')'):]), " ")
	return strings.HasPrefix(rest, "Z") || strings.HasPrefix(rest, "X")
}

// mounts returns the mount points below this daemon's directories, and the network
// namespaces that berth keeps elsewhere for its pods.
func (d *Daemon) mounts() ([]string, error) {
	namespaces := map[string]bool{}
	for _, dir := range []string{filepath.Join(d.Root, "records", "sandboxes"), filepath.Join(d.State, "sandboxes")} {
		sandboxes, _ := os.ReadDir(dir) // without the directory there are no sandboxes
		for _, sandbox := range sandboxes {
			if id := sandbox.Name(); len(id) >= 32 {
				namespaces["/run/netns/berth-"+id[:32]] = true
			}
		}
	}
	infos, err := mountinfo.GetMounts(func(info *mountinfo.Info) (skip, stop bool) {
		ours := strings.HasPrefix(info.Mountpoint, d.Dir+"/") || strings.HasPrefix(info.Mountpoint, d.Root+"/")
		return !ours && !namespaces[info.Mountpoint], false
	})
	if err != nil {
		return nil, err
	}
	var points []string
	for _, info := range infos {
		points = append(points, info.Mountpoint)
	}
	return points, nil
}

func (d *Daemon) unmount() error {
	points, err := d.mounts()
	if err != nil {
		return err
	}
	var failures []error
	for _, point := range slices.Backward(points) {
		if err := unix.Unmount(point, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) {
			failures = append(failures, fmt.Errorf("unmount %s: %w", point, err))
		}
		if strings.HasPrefix(point, "/run/netns/") {
			failures = append(failures, os.RemoveAll(point))
		}
	}
	return errors.Join(failures...)
}

// cgroups returns the directories of the pods' cgroups in every hierarchy,
// parents first.
func (d *Daemon) cgroups() []string { return cgroups(d.Cgroup) }

// RemoveCgroup removes the cgroup of a removed pod, as a kubelet does. A cgroup that another pod
// uses stays.
func RemoveCgroup(path string) {
	for _, dir := range slices.Backward(cgroups(path)) {
		_ = unix.Rmdir(dir)
	}
}

func cgroups(path string) []string {
	const top = "/sys/fs/cgroup"
	hierarchies, err := filepath.Glob(top + "/*" + path)
	if err != nil {
		return nil
	}
	var dirs []string
	for _, hierarchy := range append(hierarchies, top+path) {
		// A cgroup may be removed during the walk.
		_ = filepath.WalkDir(hierarchy, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
	}
	return dirs
}

func (d *Daemon) removeCgroups() error {
	var failures []error
	for _, dir := range slices.Backward(d.cgroups()) {
		if err := removeCgroup(dir); err != nil {
			failures = append(failures, err)
		}
	}
	return errors.Join(failures...)
}

// removeCgroup waits until the kernel has removed dead processes from the cgroup.
func removeCgroup(dir string) error {
	err := wait.PollUntilContextTimeout(context.Background(), 5*time.Millisecond, patience.Of(20*time.Second), true, func(context.Context) (bool, error) {
		switch err := unix.Rmdir(dir); {
		case errors.Is(err, unix.EBUSY):
			return false, nil
		case errors.Is(err, unix.ENOENT):
			return true, nil
		default:
			return err == nil, err
		}
	})
	if err != nil {
		return fmt.Errorf("remove cgroup %s: %w", dir, err)
	}
	return nil
}
