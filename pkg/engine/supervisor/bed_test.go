package supervisor_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	taskAPI "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/supervisor/journal"
	supervisorv1 "github.com/berth-cri/berth/proto/berth/supervisor/v1"
)

// bed is a supervisor under test, with the connections and files that a daemon would hold.
type bed struct {
	testing.TB
	runtime ociRuntime
	dir     string // the supervisor's directory
	base    string
	cgroup  string
	cmd     *exec.Cmd
	exited  chan struct{}
	// arguments are appended to the supervisor's command line.
	arguments []string
	conn      net.Conn
	client    *ttrpc.Client
	task      taskAPI.TTRPCTaskService
	extra     supervisorv1.SupervisorService

	mu         sync.Mutex
	containers map[string]*container
}

var beds atomic.Int64

func newBed(t testing.TB, r ociRuntime) *bed {
	t.Helper()
	base := filepath.Join(scratch, fmt.Sprintf("bed%d", beds.Add(1)))
	b := &bed{
		TB: t, runtime: r, base: base, dir: filepath.Join(base, "supervisor"),
		cgroup:     fmt.Sprintf("/berth-supervisor-test-%d-%d", os.Getpid(), beds.Load()),
		containers: map[string]*container{},
	}
	test.Must(t, os.MkdirAll(b.dir, 0o700))
	t.Cleanup(b.cleanup)
	b.serve()
	return b
}

// serve starts a supervisor, which inherits the pidfds and terminals of running containers.
func (b *bed) serve(env ...string) {
	b.Helper()
	path := test.Value(binary())(b)
	socket := filepath.Join(b.dir, "shim.sock")
	os.Remove(socket)
	l := test.Value(net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"}))(b)
	l.SetUnlinkOnClose(false)
	f := test.Value(l.File())(b)
	files, inherit := b.inheritance()
	cmd := exec.Command(path, append([]string{"serve", "--dir", b.dir, "--log-level", "debug"}, b.arguments...)...)
	cmd.Env = append(append(os.Environ(), env...), journal.InheritEnv+"="+inherit,
		"GORACE=log_path="+filepath.Join(b.base, "race"))
	cmd.ExtraFiles = append([]*os.File{f}, files...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	test.Must(b, cmd.Start())
	f.Close()
	l.Close()
	b.cmd, b.exited = cmd, make(chan struct{})
	go func() { _ = cmd.Wait(); close(b.exited) }()
	b.reconnect()
}

// reconnect connects to the supervisor, as a restarted daemon does.
func (b *bed) reconnect() {
	b.Helper()
	var err error
	if b.conn, err = net.Dial("unix", filepath.Join(b.dir, "shim.sock")); err != nil {
		b.Fatal(err)
	}
	b.client = ttrpc.NewClient(b.conn)
	b.task = taskAPI.NewTTRPCTaskClient(b.client)
	b.extra = supervisorv1.NewSupervisorClient(b.client)
	if _, err := b.extra.Info(b.ctx(), &supervisorv1.InfoRequest{}); err != nil {
		b.Fatalf("the supervisor does not answer: %v\n%s", err, b.log())
	}
}

// inheritance returns the pidfds and terminals of running containers, and the text that describes
// them to a supervisor.
func (b *bed) inheritance() ([]*os.File, string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var files []*os.File
	m := map[string]journal.Inherited{}
	next := func(f *os.File) int {
		if f == nil {
			return 0
		}
		files = append(files, f)
		return 3 + len(files)
	}
	for id, c := range b.containers {
		m[id] = journal.Inherited{Pidfd: next(c.pidfd), TTY: next(c.tty)}
	}
	text := test.Value(json.Marshal(m))(b)
	return files, string(text)
}

// kill9 kills the supervisor, as a crash would, and disconnects.
func (b *bed) kill9() {
	_ = b.cmd.Process.Kill()
	<-b.exited
	if b.client != nil {
		_ = b.client.Close()
		b.conn.Close()
	}
}

func (b *bed) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	b.Cleanup(cancel)
	return ctx
}

func (b *bed) log() string {
	text, _ := os.ReadFile(filepath.Join(b.dir, "log"))
	return string(text)
}

func (b *bed) cleanup() {
	if b.Failed() {
		b.Logf("log of the supervisor:\n%s", b.log())
	}
	for id, c := range b.containers {
		_ = exec.Command(b.runtime.path, "--root", b.root(), "delete", "--force", id).Run()
		c.close()
	}
	if b.cmd != nil {
		b.kill9()
	}
	b.removeCgroups()
	b.reportRaces()
	os.RemoveAll(b.base)
}

// reportRaces fails the test if the race detector of a supervisor wrote a report.
func (b *bed) reportRaces() {
	reports, _ := filepath.Glob(filepath.Join(b.base, "race.*"))
	for _, path := range reports {
		text, err := os.ReadFile(path)
		b.Errorf("the supervisor has a data race: %s, %v", text, err)
	}
}

func (b *bed) removeCgroups() {
	dirs, _ := filepath.Glob("/sys/fs/cgroup/*" + b.cgroup)
	dirs = append(dirs, "/sys/fs/cgroup"+b.cgroup)
	for _, dir := range dirs {
		test.Eventually(b, dir+" is removed", func() bool {
			below, _ := os.ReadDir(dir)
			for _, d := range below {
				if d.IsDir() {
					killCgroup(filepath.Join(dir, d.Name()))
					os.Remove(filepath.Join(dir, d.Name()))
				}
			}
			err := os.Remove(dir)
			return err == nil || errors.Is(err, os.ErrNotExist)
		})
	}
}

func killCgroup(dir string) {
	text, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	for _, f := range strings.Fields(string(text)) {
		if pid, err := strconv.Atoi(f); err == nil && pid > 1 {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
}

func (b *bed) root() string { return filepath.Join(b.base, "root") }

// done fails the test at once if a call failed.
func (b *bed) done(_ any, err error) {
	b.Helper()
	test.Must(b, err)
}
