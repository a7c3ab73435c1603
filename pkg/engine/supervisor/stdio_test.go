package supervisor_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	taskAPI "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
	supervisorv1 "github.com/berth-cri/berth/proto/berth/supervisor/v1"
)

func TestWithoutATerminalThereIsNone(t *testing.T) {
	b := newBed(t, findRuntime(t, "runc"))
	c := b.run("c", shell("sleep 1000"))
	if _, err := c.extra.Terminal(c.ctx(), &supervisorv1.TerminalRequest{Id: c.id}); !errdefs.IsFailedPrecondition(errgrpc.ToNative(err)) {
		t.Errorf("Terminal: %v", err)
	}
	if _, err := c.task.ResizePty(c.ctx(), &taskAPI.ResizePtyRequest{ID: c.id, Width: 80, Height: 25}); !errdefs.IsFailedPrecondition(errgrpc.ToNative(err)) {
		t.Errorf("ResizePty: %v", err)
	}
}

// attachAs attaches to a container. out and errs get all of the output once it has ended.
func (c *container) attachAs(name string, stdin bool, r *supervisorv1.AttachRequest) (out, errs chan string, in *os.File) {
	c.Helper()
	dir := filepath.Join(c.base, name)
	test.Must(c, os.Mkdir(dir, 0o700))
	r.Id = c.id
	r.Stdout, out = readFIFO(c, filepath.Join(dir, "stdout"))
	r.Stderr, errs = readFIFO(c, filepath.Join(dir, "stderr"))
	if stdin {
		r.Stdin = filepath.Join(dir, "stdin")
		test.Must(c, unix.Mkfifo(r.Stdin, 0o600))
	}
	c.done(c.extra.Attach(c.ctx(), r))
	if stdin {
		var err error
		if in, err = os.OpenFile(r.Stdin, os.O_WRONLY, 0); err != nil {
			c.Fatal(err)
		}
	}
	return out, errs, in
}

// All input reaches the container before its stdin ends, and before the session that sent the input
// is detached.
func TestInputEnds(t *testing.T) {
	typed := strings.Repeat("0123456789abcde\n", 1<<14)
	const counted = "262144\n"
	forEachRuntime(t, allRuntimes, func(t *testing.T, r ociRuntime) {
		b := newBed(t, r)
		t.Run("stdin ends with the session", func(t *testing.T) {
			cfg := shell(`echo before; sleep 0.2; exec wc -c`)
			cfg.stdin = true
			c := b.run("once", cfg)
			c.said("before")
			out, _, in := c.attachAs("typing", true, &supervisorv1.AttachRequest{CloseStdin: true})
			c.keepIn.Close()
			c.keepIn = nil
			test.Must(t, test.Err(in.WriteString(typed)))
			in.Close()
			test.Equal(t, "bytes that the container counted", <-out, counted)
		})
		t.Run("stdin stays open", func(t *testing.T) {
			cfg := shell(`echo before; sleep 0.2; head -c 262144 | wc -c; read x; echo "then $x"; sleep 1000`)
			cfg.stdin = true
			c := b.run("again", cfg)
			c.said("before")
			out, errs, in := c.attachAs("first", true, &supervisorv1.AttachRequest{UntilStdinEnds: true})
			test.Must(t, test.Err(in.WriteString(typed)))
			in.Close()
			for _, stream := range []chan string{out, errs} {
				select {
				case <-stream:
				case <-time.After(10 * time.Second):
					t.Fatal("the session is still attached after its stdin ended")
				}
			}
			c.said(strings.TrimSpace(counted))
			c.send("more\n")
			c.said("then more")
		})
	})
}

// A reader that does not read is detached. Neither the container nor its log waits for the reader.
func TestAttachedReaderThatDoesNotReadIsDetached(t *testing.T) {
	b := newBed(t, findRuntime(t, "runc"))
	const lines = 400_000 // 2.7 MB: more than twice what a reader may be behind
	c := b.run("c", shell(fmt.Sprintf("while [ ! -e /tmp/go ]; do sleep 0.01; done; seq 1 %d; exit 1", lines)))
	path := filepath.Join(b.base, "unread")
	test.Must(t, unix.Mkfifo(path, 0o600))
	reader := test.Value(os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0))(t)
	defer reader.Close()
	c.done(c.extra.Attach(c.ctx(), &supervisorv1.AttachRequest{Id: c.id, Stdout: path}))
	test.Must(t, os.WriteFile(fmt.Sprintf("/proc/%d/root/tmp/go", c.pid), nil, 0o600))
	c.exits(1)
	test.Eventually(t, "the output has ended", func() bool {
		_, err := c.extra.Attach(c.ctx(), &supervisorv1.AttachRequest{Id: c.id})
		return errdefs.IsFailedPrecondition(errgrpc.ToNative(err))
	})
	c.mustDelete()
	expectSequence(t, lines, c.lines())
	// The reader gets the data that was sent before, and then the end of the FIFO.
	test.Checkf(t, test.Err(io.Copy(io.Discard, reader)), "the reader's FIFO has not ended")
	test.ErrorIs(t, test.Err(os.Lstat(path)), os.ErrNotExist, "the FIFO that must be removed, because the reader lost output")
}

// expectSequence checks that a log holds the numbers from 1 in their order.
func expectSequence(t testing.TB, last int, lines []logLine) {
	t.Helper()
	if len(lines) != last {
		t.Errorf("%d lines, want %d", len(lines), last)
	}
	for i, l := range lines {
		if l.content != strconv.Itoa(i+1) || l.partial {
			t.Fatalf("line %d is %+v", i+1, l)
		}
	}
}

// For the task of a foreign shim, the supervisor handles only the stdio and the log.
func TestForeignStdio(t *testing.T) {
	b := newBed(t, findRuntime(t, "runc"))
	dir := filepath.Join(b.base, "foreign")
	test.Must(t, os.Mkdir(dir, 0o700))
	r := &supervisorv1.OpenStdioRequest{Id: "f", LogPath: filepath.Join(dir, "0.log"),
		Stdin: filepath.Join(dir, "stdin"), Stdout: filepath.Join(dir, "stdout"), Stderr: filepath.Join(dir, "stderr")}
	for _, path := range []string{r.Stdin, r.Stdout, r.Stderr} {
		test.Must(t, unix.Mkfifo(path, 0o600))
	}
	b.done(b.extra.OpenStdio(b.ctx(), r))
	if _, err := b.extra.OpenStdio(b.ctx(), r); !errdefs.IsAlreadyExists(errgrpc.ToNative(err)) {
		t.Errorf("a second OpenStdio: %v", err)
	}
	in := test.Value(os.OpenFile(r.Stdin, os.O_RDONLY, 0))(t)
	defer in.Close()
	kept := test.Value(keepReader(r.Stdout))(t)
	defer kept.Close()
	// The shim opens and closes its FIFOs several times, as after restarts.
	for n := range 3 {
		for _, path := range []string{r.Stdout, r.Stderr} {
			test.Must(t, os.WriteFile(path, fmt.Appendf(nil, "%s %d\n", filepath.Base(path), n), 0))
		}
	}
	test.Eventually(t, "all six lines are in the log", func() bool { return len(readLog(t, r.LogPath)) == 6 })
	b.kill9()
	test.Must(t, os.WriteFile(r.Stdout, []byte("meanwhile\n"), 0))
	b.serve()
	test.Must(t, os.WriteFile(r.Stdout, []byte("after\nno end"), 0))
	if info, err := b.extra.Info(b.ctx(), &supervisorv1.InfoRequest{}); err != nil || len(info.Tasks) != 1 || info.Tasks[0].State != "stdio" {
		t.Errorf("Info returns %v, %v; want one task in the state stdio", info, err)
	}
	b.done(b.task.CloseIO(b.ctx(), &taskAPI.CloseIORequest{ID: "f", Stdin: true}))
	if n, err := in.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("stdin after CloseIO: %d, %v", n, err)
	}
	for range 2 {
		b.done(b.extra.CloseStdio(b.ctx(), &supervisorv1.CloseStdioRequest{Id: "f"}))
	}
	streams := map[string][]string{}
	for _, l := range readLog(t, r.LogPath) {
		streams[l.stream] = append(streams[l.stream], l.content)
	}
	test.EqualLists(t, "stdout", streams["stdout"], []string{"stdout 0", "stdout 1", "stdout 2", "meanwhile", "after", "no end"})
	test.EqualLists(t, "stderr", streams["stderr"], []string{"stderr 0", "stderr 1", "stderr 2"})
	if left := leftFiles(t, b, "*"); len(left) > 0 {
		t.Errorf("files of the closed task are left: %v", left)
	}
}

// A session with CloseStdin ends with its supervisor. The stdin of the foreign shim's task must end
// too: the successor must not hold stdin open, as it does without such a session.
func TestForeignStdinEndsWithTheSupervisorOfItsSession(t *testing.T) {
	b := newBed(t, findRuntime(t, "runc"))
	fifo := func(name string) string {
		path := filepath.Join(b.base, name)
		test.Must(t, unix.Mkfifo(path, 0o600))
		return path
	}
	r := &supervisorv1.OpenStdioRequest{Id: "f", LogPath: filepath.Join(b.base, "0.log"), Stdin: fifo("stdin"), Stdout: fifo("stdout")}
	b.done(b.extra.OpenStdio(b.ctx(), r))
	in := test.Value(os.OpenFile(r.Stdin, os.O_RDONLY|unix.O_NONBLOCK, 0))(t)
	defer in.Close()
	stdinEnds := func() bool {
		_ = in.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		n, err := in.Read(make([]byte, 1))
		return n == 0 && err == io.EOF
	}
	b.kill9()
	b.serve()
	if stdinEnds() {
		t.Error("stdin has ended without a session")
	}
	session := &supervisorv1.AttachRequest{Id: "f", Stdin: fifo("session"), CloseStdin: true}
	typing := test.Value(os.OpenFile(session.Stdin, os.O_RDWR|unix.O_NONBLOCK, 0))(t)
	defer typing.Close()
	b.done(b.extra.Attach(b.ctx(), session))
	b.kill9()
	b.serve()
	if !stdinEnds() {
		t.Error("the successor holds stdin open")
	}
}

// The successor reads the output of a foreign shim's task even if it cannot open the log. Otherwise
// the container would block.
func TestForeignOutputFlowsWithoutALog(t *testing.T) {
	b := newBed(t, findRuntime(t, "runc"))
	out, logs := filepath.Join(b.base, "stdout"), filepath.Join(b.base, "logs")
	test.Must(t, errors.Join(unix.Mkfifo(out, 0o600), os.Mkdir(logs, 0o700)))
	r := &supervisorv1.OpenStdioRequest{Id: "f", LogPath: filepath.Join(logs, "0.log"), Stdout: out}
	b.done(b.extra.OpenStdio(b.ctx(), r))
	writer := test.Value(os.OpenFile(out, os.O_WRONLY, 0))(t)
	defer writer.Close()
	b.kill9()
	test.Must(t, os.RemoveAll(logs))
	b.serve()
	written := make(chan error, 1)
	go func() {
		_, err := writer.Write(make([]byte, 1<<20)) // more than the pipe has room for
		written <- err
	}()
	select {
	case err := <-written:
		test.Check(t, err)
	case <-time.After(20 * time.Second):
		t.Fatal("the successor does not read the output")
	}
	writer.Close()
	b.done(b.extra.CloseStdio(b.ctx(), &supervisorv1.CloseStdioRequest{Id: "f"}))
	if left, err := os.ReadDir(filepath.Join(b.dir, "tasks")); err != nil || len(left) != 0 {
		t.Errorf("tasks are left after CloseStdio: %v, %v", left, err)
	}
}
