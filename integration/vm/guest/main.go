// Guest is the agent in a virtual machine. It runs the commands that a test on the host sends over
// a serial port, and sends their output back. It is static and has no code of berth itself.
package main

import (
	"encoding/json"
	"errors"
	"io"
	"log"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/integration/vm/wire"
)

const port = "/dev/virtio-ports/berth"

func main() {
	log.SetFlags(0)
	log.Fatalf("Failed to serve the host: %v", serve())
}

// serve handles frames until a read from the port fails.
func serve() error {
	fd, err := unix.Open(port, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	a := &agent{line: line(fd), running: map[uint32]*running{}}
	a.send(wire.Frame{Kind: wire.Hello})
	for {
		f, err := wire.Read(a.line)
		if err != nil {
			return err // systemd restarts the agent
		}
		a.take(f)
	}
}

// line is the port. If the host is not connected, reads return no data and no error.
type line int

const retry = 20 * time.Millisecond

func (l line) Read(b []byte) (int, error) {
	for {
		n, err := unix.Read(int(l), b)
		if n > 0 {
			return n, nil
		}
		if err != nil && !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			return 0, err
		}
		time.Sleep(retry)
	}
}

func (l line) Write(b []byte) (int, error) {
	written := 0
	for written < len(b) {
		n, err := unix.Write(int(l), b[written:])
		if n > 0 {
			written += n
			continue
		}
		if err != nil && !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			return written, err
		}
		time.Sleep(retry)
	}
	return written, nil
}

type agent struct {
	line line

	writing sync.Mutex // one frame at a time

	mu      sync.Mutex
	running map[uint32]*running // guarded by mu
}

type running struct {
	command *exec.Cmd
	input   io.WriteCloser
	inputs  chan []byte
	own     bool
}

func (a *agent) send(f wire.Frame) {
	a.writing.Lock()
	err := wire.Write(a.line, f)
	a.writing.Unlock()
	if err != nil {
		log.Fatalf("Failed to write to the host: %v", err)
	}
}

func (a *agent) take(f wire.Frame) {
	switch f.Kind {
	case wire.Hello:
		a.endAll()
		a.send(f)
	case wire.Ping:
		a.send(f)
	case wire.Start:
		if err := a.start(f); err != nil {
			a.ended(f.ID, wire.Ended{Code: 127, Error: err.Error()})
		}
	case wire.Input:
		if r := a.of(f.ID); r != nil {
			r.inputs <- f.Payload
		}
	case wire.Signal:
		if r := a.of(f.ID); r != nil && len(f.Payload) == 1 {
			_ = unix.Kill(-r.command.Process.Pid, syscall.Signal(f.Payload[0])) // the command may have exited
		}
	}
}

func (a *agent) of(id uint32) *running {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.running[id]
}

// endAll kills the commands of the previous conversation.
func (a *agent) endAll() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for id, r := range a.running {
		if !r.own {
			_ = unix.Kill(-r.command.Process.Pid, unix.SIGKILL)
		}
		delete(a.running, id)
	}
}

func (a *agent) start(f wire.Frame) error {
	var c wire.Command
	if err := json.Unmarshal(f.Payload, &c); err != nil {
		return err
	}
	if len(c.Args) == 0 {
		return errors.New("the command is empty")
	}
	command := exec.Command(c.Args[0], c.Args[1:]...)
	command.Env = append(os.Environ(), c.Env...)
	command.Dir = c.Dir
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	// Wait returns even if a child process of the command still has its output open.
	command.WaitDelay = 2 * time.Second
	command.Stdout = &output{a, f.ID, wire.Stdout}
	command.Stderr = &output{a, f.ID, wire.Stderr}
	input, err := command.StdinPipe()
	if err != nil {
		return err
	}
	if err := command.Start(); err != nil {
		return err
	}
	r := &running{command: command, input: input, inputs: make(chan []byte, 1024), own: c.Own}
	a.mu.Lock()
	a.running[f.ID] = r
	a.mu.Unlock()
	done := make(chan struct{})
	go r.feed(done)
	go func() {
		err := command.Wait()
		close(done)
		a.mu.Lock()
		current := a.running[f.ID] == r
		if current {
			delete(a.running, f.ID)
		}
		a.mu.Unlock()
		if current {
			a.ended(f.ID, how(command, err))
		}
	}()
	return nil
}

func (r *running) feed(done <-chan struct{}) {
	defer r.input.Close()
	for {
		select {
		case <-done:
			return
		case b := <-r.inputs:
			if len(b) == 0 {
				return
			}
			if _, err := r.input.Write(b); err != nil {
				return
			}
		}
	}
}

func how(command *exec.Cmd, err error) wire.Ended {
	status, ok := command.ProcessState.Sys().(syscall.WaitStatus)
	switch {
	case ok && status.Signaled():
		return wire.Ended{Code: 128 + int(status.Signal())}
	case ok && status.Exited():
		return wire.Ended{Code: status.ExitStatus()}
	default:
		return wire.Ended{Code: 127, Error: err.Error()}
	}
}

func (a *agent) ended(id uint32, e wire.Ended) {
	payload, err := json.Marshal(e)
	if err != nil {
		log.Fatalf("Failed to encode the exit of a command: %v", err)
	}
	a.send(wire.Frame{Kind: wire.Exit, ID: id, Payload: payload})
}

// output sends the output of a command.
type output struct {
	agent *agent
	id    uint32
	kind  wire.Kind
}

func (o *output) Write(b []byte) (int, error) {
	for rest := b; len(rest) > 0; {
		n := min(len(rest), wire.Most)
		o.agent.send(wire.Frame{Kind: o.kind, ID: o.id, Payload: rest[:n]})
		rest = rest[n:]
	}
	return len(b), nil
}
