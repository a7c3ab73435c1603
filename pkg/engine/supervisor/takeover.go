package supervisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/supervisor/stdio"
)

// InheritEnv names the environment variable in which a supervisor finds the
// descriptors that the daemon kept for it from its predecessor: the JSON form of
// map[string]Inherited, by task id.
const InheritEnv = "BERTH_SHIM_INHERIT"

// Inherited are descriptor numbers (4 and up) that a successor starts with; 0
// means none.
type Inherited struct {
	// Pidfd is of the task's first process. One that was opened while the
	// process lived tells its exit code also after it was reaped.
	Pidfd int `json:"pidfd,omitempty"`
	// TTY is the master of its terminal.
	TTY int `json:"tty,omitempty"`
}

// each calls do for each descriptor.
func (i Inherited) each(do func(fd int)) {
	for _, fd := range []int{i.Pidfd, i.TTY} {
		if fd > 0 {
			do(fd)
		}
	}
}

func (i Inherited) close() { i.each(func(fd int) { unix.Close(fd) }) }

// takeOver goes on with what the journals say that a predecessor held. When it
// returns, every task is known and carries on; nothing was stopped.
func (s *Supervisor) takeOver(inherited map[string]Inherited) error {
	for _, i := range inherited {
		i.each(unix.CloseOnExec) // keeps them from runtimes and containers
	}
	entries, err := os.ReadDir(filepath.Join(s.dir, tasksDir))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		i := inherited[e.Name()]
		delete(inherited, e.Name())
		j, err := ReadTask(s.dir, e.Name())
		if err != nil {
			i.close()
			s.skip(e.Name(), err)
			continue
		}
		s.takeOverTask(j, i)
	}
	for _, i := range inherited {
		i.close()
	}
	return nil
}

// skip leaves alone what is no task, but removes what a Create left that did
// not come to its end.
func (s *Supervisor) skip(id string, err error) {
	if errdefs.IsNotFound(err) {
		os.RemoveAll(taskDir(s.dir, id))
		return
	}
	log.G(s.ctx).WithError(err).WithField("container", id).Error("Failed to take over task: its journal is unreadable")
}

func (s *Supervisor) takeOverTask(j Task, i Inherited) {
	if j.State == TaskStdio {
		i.close()
		s.takeOverForeign(j)
		return
	}
	t := newTask(s, j)
	was := takeover{t}
	s.mu.Lock() // tasks that were taken over are at work already
	s.tasks[j.ID] = t
	s.mu.Unlock()
	exit, exitErr := ReadExit(s.dir, j.ID)
	switch {
	case exitErr == nil:
		Inherited{Pidfd: i.Pidfd}.close()
		was.io(i)
		was.exited(exit)
	case j.State == TaskCreated:
		i.close()
	case j.State == TaskStarting:
		i.close()
		t.first.state = starting
		t.first.abort = func() {}
		go was.interruptedStart()
	default:
		was.io(i)
		was.process(i.Pidfd)
		was.checkpoint()
	}
	t.execs.killInherited()
}

// takeover goes on with a task of a predecessor.
type takeover struct{ task *task }

// checkpoint ends one that was being written, before anybody lets the container go on.
func (o takeover) checkpoint() {
	if o.task.journal.Writer.PID == 0 {
		return
	}
	_ = o.task.ops.Lock(o.task.context())
	go func() {
		defer o.task.ops.Unlock()
		criuWrite(o).inherited()
	}()
}

// exited goes on with a task whose end is known.
func (o takeover) exited(exit Exit) {
	o.task.first.state, o.task.first.exit = stopped, exit
	o.task.first.closeStdin()
	close(o.task.first.done)
	go o.task.afterwards()
}

// interruptedStart ends a start of which nobody knows how far it came: what the
// runtime has of it is removed.
func (o takeover) interruptedStart() {
	_ = o.task.ops.Lock(o.task.context())
	defer o.task.ops.Unlock()
	log.G(o.task.context()).Warn("Removing container whose start was interrupted by a supervisor crash")
	o.killOrphanedRun()
	o.task.discard()
	o.task.finish(Exit{Status: unknownStatus, Unknown: true, ExitedAt: time.Now().UnixNano()})
}

// io reads the output of a task that was started, from where the
// predecessor stopped.
func (o takeover) io(i Inherited) {
	if err := o.reopenIO(i); err != nil {
		log.G(o.task.context()).WithError(err).Error("Failed to resume reading container output")
	}
}

func (o takeover) reopenIO(i Inherited) error {
	j := &o.task.journal
	// Best effort: its reader may have seen the end already.
	o.task.first.stdin, _ = j.holdStdin()
	output := reopenOutput(o.task.context(), &j.Options)
	sources, err := o.reopenSources(output, i)
	if err != nil {
		output.discard()
		return err
	}
	o.task.output = output
	output.start(sources...)
	o.task.mu.Lock()
	defer o.task.mu.Unlock()
	o.task.carryTerminalInput()
	return nil
}

func (o takeover) reopenSources(output *output, i Inherited) ([]source, error) {
	j := &o.task.journal
	if !j.Terminal {
		Inherited{TTY: i.TTY}.close()
		return output.openSources(j.Stdout, j.Stderr)
	}
	if i.TTY <= 0 {
		return nil, errors.New("its terminal was lost with the previous supervisor")
	}
	master, err := stdio.TerminalFile(i.TTY)
	if err != nil {
		return nil, err
	}
	o.task.first.master = master
	return []source{output.terminalSource(master)}, nil
}

// process watches the first process, by the pidfd of the daemon or one
// of its own.
func (o takeover) process(pidfd int) {
	ctx := o.task.context()
	p, j := o.task.first, &o.task.journal
	p.state, p.identity = running, j.Process
	o.task.paused = j.Paused
	o.task.oom = countOOM(ctx, o.task.processes, j.Cgroup, o.task.supervisor.loggedOOM(ctx, j.Cgroup, ""))
	o.task.oom.setExcuse(j.ExcusedOOM)
	if pidfd > 0 && isAnother(pidfd, j.Process) {
		log.G(ctx).Warn("Ignoring descriptor of another process that has the PID of the container's")
		unix.Close(pidfd)
		pidfd = -1
	}
	if pidfd <= 0 {
		var err error
		if pidfd, err = openPidfd(j.Process); err != nil {
			log.G(ctx).WithError(err).Warn("Container exited while its supervisor was down")
			go o.task.lost()
			return
		}
	}
	unix.CloseOnExec(pidfd)
	p.pidfd = pidfd
	o.task.mu.Lock()
	defer o.task.mu.Unlock()
	if err := o.task.watchFirst(); err != nil {
		log.G(ctx).WithError(err).Error("Failed to watch container; its exit will go unnoticed")
	}
}

// lost finishes a task of which nobody knows how it ended.
func (t *task) lost() {
	t.finish(Exit{
		PID: t.journal.Process.PID, Status: unknownStatus, Unknown: true,
		ExitedAt: time.Now().UnixNano(), OOM: t.oom.killed(),
	})
	t.afterwards()
}

// killInherited kills the execs of the predecessor: nobody knows them any more.
func (x *execs) killInherited() {
	x.task.mu.Lock()
	defer x.task.mu.Unlock()
	for id, identity := range x.task.journal.Execs {
		if fd, err := openPidfd(identity); err == nil {
			p := &process{identity: identity, session: execSession(identity.PID, x.task.journal.Process.PID)}
			_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
			unix.Close(fd)
			if !x.task.journal.Options.OwnKernel {
				go killLeftovers(p, x.task.journal.Cgroup)
			}
		}
		delete(x.task.journal.Execs, id)
	}
	if err := x.task.save(); err != nil {
		log.G(x.task.context()).WithError(err).Warn("Failed to remove killed execs from the journal")
	}
}

func (s *Supervisor) noTask(id string) error {
	return fmt.Errorf("container %q is unknown to this supervisor: %w", id, errdefs.ErrNotFound)
}
