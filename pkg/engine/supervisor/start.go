package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/engine/crilog"
	"github.com/berth-cri/berth/pkg/engine/supervisor/bundle"
	"github.com/berth-cri/berth/pkg/engine/supervisor/cgroups"
	"github.com/berth-cri/berth/pkg/engine/supervisor/journal"
	"github.com/berth-cri/berth/pkg/engine/supervisor/output"
	"github.com/berth-cri/berth/pkg/engine/supervisor/processes"
	"github.com/berth-cri/berth/pkg/engine/supervisor/runtimecall"
	"github.com/berth-cri/berth/pkg/engine/supervisor/stdio"
)

// startFailed is the exit status of a container that never ran.
const startFailed = 128

// maxFailureLog bounds what is kept of a runtime that failed.
const maxFailureLog = 64 << 10

// start starts the container, once. It goes on when the caller leaves: what it
// began is either running or gone when it ends.
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

// launch runs `<runtime> run`, or `restore`. When it fails nothing is left.
func (t *task) launch(ctx context.Context) (int, error) {
	read := make(chan bundle.Facts, 1)
	go func() { read <- bundle.Read(t.journal.Bundle) }()

	l, err := t.prepareLaunch()
	if err != nil {
		t.discarded(nil)
		return 0, err
	}
	defer l.close()
	defer t.starter.done()
	facts := <-read
	l.call.Score = facts.Process.OOMScoreAdj
	ended := t.processes.Launch(t.journal.ID)
	defer ended()
	if _, err := t.call(ctx, l.call); err != nil {
		said := l.stderrOf()
		err = runtimecall.Explain(err, said)
		t.keepFailure(err, append(runtimecall.ReadTail(l.call.LogFile), said...))
		err = t.starter.explain(err)
		l.discard()
		ended() // runsc's delete waits until what is left of the sandbox is reaped
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

// firstLaunch is the launch of a container's first process.
type firstLaunch struct {
	launch
	output  *output.Output
	sources []output.Source
	// stderr is what a process without one has in its place, so that the words of a runtime
	// that fails are known; nil if it has one.
	stderr *os.File
}

func (l *firstLaunch) close() {
	if l.stderr != nil {
		l.stderr.Close()
	}
	l.launch.close()
}

// stderrOf is what the runtime wrote to the stderr that it had for the container.
func (l *firstLaunch) stderrOf() []byte {
	for _, s := range l.sources {
		if s.Name == crilog.Stderr {
			return runtimecall.ReadWaiting(s.File)
		}
	}
	return runtimecall.Captured(l.stderr)
}

// keepFailure keeps all that the runtime wrote when it could not start the container.
func (t *task) keepFailure(failure error, said []byte) {
	path := t.journal.Options.FailureLog
	if path == "" || errors.Is(failure, context.Canceled) || runtimecall.IsOfPod(failure.Error()) {
		return
	}
	text := fmt.Appendf(nil, "%s container %s: %v\n%s", time.Now().UTC().Format(time.RFC3339), t.id, failure, said[max(0, len(said)-maxFailureLog):])
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
	if err := t.starter.prepare(l.call); err != nil {
		return nil, err
	}
	l.call.Args = append(l.call.Args, "--detach", "--bundle", j.Bundle, "--pid-file", l.pidFile)
	if !j.Terminal {
		// Our ends first, so that the container always has a reader.
		if l.sources, err = l.output.OpenSources(j.Stdout, j.Stderr); err != nil {
			return nil, err
		}
	}
	if err := l.openIO(t.first, stdio.OutlivesReader, &j.Options); err != nil {
		return nil, err
	}
	// A checkpoint by CRIU has the files of its processes in it, which it cannot open again.
	if l.stdio != nil && j.Stderr == "" && !l.call.ByCRIU {
		if l.stderr, err = runtimecall.Capture("stderr"); err != nil {
			return nil, err
		}
		l.call.Stdio = &[3]int{l.stdio.FDs[0], l.stdio.FDs[1], int(l.stderr.Fd())}
	}
	l.call.Args = append(l.call.Args, t.id)
	return l, nil
}

// running takes over what the runtime has started, and calls adopted as soon as its
// process is a known child: others' orphans wait for that.
func (t *task) running(ctx context.Context, l *firstLaunch, facts bundle.Facts, adopted func()) (_ int, retErr error) {
	member := t.journal.Options.OwnKernel && facts.IsMember()
	adopt := t.processes.AdoptSoon
	if member {
		// The sandbox's process, which its first container answers for.
		adopt = func(_ context.Context, pid, pidfd int) error { return t.processes.Adopt(pid, pidfd) }
	}
	got, err := l.takeOver(ctx, adopt)
	if err != nil {
		return 0, err
	}
	defer func() {
		if retErr != nil {
			got.letGo(t.processes)
		}
	}()
	if !got.child && !t.journal.Options.OwnKernel {
		return 0, got.notChild()
	}
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
	j.State, j.Process, j.Member = journal.TaskRunning, got.identity, member
	j.OwnPIDs = processes.IsFirstOfNamespace(pid)
	asked := cgroups.Asked(facts.Linux.CgroupsPath, t.id, j.Options.SystemdCgroup)
	j.Cgroup = cgroups.Of(t.supervisor.hierarchies, pid, asked)
	oom := cgroups.CountOOM(ctx, t.processes, j.Cgroup, t.supervisor.loggedOOM(ctx, j.Cgroup, asked))
	if member {
		j.ExcusedOOM = oom.ExcuseAll()
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
	if err := t.watchFirst(); err != nil {
		// Out of memory or of watches: nothing that could be waited for.
		log.G(ctx).WithError(err).Error("Failed to watch container; its exit will go unnoticed")
	}
	t.carryTerminalInput()
	return pid, nil
}

// watchFirst makes the end of the first process known. t.mu is held.
func (t *task) watchFirst() error {
	if t.journal.Member {
		go t.within.awaitExit()
		return nil
	}
	return t.processes.Ended(t.first.pidfd, t.ended)
}

// carryTerminalInput carries what is written into the task's stdin FIFO to its
// terminal. t.mu is held.
func (t *task) carryTerminalInput() {
	if t.first.master == nil || t.first.stdin == nil {
		return
	}
	from, err := stdio.OpenReader(t.journal.Stdin)
	if err != nil {
		log.G(t.context()).WithError(err).Warn("Failed to open terminal input; the terminal gets none")
		return
	}
	go t.output.Feed(t.context(), from, t.first.master)
}

// loggedOOM returns what counts the kills of a cgroup by the kernel's log, or nil
// where its counter does for that. asked is where the cgroup should be, if it was
// gone before it was found.
func (s *Supervisor) loggedOOM(ctx context.Context, c cgroups.Cgroup, asked string) func() uint64 {
	unified := slices.IndexFunc(s.hierarchies, func(h cgroups.Hierarchy) bool { return h.Controller == "" })
	if unified < 0 || slices.ContainsFunc(s.hierarchies, func(h cgroups.Hierarchy) bool { return h.Controller == "memory" }) {
		return nil
	}
	if inside, ok := strings.CutPrefix(c.Unified, s.hierarchies[unified].Mount); ok && inside != "" {
		asked = inside
	}
	if asked == "" || asked == "/" {
		return nil
	}
	return func() uint64 { return s.kernelLog.Kills(ctx, asked) }
}
