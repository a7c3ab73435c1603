// Package processes starts, watches and reaps the processes of a supervisor.
package processes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode"

	"github.com/containerd/log"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/procfs"
)

// Set tracks all processes of a supervisor.
//
// It watches them through their pidfds. One goroutine reads the epoll set of all pidfds through
// Go's poller: a running process costs no thread and no goroutine.
//
// As a subreaper this process also inherits the orphans of its containers and of runtimes that
// died. It must reap them without taking an exit that a call waits for, so every fork and every
// adoption goes through Set:
//
//   - known are the children that a call waits for; a sweep never reaps them.
//   - A launch is a runtime call that may leave a child behind (the container). An unknown zombie
//     may be such a child that exited before the runtime reported its pid. It is reaped after all
//     launches have ended that had begun before the zombie started and were in progress when it
//     was first seen: no other launch can have left it.
//   - settled are running children of ended launches, found by their command lines (a zombie has
//     none). Once they exit, a sweep reaps them, even if launches of other containers hang.
type Set struct {
	epoll *os.File

	mu       sync.Mutex
	watches  map[uint32]watch
	serial   uint32
	known    map[int]struct{}
	settled  map[int]struct{}
	launches map[uint64]launchOf
	launched uint64         // number of the newest launch
	orphans  map[int]uint64 // zombie -> the newest launch when it was first seen
	sweeping bool           // a later sweep is scheduled
}

// launchOf is a launch in progress.
type launchOf struct {
	began     uint64 // as procfs.Stat.Started
	container string
}

type watch struct {
	fd   int
	fire func()
}

// New returns an empty set; Run serves it.
func New() (*Set, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll_create: %w", err)
	}
	// os.NewFile adds only non-blocking descriptors to Go's poller.
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return &Set{
		epoll:    os.NewFile(uintptr(fd), "epoll"),
		watches:  map[uint32]watch{},
		known:    map[int]struct{}{},
		settled:  map[int]struct{}{},
		launches: map[uint64]launchOf{},
		orphans:  map[int]uint64{},
	}, nil
}

// Run dispatches events until the set is closed.
func (p *Set) Run(ctx context.Context) {
	conn, err := p.epoll.SyscallConn()
	if err != nil {
		log.G(ctx).WithError(err).Error("Failed to watch processes; exits will go unnoticed")
		return
	}
	events := make([]unix.EpollEvent, 64)
	for {
		var n int
		err := conn.Read(func(fd uintptr) bool {
			n, _ = unix.EpollWait(int(fd), events, 0)
			return n > 0
		})
		if err != nil {
			return
		}
		for _, e := range events[:n] {
			p.fire(uint32(e.Pad))
		}
	}
}

func (p *Set) fire(serial uint32) {
	p.mu.Lock()
	w, ok := p.watches[serial]
	p.mu.Unlock()
	if ok {
		w.fire()
	}
}

// Watch calls fire in the dispatching goroutine whenever fd has one of events (unix.EPOLLIN and so
// on; the caller chooses EPOLLET or EPOLLONESHOT). fire must not block. Call Unwatch before fd is
// closed.
func (p *Set) Watch(fd int, events uint32, fire func()) (uint32, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.serial++
	e := unix.EpollEvent{Events: events, Fd: int32(fd), Pad: int32(p.serial)}
	p.watches[p.serial] = watch{fd: fd, fire: fire}
	if err := p.control(unix.EPOLL_CTL_ADD, fd, &e); err != nil {
		delete(p.watches, p.serial)
		return 0, fmt.Errorf("watch descriptor: %w", err)
	}
	return p.serial, nil
}

// Unwatch drops a watch. Its fire may still be running.
func (p *Set) Unwatch(serial uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w, ok := p.watches[serial]
	if !ok {
		return
	}
	delete(p.watches, serial)
	_ = p.control(unix.EPOLL_CTL_DEL, w.fd, nil)
}

func (p *Set) control(op, fd int, e *unix.EpollEvent) error {
	conn, err := p.epoll.SyscallConn()
	if err != nil {
		return err
	}
	var ctl error
	err = conn.Control(func(set uintptr) { ctl = unix.EpollCtl(int(set), op, fd, e) })
	return errors.Join(err, ctl)
}

// Ended calls end once, in a new goroutine, when the process of a pidfd has exited.
func (p *Set) Ended(pidfd int, end func()) error {
	var serial uint32
	ready := make(chan struct{})
	serial, err := p.Watch(pidfd, unix.EPOLLIN|unix.EPOLLONESHOT, func() {
		go func() {
			<-ready
			p.Unwatch(serial)
			end()
		}()
	})
	close(ready)
	return err
}

// Command describes a process for Fork.
type Command struct {
	Argv, Environment []string // argv[0] is the path of the program
	Files             []uintptr
	// DeathSignal is sent to the process when its parent dies.
	DeathSignal syscall.Signal
	// Score is the oom_score_adj of the process, which its children inherit; nil keeps the parent's
	// score.
	Score *int
}

// Fork starts a known child in a new process group and returns its pid and pidfd. The caller reaps
// it with Reap.
func (p *Set) Fork(c Command) (pid, pidfd int, err error) {
	pidfd = -1
	p.mu.Lock()
	defer p.mu.Unlock()
	restore, err := assumeScore(c.Score)
	if err != nil {
		return 0, -1, err
	}
	pid, err = syscall.ForkExec(c.Argv[0], c.Argv, &syscall.ProcAttr{
		Env:   c.Environment,
		Files: c.Files,
		Sys: &syscall.SysProcAttr{
			Setpgid:   true,
			Pdeathsig: c.DeathSignal,
			PidFD:     &pidfd,
		},
	})
	restore()
	if err != nil {
		return 0, -1, fmt.Errorf("%s: %w", c.Argv[0], err)
	}
	p.known[pid] = struct{}{}
	return pid, pidfd, nil
}

// adopt makes known a child that a launch left behind. It fails with unix.ECHILD if the process is
// not a child of this process.
func (p *Set) adopt(pid, pidfd int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, err := waitid(unix.P_PIDFD, pidfd, unix.WEXITED|unix.WNOWAIT); err != nil {
		return err
	}
	p.known[pid] = struct{}{}
	delete(p.orphans, pid)
	delete(p.settled, pid)
	return nil
}

// AdoptSoon waits up to adoptionTimeout for a process to become a child, polling at adoptionPoll.
const (
	adoptionTimeout = 2 * time.Second
	adoptionPoll    = 200 * time.Microsecond
)

// AdoptSoon is adopt for a process that may not be a child yet: `crun run --detach` returns before
// its intermediate process, until then the container's parent, has exited.
func (p *Set) AdoptSoon(ctx context.Context, pid, pidfd int) error {
	deadline := time.Now().Add(adoptionTimeout)
	for {
		err := p.adopt(pid, pidfd)
		if err == nil || ctx.Err() != nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(adoptionPoll)
	}
}

// Reap reaps a known child that has exited, and returns its exit status.
func (p *Set) Reap(pid, pidfd int) (uint32, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	info, err := waitid(unix.P_PIDFD, pidfd, unix.WEXITED)
	if err != nil {
		return 0, err
	}
	if info.pid == 0 {
		return 0, errNoExit
	}
	delete(p.known, pid)
	return info.exitStatus(), nil
}

// Launch begins a call of the runtime that may leave a child behind; the returned function ends it.
func (p *Set) Launch(container string) func() {
	p.mu.Lock()
	p.launched++
	serial := p.launched
	p.launches[serial] = launchOf{began: bootTicks(), container: container}
	p.mu.Unlock()
	return func() {
		p.mu.Lock()
		delete(p.launches, serial)
		p.settle(container)
		waiting := len(p.orphans) > 0
		p.mu.Unlock()
		if waiting {
			p.sweep()
		}
	}
}

// settle adds the unknown children of a container to settled once all launches of that container
// have ended. It does nothing unless launches of other containers are in progress.
func (p *Set) settle(container string) {
	if len(p.launches) == 0 {
		return
	}
	for _, l := range p.launches {
		if l.container == container {
			return
		}
	}
	for _, pid := range procfs.Children(os.Getpid()) {
		_, known := p.known[pid]
		_, settled := p.settled[pid]
		if known || settled {
			continue
		}
		if line, err := os.ReadFile(procfs.Path(pid, "cmdline")); err == nil && mentions(string(line), container) {
			p.settled[pid] = struct{}{}
		}
	}
}

// mentions reports whether a command line contains the id of a container, even as a part of an
// argument: the command line of runsc's gofer has the id in the path of the bundle.
func mentions(line, container string) bool {
	const more = "_.-" // in an id, beside letters and digits
	words := strings.FieldsFunc(line, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune(more, r)
	})
	return slices.Contains(words, container)
}

// sweepAgain is the delay before the next sweep after a sweep found a zombie that it must not reap
// yet: a call will reap that zombie, or a launch in progress may have left it.
const sweepAgain = 5 * time.Millisecond

// sweep reaps the orphans that have exited. It runs on SIGCHLD. It must be fast, because runtimes
// wait for the reaping of some orphans (runsc for its gofer).
func (p *Set) sweep() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		info, err := waitid(unix.P_ALL, 0, unix.WEXITED|unix.WNOWAIT)
		if err != nil || info.pid == 0 {
			return
		}
		if !p.reapOrphan(int(info.pid)) {
			break
		}
	}
	// waitid returns the same zombie again until that is reaped, so check each child by its pid.
	for _, pid := range procfs.Children(os.Getpid()) {
		if info, err := waitid(unix.P_PID, pid, unix.WEXITED|unix.WNOWAIT); err == nil && info.pid != 0 {
			p.reapOrphan(pid)
		}
	}
	p.sweepLater()
}

func (p *Set) reapOrphan(pid int) bool {
	if !p.isOrphan(pid) {
		return false
	}
	_, _ = waitid(unix.P_PID, pid, unix.WEXITED)
	delete(p.orphans, pid)
	delete(p.settled, pid)
	return true
}

// bootTicks returns the time since boot in the unit of procfs.Stat.Started.
func bootTicks() uint64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return 0
	}
	const perSecond = 100 // USER_HZ
	return uint64(now.Sec)*perSecond + uint64(now.Nsec)*perSecond/uint64(time.Second)
}

// isOrphan reports whether a zombie may be reaped, because no call can be waiting for it.
func (p *Set) isOrphan(pid int) bool {
	if _, ok := p.known[pid]; ok {
		return false
	}
	if _, ok := p.settled[pid]; ok {
		return true
	}
	seen, ok := p.orphans[pid]
	if !ok {
		seen = p.launched
		p.orphans[pid] = seen
	}
	for launch, l := range p.launches {
		if launch > seen {
			continue
		}
		if stat, err := procfs.StatOf(pid); err != nil || stat.Started >= l.began {
			return false
		}
	}
	return true
}

func (p *Set) sweepLater() {
	if p.sweeping {
		return
	}
	p.sweeping = true
	time.AfterFunc(sweepAgain, func() {
		p.mu.Lock()
		p.sweeping = false
		p.mu.Unlock()
		p.sweep()
	})
}

// Close ends Run.
func (p *Set) Close() error { return p.epoll.Close() }

// Forget stops tracking a known child that is still running; a sweep reaps it later.
func (p *Set) Forget(pid int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.known, pid)
}

// ReapWhenDead closes the pidfd of a killed child, which later sweeps reap.
func (p *Set) ReapWhenDead(pid, pidfd int) {
	p.Forget(pid)
	unix.Close(pidfd)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sweepLater()
}

// SweepOnSignal reaps orphans on SIGCHLD; the returned function stops that.
func (p *Set) SweepOnSignal() func() {
	children := make(chan os.Signal, 1)
	signal.Notify(children, unix.SIGCHLD)
	var done sync.WaitGroup
	done.Add(1)
	go func() {
		defer done.Done()
		for range children {
			p.sweep()
		}
	}()
	return func() {
		signal.Stop(children)
		close(children)
		done.Wait()
	}
}

// Process identifies a process even if its pid is reused.
type Process struct {
	PID int `json:"pid,omitempty"`
	// StartTime is field 22 of /proc/<pid>/stat, in clock ticks since boot.
	StartTime uint64 `json:"startTime,omitempty"`
}

// UnknownStatus stands for an exit code that is lost.
const UnknownStatus = 255

const (
	// exitTries bounds the reads of a foreign process's exit code: the kernel may not report the
	// code before the parent has reaped the process.
	exitTries = 20
	exitPause = 5 * time.Millisecond
)

// Collect returns the status of a process that has exited, if that is known.
func (p *Set) Collect(identity Process, pidfd int, child bool) (status uint32, known bool) {
	if child {
		if status, err := p.Reap(identity.PID, pidfd); err == nil {
			return status, true
		}
	}
	for range exitTries {
		status, err := foreignExit(pidfd, identity)
		if err == nil {
			return status, true
		}
		if errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EINVAL) {
			break // an older kernel without this interface
		}
		time.Sleep(exitPause)
	}
	return UnknownStatus, false
}
