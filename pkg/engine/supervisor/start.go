package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/engine/supervisor/bundle"
	"github.com/berth-cri/berth/pkg/engine/supervisor/cgroups"
	"github.com/berth-cri/berth/pkg/engine/supervisor/journal"
	"github.com/berth-cri/berth/pkg/engine/supervisor/output"
	"github.com/berth-cri/berth/pkg/engine/supervisor/processes"
	"github.com/berth-cri/berth/pkg/engine/supervisor/runtimecall"
	"github.com/berth-cri/berth/pkg/engine/supervisor/stdio"
)

// startFailed is the exit status of a container that failed to start.
const startFailed = 128

// maxFailureLog bounds the kept output of a failed runtime.
const maxFailureLog = 64 << 10

// start starts the container, once. After it has locked ops, it ignores the end of the caller's
// context. It cleans up after a failure before it returns.
func (t *task) start(ctx context.Context) (int, error) {
	if err := hold(ctx, t.ops); err != nil {
		return 0, err
	}
	defer t.ops.Unlock()
	ctx, abort := context.WithCancel(t.context())
	defer abort()

	if err := t.beginStart(abort); err != nil {
		return 0, err
	}
	pid, err := t.launch(ctx)
	if err != nil {
		t.finish(journal.Exit{Status: startFailed, ExitedAt: time.Now().UnixNano()})
		return 0, err
	}
	return pid, nil
}

func (t *task) beginStart(abort context.CancelFunc) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.deleted {
		return t.supervisor.noTask(t.id)
	}
	if t.first.state != created {
		return fmt.Errorf("container %q was already started; a container can be started only once: %w", t.id, errdefs.ErrFailedPrecondition)
	}
	t.journal.State = journal.TaskStarting
	if err := t.save(); err != nil {
		t.journal.State = journal.TaskCreated
		return err
	}
	t.first.state, t.first.abort = starting, abort
	return nil
}

// launch runs `<runtime> run` or `restore`, and cleans up after a failure.
func (t *task) launch(ctx context.Context) (int, error) {
	read := make(chan bundle.Facts, 1)
	go func() { read <- bundle.Read(t.journal.Bundle) }()

	defer t.starter.done()
	l, err := t.prepareLaunch()
	if err != nil {
		t.discarded(nil)
		return 0, err
	}
	defer l.close()
	facts := <-read
	l.call.Score = facts.Process.OOMScoreAdj
	ended := t.processes.Launch(t.journal.ID)
	defer ended()
	if _, err := t.call(ctx, l.call); err != nil {
		printed := l.stderrOf()
		err = runtimecall.Explain(err, printed)
		t.keepFailure(err, append(runtimecall.ReadTail(l.call.LogFile), printed...))
		err = t.starter.explain(err)
		l.discard()
		ended() // runsc's delete waits for the reaping of the sandbox, which waits for ended()
		t.discard()
		return 0, err
	}
	pid, err := t.running(ctx, l, facts, ended)
	if err != nil {
		l.discard()
		ended()
		t.discard()
		return 0, fmt.Errorf("the runtime reported a start, but %w", err)
	}
	return pid, nil
}

// keepFailure writes the runtime's output to FailureLog, unless the pod itself or an abort is the
// cause of failure.
func (t *task) keepFailure(failure error, printed []byte) {
	path := t.journal.Options.FailureLog
	if path == "" || errors.Is(failure, context.Canceled) || runtimecall.IsOfPod(failure.Error()) {
		return
	}
	text := fmt.Appendf(nil, "%s container %s: %v\n%s", time.Now().UTC().Format(time.RFC3339), t.id, failure, printed[max(0, len(printed)-maxFailureLog):])
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, text, 0o600)); err != nil {
		log.G(t.context()).WithError(err).Warn("Failed to keep the output of the runtime")
	}
}

func (t *task) prepareLaunch() (_ *firstLaunch, retErr error) {
	j := &t.journal
	l := &firstLaunch{launch: launch{pidFile: filepath.Join(t.dir, "pid")}}
	defer func() {
		if retErr != nil {
			l.close()
		}
	}()
	var err error
	if l.output, err = output.Open(t.context(), &j.Options); err != nil {
		return nil, fmt.Errorf("open container log: %w", err)
	}
	l.drop = func() { l.output.Discard(l.sources...) }
	l.call = &runtimecall.Call{LogFile: filepath.Join(t.dir, "runtime.log")}
	if err := t.starter.prepare(l); err != nil {
		return nil, err
	}
	l.call.Args = append(l.call.Args, "--detach", "--bundle", j.Bundle, "--pid-file", l.pidFile)
	if !j.Terminal {
		// Open the supervisor's ends first, so that the container always has a reader.
		if l.sources, err = l.output.OpenSources(j.Stdout, j.Stderr); err != nil {
			return nil, err
		}
	}
	if err := l.openIO(t.first, stdio.OutlivesReader, &j.Options); err != nil {
		return nil, err
	}
	if l.stderr != nil {
		l.call.Stdio = &[3]int{l.stdio.FDs[0], l.stdio.FDs[1], int(l.stderr.Fd())}
	}
	l.call.Args = append(l.call.Args, t.id)
	return l, nil
}

// running takes over the started process. It calls adopted as soon as it has adopted the process:
// until then, this launch delays the reaping of other containers' orphans.
func (t *task) running(ctx context.Context, l *firstLaunch, facts bundle.Facts, adopted func()) (_ int, retErr error) {
	got, err := t.kernel.adopt(ctx, &l.launch, facts)
	if err != nil {
		return 0, err
	}
	defer func() {
		if retErr != nil {
			got.release(t.processes)
		}
	}()
	adopted()
	pid := got.identity.PID
	processes.AwaitProgram(ctx, pid, got.pidfd)
	if got.master, err = l.terminal(); err != nil {
		return 0, err
	}
	if got.master != nil {
		l.sources = []output.Source{l.output.TerminalSource(got.master)}
	}

	t.mu.Lock()
	defer t.mu.Unlock()
	j := &t.journal
	j.State, j.Process, j.Member = journal.TaskRunning, got.identity, got.member
	j.OwnPIDs = processes.IsFirstOfNamespace(pid)
	asked := cgroups.Asked(facts.Linux.CgroupsPath, t.id, j.Options.SystemdCgroup)
	j.Cgroup = cgroups.Of(t.supervisor.hierarchies, pid, asked)
	oom := cgroups.CountOOM(ctx, t.processes, j.Cgroup, t.supervisor.loggedOOM(ctx, j.Cgroup, asked))
	if got.member {
		j.IgnoredOOM = oom.IgnoreAll()
	}
	if err := t.save(); err != nil {
		oom.Close()
		return 0, err
	}
	t.first.run(got, l.stdin)
	t.output = l.output
	t.oom = oom
	l.taken = true
	l.output.Start(l.sources...)
	if err := t.kernel.watch(); err != nil {
		// The node is out of memory or of epoll watches; a retry would not help.
		log.G(ctx).WithError(err).Error("Failed to watch container; its exit will go unnoticed")
	}
	t.carryTerminalInput()
	return pid, nil
}

// carryTerminalInput copies the task's stdin FIFO to its terminal. t.mu is held.
func (t *task) carryTerminalInput() {
	if t.first.master == nil || t.first.stdin == nil {
		return
	}
	from, err := stdio.OpenReader(t.journal.Stdin)
	if err != nil {
		log.G(t.context()).WithError(err).Warn("Failed to open terminal input; the terminal gets no input")
		return
	}
	go t.output.Feed(t.context(), from, t.first.master)
}

// loggedOOM returns a function that counts the out-of-memory kills of a cgroup in the kernel's log;
// nil if the cgroup's own counter stays readable, or the cgroup's path is not known.
func (s *supervisor) loggedOOM(ctx context.Context, c cgroups.Cgroup, asked string) func() uint64 {
	at := cgroups.LoggedAt(s.hierarchies, c, asked)
	if at == "" {
		return nil
	}
	return func() uint64 { return s.kernelLog.Kills(ctx, at) }
}
