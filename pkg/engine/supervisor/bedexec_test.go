package supervisor_test

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	taskAPI "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/berth-cri/berth/internal/test"
)

// execResult is the exit status and the output of an exec.
type execResult struct {
	status         uint32
	stdout, stderr string
}

type execution struct {
	*container
	id             string
	stdin          string
	stdout, stderr chan string
}

var execs atomic.Int64

// addExec adds an exec and reads its output. The caller starts the exec.
func (c *container) addExec(terminal, stdin bool, args ...string) *execution {
	c.Helper()
	e := &execution{container: c, id: fmt.Sprintf("exec%d", execs.Add(1))}
	dir := filepath.Join(c.bundle, "io", e.id)
	test.Must(c, os.Mkdir(dir, 0o700))
	process := c.spec(c.id, containerConfig{args: args, terminal: terminal}).Process
	spec := test.Value(json.Marshal(process))(c)
	request := &taskAPI.ExecProcessRequest{ID: c.id, ExecID: e.id, Terminal: terminal, Spec: &anypb.Any{Value: spec}}
	request.Stdout, e.stdout = readFIFO(c, filepath.Join(dir, "stdout"))
	if !terminal {
		request.Stderr, e.stderr = readFIFO(c, filepath.Join(dir, "stderr"))
	}
	if stdin {
		request.Stdin = filepath.Join(dir, "stdin")
		test.Must(c, unix.Mkfifo(request.Stdin, 0o600))
		e.stdin = request.Stdin
	}
	test.Mustf(c, test.Err(c.task.Exec(c.ctx(), request)), "exec")
	return e
}

// readFIFO makes a FIFO. The channel gets all that is written to the FIFO once it has ended.
func readFIFO(t testing.TB, path string) (string, chan string) {
	t.Helper()
	test.Must(t, unix.Mkfifo(path, 0o600))
	fd := test.Value(unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0))(t)
	f := os.NewFile(uintptr(fd), path)
	all := make(chan string, 1)
	go func() {
		defer f.Close()
		// Wait for the first writer, because a read of a FIFO without a writer returns its end.
		conn, _ := f.SyscallConn()
		first := true
		_ = conn.Read(func(uintptr) bool {
			defer func() { first = false }()
			return !first
		})
		text, _ := io.ReadAll(f)
		all <- string(text)
	}()
	return path, all
}

func (e *execution) start() error {
	_, err := e.task.Start(e.ctx(), &taskAPI.StartRequest{ID: e.container.id, ExecID: e.id})
	return errgrpc.ToNative(err)
}

func (e *execution) wait() uint32 {
	e.Helper()
	r, err := e.task.Wait(e.ctx(), &taskAPI.WaitRequest{ID: e.container.id, ExecID: e.id})
	test.Mustf(e, err, "wait for %s", e.id)
	return r.ExitStatus
}

func (e *execution) kill(sig unix.Signal) error {
	_, err := e.task.Kill(e.ctx(), &taskAPI.KillRequest{ID: e.container.id, ExecID: e.id, Signal: uint32(sig)})
	return errgrpc.ToNative(err)
}

func (e *execution) delete() (*taskAPI.DeleteResponse, error) {
	r, err := e.task.Delete(e.ctx(), &taskAPI.DeleteRequest{ID: e.container.id, ExecID: e.id})
	return r, errgrpc.ToNative(err)
}

// untilThere waits for a file in the container.
func (c *container) untilThere(path string) {
	c.Helper()
	test.Eventually(c, path+" exists", func() bool { return c.exec("test", "-e", path).status == 0 })
}

// exec runs a command in the container, and waits until it has exited.
func (c *container) exec(args ...string) execResult {
	c.Helper()
	e := c.addExec(false, false, args...)
	test.Mustf(c, e.start(), "exec %v", args)
	r := execResult{status: e.wait(), stdout: <-e.stdout, stderr: <-e.stderr}
	test.Mustf(c, test.Err(e.delete()), "delete exec")
	return r
}
