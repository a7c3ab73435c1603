package packaging

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berth-cri/berth/integration/testbed"
	"github.com/berth-cri/berth/pkg/engine/podcheckpoint/manifest"
)

// soon is much longer than systemd needs for any step here on an idle machine.
const soon = 2 * time.Minute

// system is a Debian that has booted: systemd is process 1 in new namespaces, without the host's
// units. It has its own cgroups below a new cgroup of the host, and changes nothing else of the
// host.
type system struct {
	t    *testing.T
	root string
	init *exec.Cmd
}

// $1 is a directory for the root, $2 the name of the cgroup. The first part moves into the cgroup;
// the rest runs in a cgroup namespace, whose root is this cgroup.
const boot = `
for top in /sys/fs/cgroup /sys/fs/cgroup/systemd /sys/fs/cgroup/unified; do
	[ -e "$top/cgroup.procs" ] || continue
	mkdir "$top/$2"
	echo 0 >"$top/$2/cgroup.procs"
done
exec unshare --cgroup sh -euc '
mount --make-rprivate /
mount -t tmpfs layer "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
cd "$1/root"
mount -t proc proc proc
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount -t sysfs -o ro sysfs sys
if [ -e /sys/fs/cgroup/cgroup.procs ]; then
	mount -t cgroup2 cgroup2 sys/fs/cgroup
else
	mount -t tmpfs -o mode=755 cgroup sys/fs/cgroup
	mkdir sys/fs/cgroup/systemd sys/fs/cgroup/unified
	mount -t cgroup -o none,name=systemd cgroup sys/fs/cgroup/systemd
	mount -t cgroup2 cgroup2 sys/fs/cgroup/unified
fi
mount -t tmpfs -o mode=755 dev dev
for d in null zero full random urandom tty; do
	touch "dev/$d"
	mount --bind "/dev/$d" "dev/$d"
done
for d in run tmp var/lib; do mount -t tmpfs -o mode=755 tmpfs "$d"; done
mkdir var/lib/dpkg
cp -a /var/lib/dpkg/. var/lib/dpkg
rm -rf usr/lib/systemd/system/*.wants usr/lib/systemd/system-generators etc/systemd/system/* etc/systemd/system-generators
printf "[Unit]\nDefaultDependencies=no\n" >etc/systemd/system/quiet.target
exec env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot . /lib/systemd/systemd --system --unit=quiet.target --log-target=console --show-status=no
' sh "$1"
`

func bootSystem(t *testing.T) *system {
	t.Helper()
	testbed.NeedRoot(t)
	for _, tool := range []string{"dpkg", "systemctl", "/lib/systemd/systemd"} {
		if _, err := exec.LookPath(tool); err != nil {
			testbed.Missing(t, "%s is missing: this test boots a Debian; run `make deps`", tool)
		}
	}
	unified, _ := filepath.Glob("/sys/fs/cgroup/cgroup.procs")
	named, _ := filepath.Glob("/sys/fs/cgroup/systemd/cgroup.procs")
	if len(unified)+len(named) == 0 {
		testbed.Missing(t, "systemd needs a cgroup hierarchy: mount cgroup2 at /sys/fs/cgroup, or systemd's own at /sys/fs/cgroup/systemd")
	}
	dir := t.TempDir()
	name := fmt.Sprintf("boot-%d", os.Getpid())
	s := &system{t: t, root: filepath.Join(dir, "root")}
	t.Cleanup(func() { removeCgroups(t, name) })
	log, err := os.Create(filepath.Join(t.TempDir(), "console"))
	testbed.Must(t, err)
	s.init = exec.Command("sh", "-euc", boot, "sh", dir, name)
	s.init.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC | syscall.CLONE_NEWNET,
		Setsid:     true, Pdeathsig: syscall.SIGKILL,
	}
	s.init.Stdout, s.init.Stderr = log, log
	testbed.Must(t, s.init.Start())
	t.Cleanup(func() {
		s.init.Process.Kill() //nolint:errcheck // ends all processes of its PID namespace
		s.init.Wait()         //nolint:errcheck // killed
		if text, err := os.ReadFile(log.Name()); t.Failed() {
			t.Logf("the console of the machine: %s (%v)", text, err)
		}
		log.Close()
	})
	testbed.Eventually(t, soon, func() error {
		if out, err := s.command("systemctl", "is-system-running").CombinedOutput(); err != nil {
			return fmt.Errorf("systemd is not running yet: %w: %s", err, out)
		}
		return nil
	})
	return s
}

func removeCgroups(t *testing.T, name string) {
	t.Helper()
	for _, top := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified"} {
		var dirs []string
		_ = filepath.WalkDir(filepath.Join(top, name), func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
		for _, dir := range slices.Backward(dirs) {
			// The last processes may still be exiting.
			testbed.Eventually(t, soon, func() error { return os.Remove(dir) })
		}
	}
}

// command is a command that runs on the machine.
func (s *system) command(name string, args ...string) *exec.Cmd {
	return s.within(s.t.Context(), name, args...)
}

// within is a command with another context than the test's.
func (s *system) within(ctx context.Context, name string, args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(ctx, soon)
	s.t.Cleanup(cancel)
	inside := append([]string{
		"--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", fmt.Sprintf("--target=%d", s.init.Process.Pid), "chroot", s.root, name,
	}, args...)
	c := exec.CommandContext(ctx, "nsenter", inside...)
	c.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8", "HOME=/root", "DEBIAN_FRONTEND=noninteractive", "SYSTEMD_PAGER="}
	c.Dir = "/"
	return c
}

func (s *system) run(name string, args ...string) string {
	s.t.Helper()
	out, err := s.command(name, args...).CombinedOutput()
	if err != nil {
		s.t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// is fails unless a command prints want. Its exit status is ignored.
func (s *system) is(want, name string, args ...string) {
	s.t.Helper()
	out, _ := s.command(name, args...).CombinedOutput()
	if got := strings.TrimSpace(string(out)); got != want {
		s.t.Errorf("%s %s: %q, want %q", name, strings.Join(args, " "), got, want)
	}
}

// unit returns a property of berth.service.
func (s *system) unit(property string) string {
	s.t.Helper()
	return s.run("systemctl", "show", "--value", "--property="+property, "berth.service")
}

func (s *system) file(path, text string) {
	s.t.Helper()
	c := s.command("sh", "-ec", `mkdir -p "$(dirname "$1")" && cat >"$1.new" && mv "$1.new" "$1"`, "sh", path)
	c.Stdin = strings.NewReader(text)
	if out, err := c.CombinedOutput(); err != nil {
		s.t.Fatalf("write %s: %v: %s", path, err, out)
	}
}

// otherPID waits until the service runs as another process, and returns its PID.
func (s *system) otherPID(old string) string {
	s.t.Helper()
	var now string
	testbed.Eventually(s.t, soon, func() error {
		now = s.unit("MainPID")
		if state := s.unit("ActiveState"); state != "active" || now == old || now == "0" {
			return fmt.Errorf("berth is %s as process %s, want active as another one than %s", state, now, old)
		}
		return nil
	})
	return now
}

// prunes enables the timer that removes old checkpoints, and runs its service.
func (s *system) prunes(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	old := filepath.Join(dir, "pod-checkpoints", "old")
	testbed.Must(t, errors.Join(os.MkdirAll(filepath.Join(old, manifest.ImagesDir), 0o700), os.Chmod(filepath.Dir(old), 0o700)))
	testbed.Must(t, os.WriteFile(filepath.Join(old, manifest.ImagesDir, "pages.img"), []byte("memory"), 0o600))
	m := &manifest.Manifest{
		Created: time.Now().Add(-200 * time.Hour), Pod: []byte(`{"metadata":{"namespace":"n","name":"p"}}`),
		Containers: []manifest.Container{{Name: "main", Config: []byte("{}")}},
	}
	testbed.Must(t, manifest.Seal(t.Context(), old, m))
	s.put(t, filepath.Dir(old), "/var/lib/berth")
	s.is("disabled", "systemctl", "is-enabled", "berth-checkpoint-prune.timer")
	s.run("systemctl", "enable", "--now", "berth-checkpoint-prune.timer")
	s.is("active", "systemctl", "is-active", "berth-checkpoint-prune.timer")
	s.run("systemctl", "start", "berth-checkpoint-prune.service")
	s.is("", "ls", "-A", "/var/lib/berth/pod-checkpoints")
}

// underSystemd installs, runs, upgrades and removes the package on a machine that runs systemd.
func underSystemd(t *testing.T, older, newer string) {
	s := bootSystem(t)
	for name, from := range map[string]string{"older": older, "newer": newer} {
		text, err := os.ReadFile(from)
		testbed.Must(t, err)
		s.file("/tmp/"+name+".deb", string(text))
	}
	s.run("dpkg", "-i", "/tmp/older.deb")
	// The installation alone does not start a second CRI daemon.
	s.is("disabled", "systemctl", "is-enabled", "berth")
	s.is("inactive", "systemctl", "is-active", "berth")

	// systemctl start returns once berth serves, so the next command can call it.
	s.file("/etc/berth/conf.d/one.toml", "[runtimes.one]\nruntime_path = \"/usr/bin/crun\"\n")
	s.run("cp", testbed.Part(t, testbed.Crun), "/usr/bin/crun.own")
	s.run("mv", "/usr/bin/crun.own", "/usr/bin/crun")
	s.run("systemctl", "enable", "--now", "berth")
	if got := s.run("berth", "status"); !strings.HasPrefix(got, "berth 1.0.0-rc.1 ") {
		t.Errorf("berth status prints %s", got)
	}
	s.is("enabled", "systemctl", "is-enabled", "berth")
	for property, want := range map[string]string{
		"ActiveState": "active", "KillMode": "process", "Delegate": "yes", "TasksMax": "infinity", "OOMScoreAdjust": "-999", "WatchdogUSec": "1min",
	} {
		testbed.Same(t, s.unit(property), want, "%s is", property)
	}
	pid := s.unit("MainPID")

	s.file("/etc/berth/conf.d/two.toml", "[runtimes.two]\nruntime_path = \"/usr/bin/crun\"\n")
	s.run("systemctl", "reload", "berth")
	testbed.Eventually(t, soon, func() error {
		if text := s.unit("StatusText"); !strings.Contains(text, "two") {
			return fmt.Errorf("the unit's status text is %q", text)
		}
		return nil
	})
	if now := s.unit("MainPID"); now != pid {
		t.Errorf("a reload replaced process %[2]s by process %[1]s", now, pid)
	}
	s.prunes(t)

	s.run("kill", "-KILL", pid)
	s.otherPID(pid)
	s.file("/run/systemd/system/berth.service.d/watchdog.conf", "[Service]\nWatchdogSec=2\n")
	s.run("systemctl", "daemon-reload")
	s.run("systemctl", "restart", "berth")
	pid = s.unit("MainPID")
	s.run("kill", "-STOP", pid)
	pid = s.otherPID(pid)
	s.run("rm", "-r", "/run/systemd/system/berth.service.d")

	// An upgrade restarts berth only if berth runs.
	s.run("dpkg", "-i", "/tmp/newer.deb")
	s.otherPID(pid)
	if got := s.run("berth", "status"); !strings.HasPrefix(got, "berth 1.0.0 ") {
		t.Errorf("after the upgrade berth status prints %s", got)
	}
	s.is("enabled", "systemctl", "is-enabled", "berth")
	s.run("systemctl", "stop", "berth")
	s.is("success", "systemctl", "show", "--value", "--property=Result", "berth")
	s.run("dpkg", "-i", "/tmp/older.deb")
	s.is("inactive", "systemctl", "is-active", "berth")

	s.run("systemctl", "start", "berth")
	s.run("dpkg", "-r", "berth")
	s.is("inactive", "systemctl", "is-active", "berth")
	s.run("test", "!", "-e", "/etc/systemd/system/multi-user.target.wants/berth.service")
	s.run("test", "!", "-e", "/etc/systemd/system/timers.target.wants/berth-checkpoint-prune.timer")
	s.run("test", "-e", "/etc/berth/config.toml")
}
