package layerproc

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/image/bounds"
	"github.com/berth-cri/berth/pkg/engine/procfs"
)

// With this variable set the test binary is the daemon that the tests kill.
const asDaemon = "BERTH_TEST_LAYERPROC_DAEMON"

func TestMain(m *testing.M) {
	if os.Getenv(asDaemon) != "" {
		daemon()
		return
	}
	os.Exit(m.Run())
}

// daemon starts a child, prints its pid, and has it unpack a layer that never ends.
func daemon() {
	p, err := Start(usualMemory)
	if err != nil {
		panic(err)
	}
	_, _ = fmt.Fprintln(os.Stdout, p.cmd.Process.Pid)
	blob, _, err := os.Pipe()
	if err != nil {
		panic(err)
	}
	panic(test.Err(p.Unpack(context.Background(), Layer{Root: os.TempDir(), Count: all}, blob)))
}

func gone(pid int) bool {
	_, err := os.Stat(procfs.Path(pid, "stat"))
	return err != nil
}

// daemonOf runs the command as a daemon, and returns the daemon and the pid of its child.
func daemonOf(t *testing.T, command ...string) (d *exec.Cmd, pid int) {
	t.Helper()
	d = exec.Command(command[0], command[1:]...)
	d.Env = append(os.Environ(), asDaemon+"=1")
	out := test.Value(d.StdoutPipe())(t)
	test.Must(t, d.Start())
	line := test.Value(bufio.NewReader(out).ReadString('\n'))(t)
	pid = test.Value(strconv.Atoi(strings.TrimSpace(line)))(t)
	return d, pid
}

// TestLowHardLimit starts a daemon whose own limit of data is lower than the limit of its children.
func TestLowHardLimit(t *testing.T) {
	skipUnderRace(t)
	own, err := os.Executable() // prlimit would resolve /proc/self/exe to itself
	test.Must(t, err)
	d, pid := daemonOf(t, "prlimit", "--data="+strconv.Itoa(usualMemory/2), own)
	test.Eventually(t, "the child is confined", func() bool {
		comm := test.Value(os.ReadFile(procfs.Path(pid, "comm")))(t)
		return strings.TrimSpace(string(comm)) == name
	})
	test.Must(t, d.Process.Kill())
	_ = d.Wait() // its error reports the kill
}

func TestChildOfAKilledDaemon(t *testing.T) {
	d, pid := daemonOf(t, "/proc/self/exe")
	test.Must(t, d.Process.Kill())
	_ = d.Wait() // its error reports the kill
	test.Eventually(t, "the child exits with its daemon", func() bool { return gone(pid) })
}

// TestCanceled cancels the unpacking of a layer that never ends.
func TestCanceled(t *testing.T) {
	blob, to, err := os.Pipe()
	test.Must(t, err)
	defer blob.Close()
	defer to.Close()
	p := start(t, usualMemory)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	test.ErrorIs(t, test.Err(p.Unpack(ctx, Layer{Root: t.TempDir(), Count: all}, blob)), context.DeadlineExceeded, "cancelled unpacking")
	if p.Usable() || !gone(p.cmd.Process.Pid) {
		t.Error("the child of the cancelled unpacking still runs")
	}
}

// TestRights checks a child's capabilities, network namespace and limits in /proc.
func TestRights(t *testing.T) {
	p := start(t, usualMemory)
	test.Must(t, test.Err(p.Unpack(t.Context(), Layer{Root: t.TempDir(), Count: all}, blobOf(t, archiveOf(t, "f", nil)))))
	pid := p.cmd.Process.Pid
	status := test.Value(os.ReadFile(procfs.Path(pid, "status")))(t)
	for _, want := range []string{fmt.Sprintf("CapPrm:\t%016x\n", needed), fmt.Sprintf("CapBnd:\t%016x\n", needed), "NoNewPrivs:\t1\n"} {
		if !strings.Contains(string(status), want) {
			t.Errorf("the status lacks %q:\n%s", want, status)
		}
	}
	for file, want := range map[string]string{"oom_score_adj": "1000\n", "net/dev": " lo:"} {
		text, err := os.ReadFile(procfs.Path(pid, file))
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s: %s, %v", file, text, err)
		}
	}
	ours, _ := os.Readlink("/proc/self/ns/net")
	if its, err := os.Readlink(procfs.Path(pid, "ns/net")); err != nil || its == ours {
		t.Errorf("the child has the network namespace %s, %v; want another than this process", its, err)
	}
	limits := test.Value(os.ReadFile(procfs.Path(pid, "limits")))(t)
	if !strings.Contains(string(limits), fmt.Sprintf("Max data size             %d", usualMemory)) {
		t.Errorf("the child's limits lack a data size of %d:\n%s", usualMemory, limits)
	}
	// The start of a child does not restrict this process.
	status = test.Value(os.ReadFile("/proc/self/status"))(t)
	if strings.Contains(string(status), "NoNewPrivs:\t1") {
		t.Error("this process has lost rights")
	}
}

// longHeaders returns a layer of directories, each with an attribute of a megabyte. containerd
// keeps the headers of directories in memory.
func longHeaders(t *testing.T, dirs int, name string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := range dirs {
		test.Must(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: fmt.Sprint("d", i), Mode: 0o700, PAXRecords: map[string]string{name: strings.Repeat("a", 1_000_000)}}))
	}
	test.Must(t, w.Close())
	return b.Bytes()
}

// skipUnderRace skips a test of a child's memory limit, because the race detector needs more
// memory.
func skipUnderRace(t *testing.T) {
	t.Helper()
	if info, ok := debug.ReadBuildInfo(); ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		t.Skip("the race detector needs more memory than the child has")
	}
}

// A layer that needs too much memory fails with the name of the limit. Its child is unusable then,
// except after a zstd window that is refused beforehand.
func TestMemory(t *testing.T) {
	skipUnderRace(t)
	wide := []byte{0x28, 0xb5, 0x2f, 0xfd, 0, (26 - 10) << 3, 1, 0, 0} // zstd with a window of 64 MiB
	for name, c := range map[string]struct {
		layer []byte
		says  string
	}{
		"a wide window":   {wide, "a quarter of registry.max_unpack_memory"},
		"long attributes": {longHeaders(t, 200, "BERTH.long"), "registry.max_unpack_memory (134217728 bytes)"},
		"text of a panic": {longHeaders(t, 200, "SCHILY.xattr.trusted.panic: "), "registry.max_unpack_memory (134217728 bytes)"},
	} {
		p := start(t, 128<<20)
		_, err := p.Unpack(t.Context(), Layer{Root: t.TempDir(), Count: all}, blobOf(t, c.layer))
		if !bounds.IsBeyond(err) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
		test.Equal(t, fmt.Sprintf("%s: is the child usable", name), p.Usable(), name == "a wide window")
	}
}

// The messages that a layer makes containerd log cannot fill the daemon's memory.
func TestLogOfContainerd(t *testing.T) {
	p := start(t, usualMemory)
	layer := longHeaders(t, 5, "SCHILY.xattr.trusted."+strings.Repeat("a", 10_000))
	if _, err := p.Unpack(t.Context(), Layer{Root: t.TempDir(), Count: all}, blobOf(t, layer)); err != nil && len(err.Error()) > 2*maxError {
		t.Errorf("the error has %d bytes, want at most %d", len(err.Error()), 2*maxError)
	}
	p.Close()
	if len(p.stderr) > 0 {
		t.Errorf("the child wrote to standard error: %.200s", p.stderr)
	}
}

// TestOutput checks that firstBytes accepts all bytes that a child writes and keeps only the first.
func TestOutput(t *testing.T) {
	var b firstBytes
	for range 3 {
		n := test.Value(io.Copy(&b, strings.NewReader(strings.Repeat("a", 100<<10))))(t)
		if n != 100<<10 || len(b) != maxStderr {
			t.Errorf("%d bytes were accepted and %d kept, want %d and %d", n, len(b), 100<<10, maxStderr)
		}
	}
}

// TestCrash replaces the child by scripts that exit as the kernel or Go's runtime make it exit.
func TestCrash(t *testing.T) {
	for name, c := range map[string]struct {
		script string
		is     func(error) bool
		says   string
	}{
		"killed":                       {"kill -9 $$", errdefs.IsUnavailable, "no memory left"},
		"no memory":                    {"printf 'runtime: out of memory: cannot allocate 1-byte block\\nfatal error: out of memory\\n\\ngoroutine 1\\n' >&2; exit 2", bounds.IsBeyond, "max_unpack_memory"},
		"no thread":                    {"echo 'runtime: failed to create new OS thread (have 5 already; errno=11)' >&2; exit 2", errdefs.IsUnavailable, "TasksMax"},
		"a panic that quotes the text": {"printf 'panic: name\\nfatal error: out of memory\\n' >&2; exit 2", errdefs.IsInternal, "panic: name"},
		"an ordinary exit":             {"echo 'fatal error: out of memory' >&2; exit 1", errdefs.IsInternal, "exit status 1"},
		"an endless answer":            {"printf '{\"Error\":\"' >&3; exec tr '\\0' a </dev/zero >&3", errdefs.IsInternal, "signal: killed"},
	} {
		p := test.Value(startProgram(usualMemory, "/bin/sh", "sh", "-c", c.script))(t)
		t.Cleanup(p.Close)
		_, err := p.Unpack(t.Context(), Layer{Root: t.TempDir(), Count: all}, blobOf(t, nil))
		if !c.is(err) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: the error is %v; want the class of the case, and the text %q", name, err, c.says)
		}
	}
}

func TestStartError(t *testing.T) {
	for errno, says := range map[error]string{unix.ENOSPC: "user.max_net_namespaces", unix.EAGAIN: "TasksMax"} {
		if err := startError(&os.PathError{Err: errno}); !errdefs.IsUnavailable(err) || errors.Is(err, errno) || !strings.Contains(err.Error(), says) {
			t.Errorf("%v becomes %v, want an unavailable error with %q", errno, err, says)
		}
	}
}

// A child unpacks further layers until one has used much memory.
func TestChildIsUsedAgain(t *testing.T) {
	skipUnderRace(t)
	p := start(t, usualMemory)
	for range 3 {
		test.Must(t, test.Err(p.Unpack(t.Context(), Layer{Root: t.TempDir(), Count: all}, blobOf(t, archiveOf(t, "f", nil)))))
		if !p.Usable() {
			t.Error("the child is not usable after a small layer")
		}
	}
	test.Must(t, test.Err(p.Unpack(t.Context(), Layer{Root: t.TempDir(), Count: all}, blobOf(t, longHeaders(t, 100, "BERTH.long")))))
	if p.Usable() {
		t.Error("the child is still usable after a layer that used much memory")
	}
}
