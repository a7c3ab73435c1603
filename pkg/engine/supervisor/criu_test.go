package supervisor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
)

func TestCRIUConfig(t *testing.T) {
	pipes := map[int]string{2: "file[1a:3]", 1: "file[1a:2]"}
	for name, c := range map[string]struct {
		got  []byte
		want string
	}{
		"dump":                     {dumpConfig([]byte("# ours"), pipes, true), "# ours\nexternal file[1a:2]\nexternal file[1a:3]\n"},
		"dump without connections": {dumpConfig(nil, nil, false), "\ntcp-close\n"},
		"restore": {
			restoreConfig(nil, map[string]string{"uts": "/u", "ipc": "/i"}),
			"\ntcp-close\next-unix-sk\nfile-locks\njoin-ns ipc:/i\njoin-ns uts:/u\n",
		},
		"pipes": {pipesConfig(pipes), "inherit-fd fd[1]:file[1a:2]\ninherit-fd fd[2]:file[1a:3]\n"},
	} {
		if string(c.got) != c.want {
			t.Errorf("%s: %q", name, c.got)
		}
	}
}

func TestOnceConfig(t *testing.T) {
	theirs := filepath.Join(t.TempDir(), "their.conf")
	t.Setenv(criuConfigEnv, theirs)
	if got, err := onceConfig([]byte("ours")); err == nil {
		t.Errorf("a missing file: %q", got)
	}
	test.Must(t, os.WriteFile(theirs, []byte("theirs"), 0o600))
	test.Equal(t, "the result", string(test.Value(onceConfig([]byte("ours")))(t)), "theirs\nours")
	t.Setenv(criuConfigEnv, "")
	test.Equal(t, "without one", string(test.Value(onceConfig([]byte("ours")))(t)), "ours")
}

func TestRestoreArgs(t *testing.T) {
	const always = "restore --image-path /i --work-path /w --ext-unix-sk --file-locks"
	for name, c := range map[string]struct {
		terminal, told bool
		want           string
	}{
		"runc":          {false, true, always},
		"runc terminal": {true, true, always + " --shell-job"},
		"crun":          {false, false, always + " --tcp-close"},
		"crun terminal": {true, false, always + " --shell-job --tcp-close"},
	} {
		test.Equal(t, name, strings.Join(restoreArgs("/i", "/w", c.terminal, c.told), " "), c.want)
	}
}

func TestPipesOfCheckpoints(t *testing.T) {
	dir := t.TempDir()
	if got, err := readPipes(dir); err != nil || got != nil {
		t.Errorf("none: %v, %v", got, err)
	}
	test.Must(t, writePipes(dir, map[int]string{0: "file[1:2]", 1: "file[1:a3]"}))
	if got, err := readPipes(dir); err != nil || got[1] != "file[1:a3]" || len(got) != 2 {
		t.Errorf("read is %v, %v", got, err)
	}
	file := filepath.Join(dir, stdioFile)
	for name, text := range map[string]string{
		"no JSON":          "{",
		"another fd":       `{"3":"file[1:2]"}`,
		"another name":     `{"1":"pipe:[1]"}`,
		"a second line":    `{"1":"file[1:2]\nexec-cmd"}`,
		"a line inside":    `{"1":"file[1:2\n]"}`,
		"nothing in it":    `{"1":"file[:]"}`,
		"too much of it":   `{"1":"file[1:` + strings.Repeat("a", 17) + `]"}`,
		"much too much":    strings.Repeat(" ", maxStdioFile+1),
		"without brackets": `{"1":"file"}`,
	} {
		test.Must(t, os.WriteFile(file, []byte(text), 0o600))
		if got, err := readPipes(dir); err == nil {
			t.Errorf("%s: %v", name, got)
		}
	}
	test.Must(t, os.Remove(file))
	test.Must(t, os.Symlink("/etc/hostname", file))
	if got, err := readPipes(dir); err == nil {
		t.Errorf("a link: %v", got)
	}
}

func TestHasSysVIPC(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "team[1]") // which is no pattern
	test.Must(t, os.Mkdir(dir, 0o700))
	write := func(name string, size int) {
		t.Helper()
		test.Must(t, os.WriteFile(filepath.Join(dir, name), make([]byte, size), 0o600))
	}
	for _, kind := range []string{"shm", "msg", "sem"} {
		write("ipcns-"+kind+"-11.img", emptyImage)
	}
	write("ipcns-var-11.img", 100)
	if has, err := HasSysVIPC(dir); has || err != nil {
		t.Errorf("empty: %v, %v", has, err)
	}
	write("ipcns-msg-11.img", emptyImage+1)
	if has, err := HasSysVIPC(dir); !has || err != nil {
		t.Errorf("with a queue: %v, %v", has, err)
	}
	if has, err := HasSysVIPC(filepath.Join(dir, "none")); has || err != nil {
		t.Errorf("without images: %v, %v", has, err)
	}
}

// TestUnmountAfterCrun: a crun that was killed in a restore has the container's root
// filesystem mounted in the bundle, which is removed with all that is in it.
func TestUnmountAfterCrun(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounts need root")
	}
	bundle, rootfs := t.TempDir(), t.TempDir()
	kept := filepath.Join(rootfs, "kept")
	test.Must(t, os.WriteFile(kept, nil, 0o600))
	r := criuRestore{&task{id: "one", dir: t.TempDir(), journal: Task{Bundle: bundle, Options: Options{Root: t.TempDir()}}}}
	test.Mustf(t, r.unmount(), "without any")
	at := filepath.Join(bundle, crunRoot)
	test.Must(t, os.Mkdir(at, 0o755))
	test.Must(t, unix.Mount(rootfs, at, "", unix.MS_BIND, ""))
	t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
	test.Must(t, r.unmount())
	test.Checkf(t, os.Remove(bundle), "something is left")
	test.Check(t, test.Err(os.Stat(kept)))
}

// TestHierarchiesOfTheNode looks for those of the node while CRIU, and a container, have them
// mounted elsewhere, too.
func TestHierarchiesOfTheNode(t *testing.T) {
	v1 := func(at, controllers string) *mountinfo.Info {
		return &mountinfo.Info{FSType: "cgroup", Mountpoint: at, Root: "/", VFSOptions: "rw," + controllers}
	}
	got := hierarchiesOf([]*mountinfo.Info{
		v1("/run/x/.criu.cgyard.Ab12/memory", "memory"),
		v1("/sys/fs/cgroup/memory", "memory"), v1("/sys/fs/cgroup/cpu", "cpu,cpuacct"),
		{FSType: "cgroup2", Mountpoint: "/sys/fs/cgroup/unified", Root: "/"},
		v1("/var/other/memory", "memory"), v1("/var/other/pids", "pids"),
		{FSType: "cgroup2", Mountpoint: "/tmp/x", Root: "/"},
	})
	want := []hierarchy{
		{"memory", "/sys/fs/cgroup/memory", "/"}, {"", "/sys/fs/cgroup/unified", "/"}, {"pids", "/var/other/pids", "/"},
	}
	test.EqualLists(t, "found", got, want)
}
