package supervisor

import (
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/supervisor/cgroups"
	"github.com/berth-cri/berth/pkg/engine/supervisor/journal"
	"github.com/berth-cri/berth/pkg/engine/supervisor/output"
	"github.com/berth-cri/berth/pkg/engine/supervisor/processes"
	"github.com/berth-cri/berth/pkg/engine/supervisor/stdio"
)

// takeOver resumes the tasks that a predecessor journaled. It stops only execs, and containers with
// an interrupted start. When it returns, s.tasks and s.foreign have all tasks with a valid journal.
func (s *supervisor) takeOver(inherited map[string]journal.Inherited) error {
	for _, i := range inherited {
		i.Each(unix.CloseOnExec) // runtimes and containers must not inherit them
	}
	entries, err := os.ReadDir(filepath.Join(s.dir, journal.TasksDir))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		i := inherited[e.Name()]
		delete(inherited, e.Name())
		j, err := journal.ReadTask(s.dir, e.Name())
		if err == nil {
			err = checkKernel(j.Options.Kernel)
		}
		if err != nil {
			i.Close()
			s.skip(e.Name(), err)
			continue
		}
		s.takeOverTask(j, i)
	}
	return nil
}

// skip removes the directory of an interrupted Create, and logs any other error of a journal.
func (s *supervisor) skip(id string, err error) {
	if errdefs.IsNotFound(err) {
		os.RemoveAll(journal.TaskDir(s.dir, id))
		return
	}
	log.G(s.ctx).WithError(err).WithField("container", id).Error("Failed to take over task; its journal is ignored")
}

func (s *supervisor) takeOverTask(j journal.Task, i journal.Inherited) {
	if j.State == journal.TaskStdio {
		i.Close()
		s.takeOverForeign(j)
		return
	}
	t := newTask(s, j)
	was := takeover{t}
	s.mu.Lock() // goroutines of tasks taken over earlier are already running
	s.tasks[j.ID] = t
	s.mu.Unlock()
	exit, exitErr := journal.ReadExit(s.dir, j.ID)
	switch {
	case exitErr == nil:
		journal.Inherited{Pidfd: i.Pidfd}.Close()
		was.io(i)
		t.unstarted = j.State == journal.TaskStarting
		was.exited(exit)
	case j.State == journal.TaskCreated:
		i.Close()
	case j.State == journal.TaskStarting:
		i.Close()
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

// takeover resumes a task of a predecessor.
type takeover struct{ task *task }

// checkpoint locks the task while CRIU possibly still writes an interrupted checkpoint, at most for
// criuSettles, so that no other call resumes the container earlier.
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

func (o takeover) exited(exit journal.Exit) {
	o.task.first.stop(exit)
	go o.task.afterwards()
}

// interruptedStart makes the runtime delete a container after its start was interrupted at an
// unknown step.
func (o takeover) interruptedStart() {
	_ = o.task.ops.Lock(o.task.context())
	defer o.task.ops.Unlock()
	log.G(o.task.context()).Warn("Removing container whose start was interrupted by the exit of its supervisor")
	o.task.discard()
	o.task.finish(journal.Exit{Status: processes.UnknownStatus, Unknown: true, ExitedAt: time.Now().UnixNano()})
}

// io resumes reading the output of a started task.
func (o takeover) io(i journal.Inherited) {
	if err := o.reopenIO(i); err != nil {
		log.G(o.task.context()).WithError(err).Error("Failed to resume reading container output")
	}
}

func (o takeover) reopenIO(i journal.Inherited) error {
	j := &o.task.journal
	// Ignore errors: while there was no supervisor, stdin was not held open, and the process may
	// already have read the end of its input.
	o.task.first.stdin, _ = j.HoldStdin()
	out := output.Reopen(o.task.context(), &j.Options)
	sources, err := o.reopenSources(out, i)
	if err != nil {
		out.Discard()
		return err
	}
	o.task.output = out
	out.Start(sources...)
	o.task.mu.Lock()
	defer o.task.mu.Unlock()
	o.task.carryTerminalInput()
	return nil
}

func (o takeover) reopenSources(to *output.Output, i journal.Inherited) ([]output.Source, error) {
	j := &o.task.journal
	if !j.Terminal {
		journal.Inherited{TTY: i.TTY}.Close()
		return to.OpenSources(j.Stdout, j.Stderr)
	}
	if i.TTY <= 0 {
		return nil, errors.New("its terminal was lost with the previous supervisor")
	}
	master, err := stdio.TerminalFile(i.TTY)
	if err != nil {
		return nil, err
	}
	o.task.first.master = master
	return []output.Source{to.TerminalSource(master)}, nil
}

// process watches the first process, by the pidfd that the daemon kept or by a new one.
func (o takeover) process(pidfd int) {
	ctx := o.task.context()
	p, j := o.task.first, &o.task.journal
	p.state, p.identity = running, j.Process
	o.task.paused = j.Paused
	o.task.oom = cgroups.CountOOM(ctx, o.task.processes, j.Cgroup, o.task.supervisor.loggedOOM(ctx, j.Cgroup, ""))
	o.task.oom.SetIgnored(j.IgnoredOOM)
	if pidfd > 0 && processes.IsAnother(pidfd, j.Process) {
		log.G(ctx).Warn("Ignoring pidfd of another process that reuses the PID of the container")
		unix.Close(pidfd)
		pidfd = -1
	}
	if pidfd <= 0 {
		var err error
		if pidfd, err = processes.Open(j.Process); err != nil {
			log.G(ctx).WithError(err).Warn("Container exited while its supervisor was down")
			go o.task.lost()
			return
		}
	}
	unix.CloseOnExec(pidfd)
	p.pidfd = pidfd
	o.task.mu.Lock()
	defer o.task.mu.Unlock()
	if err := o.task.kernel.watch(); err != nil {
		log.G(ctx).WithError(err).Error("Failed to watch container; its exit will go unnoticed")
	}
}

// lost finishes a task with an unknown exit.
func (t *task) lost() {
	t.finish(journal.Exit{
		PID: t.journal.Process.PID, Status: processes.UnknownStatus, Unknown: true,
		ExitedAt: time.Now().UnixNano(), OOM: t.oom.Killed(),
	})
	t.afterwards()
}

// killInherited kills the execs of the predecessor, because their clients are gone.
func (x *execs) killInherited() {
	x.task.mu.Lock()
	defer x.task.mu.Unlock()
	for id, exec := range x.task.journal.Execs {
		if fd, err := processes.Open(exec.Process); err == nil {
			session := execSession(exec.PID, x.task.journal.Process.PID)
			_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
			unix.Close(fd)
			x.task.kernel.killLeftovers(exec, session)
		}
		delete(x.task.journal.Execs, id)
	}
	if err := x.task.save(); err != nil {
		log.G(x.task.context()).WithError(err).Warn("Failed to remove killed execs from the journal")
	}
}
