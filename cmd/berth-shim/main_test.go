package main

import (
	"bytes"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/coredump/coredumptest"
	"github.com/berth-cri/berth/pkg/engine/supervisor/journal"
)

// TestMain runs berth-shim in the test binary if the variable BERTH_SHIM_TEST_MAIN is set.
func TestMain(m *testing.M) {
	if os.Getenv("BERTH_SHIM_TEST_MAIN") == "1" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// shim returns a command that runs berth-shim. berth-shim inherits the files and the environment.
func shim(files []*os.File, env []string, args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(append(os.Environ(), "BERTH_SHIM_TEST_MAIN=1"), env...)
	cmd.ExtraFiles = files
	return cmd
}

// socketIn returns a socket that listens on path, as a file.
func socketIn(t *testing.T, path string) *os.File {
	t.Helper()
	l := test.Value(net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"}))(t)
	l.SetUnlinkOnClose(false)
	f := test.Value(l.File())(t)
	l.Close()
	t.Cleanup(func() { f.Close() })
	return f
}

func TestVersion(t *testing.T) {
	for _, arg := range []string{"version", "--version"} {
		test.Equal(t, arg, string(test.Value(shim(nil, nil, arg).Output())(t)), "berth-shim dev\n")
	}
}

func TestWhatCannotServeSaysWhy(t *testing.T) {
	dir := t.TempDir()
	file := test.Value(os.Open(os.DevNull))(t)
	defer file.Close()
	for _, tt := range []struct {
		name  string
		files []*os.File
		env   []string
		args  []string
		want  string
	}{
		{name: "no arguments", want: "usage: berth-shim serve --dir"},
		{name: "another command", args: []string{"start"}, want: "usage: berth-shim serve --dir"},
		{name: "no directory", args: []string{"serve"}, want: "must be an absolute path"},
		{name: "a relative directory", args: []string{"serve", "--dir", "x"}, want: "must be an absolute path"},
		{name: "another argument", args: []string{"serve", "--dir", dir, "more"}, want: "no other arguments"},
		{name: "another flag", args: []string{"serve", "--address", "x"}, want: "flag provided but not defined: -address"},
		{name: "a missing directory", args: []string{"serve", "--dir", filepath.Join(dir, "none")}, want: "no such file or directory"},
		{name: "an unknown level", args: []string{"serve", "--dir", dir, "--log-level", "loud"}, want: `not a valid logrus Level: "loud"`},
		{name: "no socket", args: []string{"serve", "--dir", dir}, want: "descriptor 3 must be a listening unix socket"},
		{name: "a file as socket", files: []*os.File{file}, args: []string{"serve", "--dir", dir}, want: "descriptor 3 must be a listening unix socket"},
		{name: "an invalid inheritance", env: []string{journal.InheritEnv + "=x"}, args: []string{"serve", "--dir", dir}, want: journal.InheritEnv},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var stderr bytes.Buffer
			cmd := shim(tt.files, tt.env, tt.args...)
			cmd.Stderr = &stderr
			err := cmd.Run()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != 1 {
				t.Errorf("the program ended with %v", err)
			}
			if said := stderr.String(); !strings.HasPrefix(said, "berth-shim: ") || !strings.Contains(said, tt.want) {
				t.Errorf("stderr is %q, want %q", said, tt.want)
			}
		})
	}
}

// serving starts berth-shim and waits until it serves.
func serving(t *testing.T, env ...string) (cmd *exec.Cmd, dir, socket string) {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("BERTH_TEST_REQUIRE") == "1" {
			t.Fatal("a supervisor needs root")
		}
		t.Skip("a supervisor needs root")
	}
	dir = t.TempDir()
	socket = filepath.Join(dir, "shim.sock")
	cmd = shim([]*os.File{socketIn(t, socket)}, env, "serve", "--dir", dir)
	test.Must(t, cmd.Start())
	test.Eventually(t, "the supervisor serves", func() bool {
		text, err := os.ReadFile(filepath.Join(dir, "log"))
		return err == nil && bytes.Contains(text, []byte("Supervisor started"))
	})
	return cmd, dir, socket
}

// A supervisor's memory contains input and output of pods. So the kernel must not write a core
// dump.
func TestLeavesNoCore(t *testing.T) {
	coredumptest.Need(t)
	if cmd, _, _ := serving(t, coredumptest.Environment); coredumptest.Crashed(t, cmd) {
		t.Error("the supervisor left a core dump, perhaps in /")
	}
}

// A supervisor survives SIGPIPE and SIGHUP. (The kernel sends SIGHUP when a terminal closes.)
// SIGKILL ends the supervisor, and the socket stays.
func TestServesUntilItIsKilled(t *testing.T) {
	cmd, dir, path := serving(t)
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	test.Equal(t, "session", test.Value(unix.Getsid(cmd.Process.Pid))(t), cmd.Process.Pid)
	second, err := shim([]*os.File{socketIn(t, path+"2")}, nil, "serve", "--dir", dir).CombinedOutput()
	if want := "is already served by process " + strconv.Itoa(cmd.Process.Pid); err == nil || !bytes.Contains(second, []byte(want)) {
		t.Errorf("a second supervisor: %v, %q; want %q", err, second, want)
	}
	for _, sig := range []unix.Signal{unix.SIGHUP, unix.SIGPIPE} {
		test.Must(t, cmd.Process.Signal(sig))
	}
	conn := test.Value(net.Dial("unix", path))(t)
	defer conn.Close()
	select {
	case err := <-ended:
		t.Fatalf("the supervisor ended with %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	test.Equal(t, "working directory", test.Value(os.Readlink("/proc/"+strconv.Itoa(cmd.Process.Pid)+"/cwd"))(t), "/")
	test.Must(t, cmd.Process.Kill())
	test.Fails(t, <-ended, "a killed supervisor exited with status 0")
	test.Checkf(t, test.Err(os.Stat(path)), "find the socket after the kill")
}
