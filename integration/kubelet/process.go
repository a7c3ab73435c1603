package kubelet

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"time"

	"github.com/berth-cri/berth/integration/testbed"
)

// process is a program that runs during the test. It does not outlive the test, even if the
// test is killed.
type process struct {
	part      string
	arguments []string // with the program as the first
	log       string

	command *exec.Cmd
	ended   chan struct{} // closed when err holds the answer of Wait
	err     error
}

// run starts a part. A cleanup stops it, and logs the end of its log if the test failed.
func (c *Cluster) run(t testbed.T, part string, arguments ...string) *process {
	t.Helper()
	return c.runOn(t, nil, part, arguments...)
}

// runOn is run on a machine; enter is the prefix of the command, as in Machine.Enter.
func (c *Cluster) runOn(t testbed.T, enter []string, part string, arguments ...string) *process {
	t.Helper()
	p := &process{
		part: part, arguments: slices.Concat(enter, []string{testbed.Part(t, part)}, arguments),
		log: filepath.Join(c.dir, part+".log"),
	}
	t.Cleanup(func() {
		testbed.Checkf(t, p.end(syscall.SIGTERM), "end %s", part)
		if t.Failed() {
			t.Logf("the end of the log of %s:\n%s", part, p.logTail())
		}
	})
	p.start(t)
	return p
}

func (p *process) start(t testbed.T) {
	t.Helper()
	if p.running() {
		t.Fatalf("start %s: it is already running", p.part)
	}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	testbed.Mustf(t, err, "start %s", p.part)
	defer log.Close()
	command := exec.Command(p.arguments[0], p.arguments[1:]...)
	command.Stdout, command.Stderr = log, log
	// Its own process group, so that Ctrl-C at a terminal does not reach it.
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started, ended := make(chan error, 1), make(chan struct{})
	go func() {
		// Pdeathsig is sent when the thread that has started the process ends, so this goroutine
		// keeps its thread.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(ended)
		err := command.Start()
		started <- err
		if err == nil {
			p.err = command.Wait()
		}
	}()
	testbed.Mustf(t, <-started, "start %s", p.part)
	p.command, p.ended = command, ended
}

func (p *process) running() bool {
	if p.command == nil {
		return false
	}
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// endTimeout is how long a part may still run after end has sent its signal.
const endTimeout = 20 * time.Second

// end sends a signal and waits for the exit. It does nothing if the process does not run.
func (p *process) end(signal syscall.Signal) error {
	if !p.running() {
		return nil
	}
	if err := p.command.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.ended:
		return nil
	case <-time.After(endTimeout):
		err := p.command.Process.Kill()
		<-p.ended
		return errors.Join(fmt.Errorf("it was killed, because it still ran %v after %v", endTimeout, signal), err)
	}
}

// await polls until check succeeds, and fails at once if the process exits.
func (p *process) await(t testbed.T, timeout time.Duration, check func() error) {
	t.Helper()
	testbed.Eventually(t, timeout, func() error {
		if !p.running() {
			t.Fatalf("%s exited: %v\n%s", p.part, p.err, p.logTail())
		}
		return check()
	})
}

func (p *process) logTail() string {
	const most = 12 << 10
	body, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(body[max(0, len(body)-most):])
}
