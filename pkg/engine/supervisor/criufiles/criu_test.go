package criufiles

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	runcapi "github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/supervisor/journal"
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
			t.Errorf("%s: got %q, want %q", name, c.got, c.want)
		}
	}
}

func TestOnceConfig(t *testing.T) {
	theirs := filepath.Join(t.TempDir(), "their.conf")
	t.Setenv(ConfigEnv, theirs)
	if got, err := onceConfig([]byte("ours")); err == nil {
		t.Errorf("with a missing file the result is %q, want an error", got)
	}
	test.Must(t, os.WriteFile(theirs, []byte("theirs"), 0o600))
	test.Equal(t, "configuration with another file", string(test.Value(onceConfig([]byte("ours")))(t)), "theirs\nours")
	t.Setenv(ConfigEnv, "")
	test.Equal(t, "configuration without another file", string(test.Value(onceConfig([]byte("ours")))(t)), "ours")
}

// A disk that is full leaves no partial configuration in the bundle.
func TestDumpConfigOnFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounts need root")
	}
	theirs, bundle := filepath.Join(t.TempDir(), "their.conf"), t.TempDir()
	test.Must(t, os.WriteFile(theirs, make([]byte, 1<<20), 0o600))
	t.Setenv(ConfigEnv, theirs)
	test.Must(t, unix.Mount("tmpfs", bundle, "tmpfs", 0, "size=64k"))
	t.Cleanup(func() { test.Check(t, unix.Unmount(bundle, unix.MNT_DETACH)) })
	_, _, err := WriteDumpConfig(&journal.Task{Bundle: bundle, Terminal: true}, false)
	test.Is(t, err, errdefs.IsResourceExhausted, "write to a full disk")
	test.EqualLists(t, "files in the bundle", test.Value(os.ReadDir(bundle))(t), nil)
}

func TestRestoreArgs(t *testing.T) {
	const always = "restore --image-path /i --work-path /w --ext-unix-sk --file-locks"
	for name, c := range map[string]struct {
		terminal, configured bool
		want                 string
	}{
		"runc":          {false, true, always},
		"runc terminal": {true, true, always + " --shell-job"},
		"crun":          {false, false, always + " --tcp-close"},
		"crun terminal": {true, false, always + " --shell-job --tcp-close"},
	} {
		test.Equal(t, name, strings.Join(restoreArgs("/i", "/w", c.terminal, c.configured), " "), c.want)
	}
}

func TestPipesOfCheckpoints(t *testing.T) {
	dir := t.TempDir()
	if got, err := readPipes(dir); err != nil || got != nil {
		t.Errorf("without a file: %v, %v", got, err)
	}
	test.Must(t, WritePipes(dir, map[int]string{0: "file[1:2]", 1: "file[1:a3]"}))
	if got, err := readPipes(dir); err != nil || got[1] != "file[1:a3]" || len(got) != 2 {
		t.Errorf("the pipes that were read are %v, %v", got, err)
	}
	file := filepath.Join(dir, stdioFile)
	for name, text := range map[string]string{
		"not JSON":                 "{",
		"fd that is not stdio":     `{"3":"file[1:2]"}`,
		"name that is not file[…]": `{"1":"pipe:[1]"}`,
		"second line":              `{"1":"file[1:2]\nexec-cmd"}`,
		"newline in the brackets":  `{"1":"file[1:2\n]"}`,
		"empty numbers":            `{"1":"file[:]"}`,
		"too long number":          `{"1":"file[1:` + strings.Repeat("a", 17) + `]"}`,
		"too large file":           strings.Repeat(" ", maxStdioFile+1),
		"without brackets":         `{"1":"file"}`,
	} {
		test.Must(t, os.WriteFile(file, []byte(text), 0o600))
		if got, err := readPipes(dir); err == nil {
			t.Errorf("%s: read %v, want an error", name, got)
		}
	}
	test.Must(t, os.Remove(file))
	test.Must(t, os.Symlink("/etc/hostname", file))
	if got, err := readPipes(dir); err == nil {
		t.Errorf("a symbolic link: read %v, want an error", got)
	}
}

func TestHasSysVIPC(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "team[1]") // must not be treated as a pattern
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
		t.Errorf("with empty images: %v, %v; want false", has, err)
	}
	write("ipcns-msg-11.img", emptyImage+1)
	if has, err := HasSysVIPC(dir); !has || err != nil {
		t.Errorf("with a message queue: %v, %v; want true", has, err)
	}
	if has, err := HasSysVIPC(filepath.Join(dir, "none")); has || err != nil {
		t.Errorf("without images: %v, %v; want false", has, err)
	}
}

func TestCheckpointArgs(t *testing.T) {
	for _, c := range []struct {
		options *runcapi.CheckpointOptions
		want    []string
	}{
		{&runcapi.CheckpointOptions{}, []string{"checkpoint", "--leave-running", "--image-path", "/images", "id"}},
		{
			&runcapi.CheckpointOptions{WorkPath: "/work", OpenTcp: true, ExternalUnixSockets: true, Terminal: true, FileLocks: true},
			[]string{"checkpoint", "--leave-running", "--image-path", "/images", "--work-path", "/work", "--tcp-established", "--ext-unix-sk", "--shell-job", "--file-locks", "id"},
		},
	} {
		test.EqualLists(t, fmt.Sprintf("arguments for %v", c.options), CheckpointArgs("id", "/images", c.options), c.want)
	}
}

func TestExplainCheckpoint(t *testing.T) {
	failed, dir := errors.New("criu failed: type NOTIFY errno 0"), t.TempDir()
	if err := ExplainCheckpoint(failed, dir); !errors.Is(err, failed) || err.Error() != failed.Error() {
		t.Errorf("without a log: %v", err)
	}
	message := "(00.1) Error (criu/vdso.c:381): vdso: Unexpected rt vDSO area bounds\n"
	test.Must(t, os.WriteFile(filepath.Join(dir, "dump.log"), []byte(message), 0o600))
	if err := ExplainCheckpoint(failed, dir); !errors.Is(err, failed) || !strings.HasSuffix(err.Error(), "CRIU says: vdso: Unexpected rt vDSO area bounds") {
		t.Errorf("with a log: %v", err)
	}
	test.Checkf(t, ExplainCheckpoint(nil, dir), "explain a nil error")
}

func TestCRIUErrors(t *testing.T) {
	const rlimit = "(00.065265) Error (criu/util.c:1534): rlimit: Can't setup RLIMIT_NOFILE for self: Operation not permitted\n"
	for name, c := range map[string]struct{ log, want string }{
		"empty log":             {"", ""},
		"log without errors":    {"(00.1) Dumping finished successfully\n", ""},
		"only the final error":  {"(00.233798) Error (criu/cr-dump.c:2128): Dumping FAILED.\n", ""},
		"only the rlimit error": {rlimit, "rlimit: Can't setup RLIMIT_NOFILE for self: Operation not permitted"},
		"first error after the rlimit error": {
			rlimit + "(00.175703) Error (criu/files-reg.c:1790): Can't lookup mount=27 for fd=0 path=/x\n(00.175707) ----\n" +
				"(00.175715) Error (criu/cr-dump.c:1698): Dump files (pid: 7) failed with -1\n(00.2) Error (criu/cr-dump.c:2128): Dumping FAILED.\n",
			"Can't lookup mount=27 for fd=0 path=/x",
		},
		"error after that of cgroupd": {
			"(00.1) Error (criu/cgroup.c:1247): cg: cgroupd: recv req error: No such file or directory\n" +
				"(00.2)      1: Error (criu/files-reg.c:2104): Can't open file volume/data on restore: No such file or directory\n(00.3) Error (criu/cr-restore.c:2605): Restoring FAILED.\n",
			"Can't open file volume/data on restore: No such file or directory",
		},
	} {
		test.Equal(t, name, errorsOf([]byte(c.log)), c.want)
	}
}
