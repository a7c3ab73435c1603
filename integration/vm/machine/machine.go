// Package machine runs whole nodes: a Debian with its own kernel, systemd as process 1 and cgroup
// v2. QEMU emulates it, so that a test can reboot it or cut its power on any host.
//
//	m := machine.Start(t, machine.Options{})
//	m.Put(t, "/some/program", "/usr/bin/program")
//	out := m.Run(t, "program", "--now")
//	m.Cut(t)
//	m.Boot(t)
package machine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/berth-cri/berth/integration/patience"
	"github.com/berth-cri/berth/integration/testbed"
	"github.com/berth-cri/berth/integration/vm/wire"
)

// bootBound is longer than a boot takes on a busy host.
const bootBound = 10 * time.Minute

// Options select the machine.
type Options struct {
	// Kind is the node; empty is Node.
	Kind Kind
	// Kernel replaces the kernel arguments for security modules.
	Kernel string
	// Memory is in MiB; zero is 4096.
	Memory int
	// Cold boots the machine instead of restoring one that has booted.
	Cold bool
}

// Machine is a node. Its changes to the disk are kept until the test ends.
type Machine struct {
	// Slowness is how many times longer a process takes here than on a host.
	Slowness float64

	options Options
	image   image
	dir     string
	agent   string
	files   atomic.Int64
	qemu    *exec.Cmd
	ended   chan struct{}
	line    *line
}

// Start returns a machine that has booted. A cleanup ends it, and logs its console if the test has
// failed.
func Start(t testbed.T, o Options) *Machine {
	t.Helper()
	if o.Kind == "" {
		o.Kind = Node
	}
	m := &Machine{options: o, image: find(t, o.Kind)}
	var err error
	if m.agent, err = Built("agent", "./integration/vm/guest", o.Kind.architecture()); err != nil {
		t.Fatalf("%v", err)
	}
	booted := ""
	if !o.Cold {
		if booted, err = m.image.booted(t.Context(), m.agent, o); err != nil {
			t.Fatalf("boot the machine that is to be saved: %v", err)
		}
	}
	testbed.Mustf(t, m.make(booted), "make a machine")
	t.Cleanup(func() {
		m.kill()
		if t.Failed() {
			t.Logf("the machine's console:\n%s", m.Console())
		}
		testbed.Checkf(t, os.RemoveAll(m.dir), "remove the machine")
	})
	testbed.Mustf(t, m.start(t.Context(), booted), "start a machine")
	m.ready(t)
	return m
}

// make creates the machine's files. Its disk is a layer above the disk of the image or of a machine
// that has booted.
func (m *Machine) make(booted string) error {
	var err error
	// A short name, because the length of a socket's path is limited.
	if m.dir, err = os.MkdirTemp("", "bvm-"); err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Join(m.dir, "share"), 0o755); err != nil {
		return err
	}
	if err := place(m.agent, filepath.Join(m.dir, "share", "agent")); err != nil {
		return err
	}
	below, format := m.image.path("disk.img"), "raw"
	if booted != "" {
		below, format = filepath.Join(booted, "disk.qcow2"), "qcow2"
	}
	return tool("qemu-img", "create", "-q", "-f", "qcow2", "-b", below, "-F", format, filepath.Join(m.dir, "disk.qcow2"))
}

func tool(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, out)
	}
	return nil
}

// start runs QEMU and waits for the agent. booted is the directory of a saved machine, or empty.
func (m *Machine) start(ctx context.Context, booted string) error {
	args := arguments(m.image, m.options, m.dir)
	if booted != "" {
		args = append(args, "-incoming", "exec:cat "+filepath.Join(booted, "state"))
	}
	for _, socket := range []string{"agent", "qmp"} {
		if err := os.Remove(filepath.Join(m.dir, socket)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	var said bytes.Buffer
	m.qemu = exec.Command(m.image.kind.emulator(), args...)
	m.qemu.Stdout, m.qemu.Stderr = &said, &said
	m.qemu.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := m.qemu.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	m.ended = ended
	go func() {
		m.qemu.Wait() //nolint:errcheck // the exit status does not matter
		close(ended)
	}()
	until := time.Now().Add(bootBound)
	conn, err := m.dial("agent", until)
	if err == nil {
		m.line = converse(conn)
		err = m.line.greet(ctx, until)
	}
	if err == nil {
		return ctx.Err()
	}
	m.kill()
	return fmt.Errorf("%w: QEMU printed %q; the console:\n%s", err, said.String(), m.Console())
}

// dial connects to a socket of QEMU, and retries until the given time.
func (m *Machine) dial(socket string, until time.Time) (net.Conn, error) {
	for {
		conn, err := net.Dial("unix", filepath.Join(m.dir, socket))
		if err == nil {
			return conn, nil
		}
		if time.Now().After(until) {
			return nil, err
		}
		select {
		case <-m.ended:
			return nil, errors.New("QEMU has ended")
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// kill kills QEMU, which is a power cut for the machine.
func (m *Machine) kill() {
	if m.qemu == nil || m.qemu.Process == nil {
		return
	}
	if m.line != nil {
		m.line.end(errors.New("the machine was ended"))
	}
	m.qemu.Process.Kill() //nolint:errcheck // it may have ended by itself
	<-m.ended
}

// Cut cuts the power: what the guest has not written to its disk is lost.
func (m *Machine) Cut(t testbed.T) {
	t.Helper()
	m.kill()
}

// Boot starts a machine whose power was cut, or that has shut down, from its disk.
func (m *Machine) Boot(t testbed.T) {
	t.Helper()
	m.kill()
	testbed.Mustf(t, m.start(t.Context(), ""), "boot the machine")
	m.ready(t)
}

// Reboot shuts the machine down as an operator does, and boots it.
func (m *Machine) Reboot(t testbed.T) {
	t.Helper()
	m.Try(t, "systemctl", "reboot") //nolint:errcheck // the answer may be lost in the shutdown
	select {
	case <-m.ended:
	case <-time.After(bootBound):
		t.Fatalf("the machine does not shut down:\n%s", m.Console())
	}
	m.Boot(t)
}

// Architecture is the GOARCH of the machine.
func (m *Machine) Architecture() string { return m.image.kind.architecture() }

// Console returns the end of the machine's console.
func (m *Machine) Console() string {
	const most = 16 << 10
	body, err := os.ReadFile(filepath.Join(m.dir, "console"))
	if err != nil {
		return err.Error()
	}
	return string(body[max(0, len(body)-most):])
}

// settle prepares a machine that has started. It sets the clock, which stood still in a saved
// machine.
const settle = `
date -u -s "@$1" >/dev/null
modprobe -a overlay br_netfilter 9p 9pnet_virtio 2>/dev/null || true
sysctl -q -w net.ipv4.ip_forward=1
mountpoint -q /host || mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000 host /host
`

func (m *Machine) ready(t testbed.T) {
	t.Helper()
	m.Run(t, "sh", "-ec", settle, "sh", fmt.Sprint(time.Now().Unix()))
	begin := time.Now()
	m.Run(t, "sh", "-ec", fmt.Sprintf(probe, probes))
	m.Slowness = min(max(1, time.Since(begin).Seconds()/probeTakes.Seconds()), patience.Most)
}

// probe measures a guest's slowness by short processes, because tests mostly wait for processes to
// start and exit. On a machine that is not emulated they take probeTakes.
const (
	probe      = `for i in $(seq %d); do /bin/true; done`
	probes     = 50
	probeTakes = 50 * time.Millisecond
)

// Put copies a file of the host into the machine, with its mode.
func (m *Machine) Put(t testbed.T, from, to string) {
	t.Helper()
	name := fmt.Sprint(m.files.Add(1))
	shared := filepath.Join(m.dir, "share", name)
	testbed.Mustf(t, place(from, shared), "share %s with the machine", from)
	m.Run(t, "sh", "-ec", `mkdir -p "$(dirname "$2")" && rm -f "$2" && cp "/host/$1" "$2"`, "sh", name, to)
	if err := os.Remove(shared); err != nil {
		t.Fatalf("%v", err)
	}
}

// Write writes a file in the machine.
func (m *Machine) Write(t testbed.T, path, text string) {
	t.Helper()
	c := m.Command("sh", "-ec", `mkdir -p "$(dirname "$1")" && cat >"$1"`, "sh", path)
	c.Stdin = strings.NewReader(text)
	if _, err := c.Output(t.Context()); err != nil {
		t.Fatalf("write %s: %v", path, err)
	}
}

// place makes a hard link to a file, or copies it if that is not possible.
func place(from, to string) error {
	from, err := filepath.EvalSymlinks(from)
	if err != nil {
		return err
	}
	if os.Link(from, to) == nil {
		return nil
	}
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	info, err := source.Stat()
	if err != nil {
		return err
	}
	target, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, info.Mode().Perm())
	if err != nil {
		return err
	}
	_, err = io.Copy(target, source)
	return errors.Join(err, target.Close())
}

// Command is a command for the machine.
type Command struct {
	Args, Env      []string
	Dir            string
	Stdin          io.Reader
	Stdout, Stderr io.Writer

	machine *Machine
}

// Command returns a command that was not run yet.
func (m *Machine) Command(args ...string) *Command {
	return &Command{Args: args, machine: m}
}

// ExitError is a command's exit code other than 0, or the reason why it did not start.
type ExitError struct {
	Code   int
	Reason string // why it did not start
}

func (e *ExitError) Error() string {
	if e.Reason != "" {
		return e.Reason
	}
	return fmt.Sprintf("exit status %d", e.Code)
}

// Run runs the command. If the context ends, the command is killed.
func (c *Command) Run(ctx context.Context) error {
	l := c.machine.line
	stdout, stderr := c.Stdout, c.Stderr
	if stdout == nil {
		stdout = io.Discard
	}
	if stderr == nil {
		stderr = io.Discard
	}
	id, e, err := l.start(wire.Command{Args: c.Args, Env: c.Env, Dir: c.Dir}, stdout, stderr)
	if err != nil {
		return err
	}
	input := c.Stdin
	if input == nil {
		input = strings.NewReader("")
	}
	if err := l.input(id, input); err != nil {
		return err
	}
	select {
	case <-e.done:
	case <-ctx.Done():
		_ = l.send(wire.Frame{Kind: wire.Signal, ID: id, Payload: []byte{byte(syscall.SIGKILL)}}) // if the connection is down, the command has ended
		<-e.done
	}
	switch {
	case e.err != nil:
		return e.err
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case e.ended.Code != 0 || e.ended.Error != "":
		return &ExitError{e.ended.Code, e.ended.Error}
	default:
		return nil
	}
}

// Output runs the command and returns its stdout and stderr together.
func (c *Command) Output(ctx context.Context) (string, error) {
	var both bytes.Buffer // one goroutine writes
	c.Stdout, c.Stderr = &both, &both
	err := c.Run(ctx)
	if err != nil {
		err = fmt.Errorf("%s: %w\n%s", strings.Join(c.Args, " "), err, both.String())
	}
	return both.String(), err
}

// Run runs a command that must succeed, and returns its output, trimmed.
func (m *Machine) Run(t testbed.T, args ...string) string {
	t.Helper()
	out, err := m.Command(args...).Output(t.Context())
	if err != nil {
		t.Fatalf("%v", err)
	}
	return strings.TrimSpace(out)
}

// Try is Run for a command that may fail.
func (m *Machine) Try(t testbed.T, args ...string) (string, error) {
	t.Helper()
	out, err := m.Command(args...).Output(t.Context())
	return strings.TrimSpace(out), err
}
