package testbed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/patience"
)

// Daemon is a real CRI daemon with its own directories: a berth, or another daemon to compare it
// with.
type Daemon struct {
	// Client is a CRI client of the daemon, which also works after a restart.
	Client *Client
	// Dir has all files of the daemon except Root.
	Dir string
	// Root and State are the daemon's directories.
	Root, State string
	// Socket is the path of the CRI socket.
	Socket string
	// ConfigFile is the main configuration.
	ConfigFile string
	// LogFile has the daemon's stdout and stderr since its first start.
	LogFile string
	// Cgroup is the parent of the pods' cgroups.
	Cgroup string

	cni         *CNI // or nil
	binary      string
	arguments   []string
	environment []string
	process     *process
}

type process struct {
	command *exec.Cmd
	ended   chan struct{} // closed when err holds the answer of Wait
	err     error
}

// startTimeout limits the wait for the first answer. A daemon that recovers hundreds of pods takes
// a second or two.
var startTimeout = patience.Of(time.Minute)

// newDaemon creates the directories of a daemon. A cleanup removes its pods, stops it, and removes
// what it left.
func newDaemon(t T, cni *CNI) *Daemon {
	t.Helper()
	NeedRoot(t)
	// A short name, because the length of a socket's path is limited.
	dir, err := os.MkdirTemp("/run", "bt-")
	Mustf(t, err, "make the daemon's directory")
	// Users in pods must reach their files below it, as in /run.
	Mustf(t, os.Chmod(dir, 0o711), "open the daemon's directory")
	d := &Daemon{
		Dir:        dir,
		Root:       filepath.Join(t.TempDir(), "root"),
		State:      filepath.Join(dir, "state"),
		Socket:     filepath.Join(dir, "cri.sock"),
		ConfigFile: filepath.Join(dir, "config.toml"),
		LogFile:    filepath.Join(dir, "daemon.log"),
		Cgroup:     "/" + filepath.Base(dir),
		cni:        cni,
	}
	t.Cleanup(func() { d.sweep(t) })
	parent := d.Cgroup
	if cgroupDriver() == systemdDriver {
		parent = ""
	}
	d.Client = Dial(t, d.Socket, filepath.Join(dir, "logs"), parent)
	t.Cleanup(func() { d.end(t) })
	return d
}

// Start starts the daemon, which must not be running, and waits until it answers.
func (d *Daemon) Start(t T) {
	t.Helper()
	Mustf(t, d.TryStart(t.Context()), "start %s", filepath.Base(d.binary))
}

// TryStart is Start for a daemon that may fail to start.
func (d *Daemon) TryStart(ctx context.Context) error {
	if d.Running() {
		return errors.New("it is already running")
	}
	log, err := os.OpenFile(d.LogFile, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	command := exec.Command(d.binary, d.arguments...)
	command.Env = append(os.Environ(), d.environment...)
	command.Stdout, command.Stderr = log, log
	// Its own process group, so that Ctrl-C at a terminal does not reach the daemon.
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := command.Start(); err != nil {
		return err
	}
	p := &process{command: command, ended: make(chan struct{})}
	go func() {
		p.err = command.Wait()
		close(p.ended)
	}()
	d.process = p
	return d.waitReady(ctx)
}

// waitReady requests the version until the daemon answers or exits. Each attempt has a new
// connection, because an old one would wait before it tries again.
func (d *Daemon) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		err := answers(ctx, d.Socket)
		if err == nil {
			return nil
		}
		select {
		case <-d.process.ended:
			return fmt.Errorf("it exited: %w\n%s", errors.Join(errors.New("no answer"), d.process.err), d.logTail())
		case <-ctx.Done():
			return fmt.Errorf("no answer: %w\n%s", err, d.logTail())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func answers(ctx context.Context, socket string) error {
	connection, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	_, err = runtimeapi.NewRuntimeServiceClient(connection).Version(ctx, &runtimeapi.VersionRequest{})
	return err
}

// Running reports whether the daemon's process runs.
func (d *Daemon) Running() bool {
	if d.process == nil {
		return false
	}
	select {
	case <-d.process.ended:
		return false
	default:
		return true
	}
}

// PID is the process id of the daemon; 0 before the first start.
func (d *Daemon) PID() int {
	if d.process == nil {
		return 0
	}
	return d.process.command.Process.Pid
}

// Wait waits until the daemon has exited by itself, as at a failpoint.
func (d *Daemon) Wait(t T, timeout time.Duration) {
	t.Helper()
	select {
	case <-d.process.ended:
	case <-time.After(timeout):
		t.Fatalf("%s still runs after %v", filepath.Base(d.binary), timeout)
	}
}

// Kill9 kills the daemon with SIGKILL, and nothing else.
func (d *Daemon) Kill9(t T) {
	t.Helper()
	Mustf(t, d.process.command.Process.Kill(), "kill %s", filepath.Base(d.binary))
	<-d.process.ended
}

// Stop ends the daemon with SIGTERM. Its pods continue to run.
func (d *Daemon) Stop(t T) {
	t.Helper()
	Mustf(t, d.stop(), "stop %s", filepath.Base(d.binary))
}

func (d *Daemon) stop() error {
	if err := d.process.command.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-d.process.ended:
		return d.process.err
	case <-time.After(startTimeout):
		err := d.process.command.Process.Kill()
		<-d.process.ended
		return errors.Join(fmt.Errorf("it was killed, because it still ran %v after SIGTERM", startTimeout), err)
	}
}

// Restart is Stop and Start.
func (d *Daemon) Restart(t T) {
	t.Helper()
	d.Stop(t)
	d.Start(t)
}

// SetEnvironment replaces the variables, KEY=value, that are added to the daemon's environment at
// the next start.
func (d *Daemon) SetEnvironment(environment ...string) { d.environment = environment }

// Log returns what the daemon wrote so far.
func (d *Daemon) Log() string {
	body, err := os.ReadFile(d.LogFile)
	if err != nil {
		return err.Error()
	}
	return string(body)
}

func (d *Daemon) logTail() string {
	const most = 16 << 10
	body := []byte(d.Log())
	if len(body) > most {
		body = body[len(body)-most:]
		body = body[bytes.IndexByte(body, '\n')+1:]
	}
	return string(body)
}

// end removes the pods and stops the daemon, if it still runs, and logs the end of its log if the
// test failed.
func (d *Daemon) end(t T) {
	t.Helper()
	if d.Running() {
		ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
		defer cancel()
		Checkf(t, d.Client.RemoveAllPods(ctx), "remove the pods")
		Checkf(t, d.stop(), "stop %s", filepath.Base(d.binary))
	}
	if t.Failed() {
		t.Logf("the end of the log of %s:\n%s", filepath.Base(d.binary), d.logTail())
	}
}
