package config

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/config/hostfiles"
)

// A binary is refused if a user other than root owns it or a directory of its path, or if
// every user can replace it.
func TestReplaceable(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give files away")
	}
	const nobody = 65534
	for name, c := range map[string]struct {
		change func(dir string) error // prepares dir; dir/open/bin/runtime is checked
		want   string
	}{
		"only root":                     {func(string) error { return nil }, ""},
		"sticky directory":              {func(dir string) error { return os.Chmod(dir+"/open", 0o777|fs.ModeSticky) }, ""},
		"directory of a group":          {func(dir string) error { return os.Chmod(dir+"/open", 0o775) }, ""},
		"parent directory":              {func(dir string) error { return os.Chmod(dir+"/open", 0o777) }, "every user can replace files in $DIR/open (owner 0, mode 0777), which would be run as root; run chmod o-w $DIR/open"},
		"directory of the file":         {func(dir string) error { return os.Chmod(dir+"/open/bin", 0o757) }, "every user can replace files in $DIR/open/bin (owner 0, mode 0757), which would be run as root; run chmod o-w $DIR/open/bin"},
		"owner of the file":             {func(dir string) error { return os.Chown(dir+"/open/bin/runtime", nobody, 0) }, "$DIR/open/bin/runtime belongs to user 65534 (mode 0755), who could change what is run as root; run chown root $DIR/open/bin/runtime"},
		"owner of the parent directory": {func(dir string) error { return os.Chown(dir+"/open", nobody, 0) }, "$DIR/open belongs to user 65534 (mode 0755), who could change what is run as root; run chown root $DIR/open"},
		"link into a directory": {func(dir string) error {
			if err := os.MkdirAll(dir+"/else/where", 0o755); err != nil {
				return err
			}
			if err := os.Rename(dir+"/open/bin/runtime", dir+"/else/where/runtime"); err != nil {
				return err
			}
			if err := os.Symlink(dir+"/else/where/runtime", dir+"/open/bin/runtime"); err != nil {
				return err
			}
			return os.Chmod(dir+"/else", 0o777)
		}, "every user can replace files in $DIR/else (owner 0, mode 0777), which would be run as root; run chmod o-w $DIR/else"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.binary("open/bin/runtime", 0o755)
			test.Must(t, c.change(n.dir))
			if got := n.relative(hostfiles.ExecutableMistake(n.path("open/bin/runtime"))); got != c.want {
				t.Errorf("got %q\nwant %q", got, c.want)
			}
		})
	}
}

// A runtime on an unresponsive file system affects only its own handler.
func TestDeadMount(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can mount")
	}
	n := newNode(t, "runc")
	n.binary("nfs/runsc", 0o755)
	n.write("config.toml", "default_runtime = \"runc\"\n[runtimes.runc]\nruntime_path = \"$BIN/runc\"\n[runtimes.far]\nruntime_path = \""+n.path("nfs/runsc")+"\"\n")
	deadMount(t, n.path("nfs"))
	cfg, err := n.start()
	if err != nil || names(cfg) != "far runc" {
		t.Fatalf("got %v, handlers %q", err, names(cfg))
	}
	if lacks := hostfiles.Lacking(cfg.Runtimes[0]); lacks == nil || !strings.Contains(n.relative(lacks.Error()), "config.toml:4: runtime_path: stat $DIR/nfs/runsc timed out") {
		t.Errorf("Lacking is %v", lacks)
	}
	if found := Discover([]string{n.path("nfs"), n.path("bin")}); len(found) != 1 || found[0].Path != n.path("bin/runc") {
		t.Errorf("discovered %v", found)
	}
}

// deadMount mounts a file system on dir that never responds.
func deadMount(t *testing.T, dir string) {
	t.Helper()
	fuse := test.Value(os.OpenFile("/dev/fuse", os.O_RDWR, 0))(t)
	test.Must(t, unix.Mount("dead", filepath.Clean(dir), "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fuse.Fd())))
	t.Cleanup(func() {
		fuse.Close()
		test.Check(t, unix.Unmount(dir, unix.MNT_DETACH))
	})
}

// With "auto", the driver of this machine decides whether a shim's SystemdCgroup conflicts.
func TestDriverMistake(t *testing.T) {
	for _, c := range []struct {
		asked   bool
		driver  CgroupDriver
		running bool
		want    string
	}{
		{true, CgroupDriverAuto, true, ""},
		{false, CgroupDriverAuto, false, ""},
		{true, CgroupDriverAuto, false, `conflicts with engine.cgroup_driver, which is "auto" and stands for "cgroupfs" on this machine; remove SystemdCgroup`},
		{false, CgroupDriverAuto, true, `conflicts with engine.cgroup_driver, which is "auto" and stands for "systemd" on this machine; remove SystemdCgroup`},
		{true, CgroupDriverSystemd, false, ""},
		{false, CgroupDriverCgroupfs, true, ""},
		{true, CgroupDriverCgroupfs, true, `conflicts with engine.cgroup_driver, which is "cgroupfs"; remove SystemdCgroup`},
		{false, CgroupDriverSystemd, false, `conflicts with engine.cgroup_driver, which is "systemd"; remove SystemdCgroup`},
	} {
		test.Equal(t, fmt.Sprintf("%+v", c), driverMistake(c.asked, c.driver, c.running), c.want)
	}
}
