package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/crilog"
	"github.com/berth-cri/berth/pkg/engine/procfs"
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
		t.finish(Exit{Status: startFailed, ExitedAt: time.Now().UnixNano()})
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
	t.journal.State = TaskStarting
	if err := t.save(); err != nil {
		t.journal.State = TaskCreated
		return err
	}
	t.first.state, t.first.abort = starting, abort
	return nil
}

// launch runs `<runtime> run`, or `restore`. When it fails nothing is left.
func (t *task) launch(ctx context.Context) (int, error) {
	facts := make(chan bundleFacts, 1)
	go func() { facts <- readBundle(t.journal.Bundle) }()

	l, err := t.prepareLaunch()
	if err != nil {
		t.discarded(nil)
		return 0, err
	}
	defer l.close()
	if t.journal.byCRIU() {
		defer criuRestore{t}.done()
	}
	bundle := <-facts
	l.call.score = bundle.Process.OOMScoreAdj
	ended := t.processes.launch(t.journal.ID)
	defer ended()
	if _, err := t.call(ctx, l.call); err != nil {
		said := l.stderrOf()
		err = explain(err, said)
		t.keepFailure(err, append(readTail(l.call.logFile), said...))
		if t.journal.byCRIU() {
			err = ExplainRestore(err, criuRestore{t}.work())
		}
		l.discard()
		ended() // runsc's delete waits until what is left of the sandbox is reaped
		t.discard()
		return 0, err
	}
	pid, err := t.running(ctx, l, bundle, ended)
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
	output  *output
	sources []source
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
		if s.name == crilog.Stderr {
			return readWaiting(s.file)
		}
	}
	return captured(l.stderr)
}

// explain adds to an error without words what the runtime wrote to the stderr
// that it had for the container: it does so when it fails before it can write its
// log, as with a shared library that is missing.
func explain(err error, said []byte) error {
	var failed *errCall
	if !errors.As(err, &failed) || failed.message != "" {
		return err
	}
	if last := runtimeMessage(said); last != "" {
		return fmt.Errorf("%s and wrote to stderr: %s", failed.end(), last)
	}
	return err
}

// IsOfPod knows what runtimes say when a container's program is not in its image, or cannot
// be run (runc and crun, Go's exec, runsc), and when its memory limit is too low (runc).
func IsOfPod(said string) bool {
	return slices.ContainsFunc([]string{"executable file", `exec: "`, "error finding executable", "memory limit too low", "unable to set memory limit"}, func(words string) bool {
		return strings.Contains(said, words)
	})
}

// keepFailure keeps all that the runtime wrote when it could not start the container.
func (t *task) keepFailure(failure error, said []byte) {
	path := t.journal.Options.FailureLog
	if path == "" || errors.Is(failure, context.Canceled) || IsOfPod(failure.Error()) {
		return
	}
	text := fmt.Appendf(nil, "%s container %s: %v\n%s", time.Now().UTC().Format(time.RFC3339), t.id, failure, said[max(0, len(said)-maxFailureLog):])
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, text, 0o600)); err != nil {
		log.G(t.context()).WithError(err).Warn("Failed to keep the output of the runtime")
	}
}

// Complaint is what a runtime that failed says in a FIFO, which was opened without
// blocking and has no other reader; empty if it says nothing.
func Complaint(f *os.File) string { return runtimeMessage(readWaiting(f)) }

// readWaiting returns what a FIFO holds at the moment.
func readWaiting(f *os.File) []byte {
	conn, err := f.SyscallConn()
	if err != nil {
		return nil
	}
	var said []byte
	chunk := make([]byte, 4096)
	_ = conn.Control(func(fd uintptr) {
		for len(said) < maxCaptured {
			n, err := unix.Read(int(fd), chunk)
			if err != nil || n <= 0 {
				return
			}
			said = append(said, chunk[:n]...)
		}
	})
	return said
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
	if l.output, err = openOutput(t.context(), &j.Options); err != nil {
		return nil, fmt.Errorf("open container log: %w", err)
	}
	l.drop = func() { l.output.discard(l.sources...) }
	l.call = &call{logFile: filepath.Join(t.dir, "runtime.log"), byCRIU: t.journal.byCRIU()}
	if l.call.flags, l.call.args, err = (making{t}).verb(); err != nil {
		return nil, err
	}
	if t.journal.byCRIU() {
		l.call.environment = []string{criuConfigEnv + "=" + criuRestore{t}.once()}
	}
	l.call.args = append(l.call.args, "--detach", "--bundle", j.Bundle, "--pid-file", l.pidFile)
	if j.Options.NoPivotRoot && !t.journal.byCRIU() { // CRIU pivots; crun's restore refuses the flag
		l.call.args = append(l.call.args, "--no-pivot")
	}
	if j.Options.NoNewKeyring && !t.journal.byCRIU() { // CRIU makes none
		l.call.args = append(l.call.args, "--no-new-keyring")
	}
	if !j.Terminal {
		// Our ends first, so that the container always has a reader.
		if l.sources, err = l.output.openSources(j.Stdout, j.Stderr); err != nil {
			return nil, err
		}
	}
	if err := l.openIO(t.first, stdio.OutlivesReader, &j.Options); err != nil {
		return nil, err
	}
	// A checkpoint by CRIU has the files of its processes in it, which it cannot open again.
	if l.stdio != nil && j.Stderr == "" && !t.journal.byCRIU() {
		if l.stderr, err = capture("stderr"); err != nil {
			return nil, err
		}
		l.call.stdio = &[3]int{l.stdio.FDs[0], l.stdio.FDs[1], int(l.stderr.Fd())}
	}
	l.call.args = append(l.call.args, t.id)
	return l, nil
}

// running takes over what the runtime has started, and calls adopted as soon as its
// process is a known child: others' orphans wait for that.
func (t *task) running(ctx context.Context, l *firstLaunch, facts bundleFacts, adopted func()) (_ int, retErr error) {
	member := t.journal.Options.OwnKernel && facts.isMember()
	adopt := t.processes.adoptSoon
	if member {
		// The sandbox's process, which its first container answers for.
		adopt = func(_ context.Context, pid, pidfd int) error { return t.processes.adopt(pid, pidfd) }
	}
	got, err := l.takeOver(ctx, adopt)
	if err != nil {
		return 0, err
	}
	defer func() {
		if retErr != nil {
			t.processes.letGo(got)
		}
	}()
	if !got.child && !t.journal.Options.OwnKernel {
		return 0, got.notChild()
	}
	adopted()
	pid := got.identity.PID
	awaitProgram(ctx, pid, got.pidfd)
	if got.master, err = l.terminal(); err != nil {
		return 0, err
	}
	if got.master != nil {
		l.sources = []source{l.output.terminalSource(got.master)}
	}

	t.mu.Lock()
	defer t.mu.Unlock()
	j := &t.journal
	j.State, j.Process, j.Member = TaskRunning, got.identity, member
	j.OwnPIDs = isFirstOfNamespace(pid)
	asked := askedCgroup(facts.Linux.CgroupsPath, t.id, j.Options.SystemdCgroup)
	j.Cgroup = t.supervisor.locateCgroup(pid, asked)
	oom := countOOM(ctx, t.processes, j.Cgroup, t.supervisor.loggedOOM(ctx, j.Cgroup, asked))
	if member {
		j.ExcusedOOM = oom.excuseAll()
	}
	if err := t.save(); err != nil {
		oom.close()
		return 0, err
	}
	t.first.run(got, l.stdin)
	t.output = l.output
	t.oom = oom
	l.taken = true
	l.output.start(l.sources...)
	if err := t.watchFirst(); err != nil {
		// Out of memory or of watches: nothing that could be waited for.
		log.G(ctx).WithError(err).Error("Failed to watch container; its exit will go unnoticed")
	}
	t.carryTerminalInput()
	return pid, nil
}

// runcInit is the name of the process in which runc prepares a container, until it
// becomes the container's program.
const runcInit = "runc:[2:INIT]\n"

// programPatience bounds the wait for a program whose file is slow to be read.
const programPatience = 10 * time.Second

// awaitProgram waits until a process has become the container's program, or has
// ended. runc answers a moment before: a signal that came then would end runc, and
// the program would never have run.
func awaitProgram(ctx context.Context, pid, pidfd int) {
	for begin := time.Now(); time.Since(begin) < programPatience && ctx.Err() == nil; {
		name, err := os.ReadFile(procfs.Path(pid, "comm"))
		if err != nil || string(name) != runcInit {
			return
		}
		if hasEnded(pidfd, time.Millisecond) {
			return
		}
	}
}

// watchFirst makes the end of the first process known. t.mu is held.
func (t *task) watchFirst() error {
	if t.journal.Member {
		go t.within.awaitExit()
		return nil
	}
	return t.processes.ended(t.first.pidfd, t.ended)
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
	o, master := t.output, t.first.master
	go copyInput(from, func(chunk []byte) error { return o.attached.write(t.context(), master, chunk) })
}

// bundleFacts is what matters here of a bundle's config.json.
type bundleFacts struct {
	Annotations map[string]string `json:"annotations"`
	Process     struct {
		OOMScoreAdj *int `json:"oomScoreAdj"`
	} `json:"process"`
	Linux struct {
		CgroupsPath string `json:"cgroupsPath"`
		Namespaces  []struct {
			Type string `json:"type"`
			Path string `json:"path"`
		} `json:"namespaces"`
	} `json:"linux"`
}

// readBundle reads what it can; a bundle without a readable spec is the
// runtime's to refuse.
func readBundle(bundle string) bundleFacts {
	var f bundleFacts
	b, err := os.ReadFile(filepath.Join(bundle, "config.json"))
	if err == nil {
		_ = json.Unmarshal(b, &f)
	}
	return f
}

// isMember says whether the container joins the sandbox of another one, by the
// annotations of containerd and CRI-O that runsc follows.
func (f bundleFacts) isMember() bool {
	return f.Annotations["io.kubernetes.cri.container-type"] == "container" ||
		f.Annotations["io.kubernetes.cri-o.ContainerType"] == "container"
}

// sandbox is the container whose sandbox a container runs in: itself, if it joins
// none.
func (f bundleFacts) sandbox(id string) string {
	if f.isMember() {
		for _, key := range []string{"io.kubernetes.cri.sandbox-id", "io.kubernetes.cri-o.SandboxID"} {
			if sandbox := f.Annotations[key]; sandbox != "" {
				return sandbox
			}
		}
	}
	return id
}

// loggedOOM returns what counts the kills of a cgroup by the kernel's log, or nil
// where its counter does for that. asked is where the cgroup should be, if it was
// gone before it was found.
func (s *Supervisor) loggedOOM(ctx context.Context, c Cgroup, asked string) func() uint64 {
	unified := slices.IndexFunc(s.hierarchies, func(h hierarchy) bool { return h.controller == "" })
	if unified < 0 || slices.ContainsFunc(s.hierarchies, func(h hierarchy) bool { return h.controller == "memory" }) {
		return nil
	}
	if inside, ok := strings.CutPrefix(c.Unified, s.hierarchies[unified].mount); ok && inside != "" {
		asked = inside
	}
	if asked == "" || asked == "/" {
		return nil
	}
	return func() uint64 { return s.kernelLog.Kills(ctx, asked) }
}

// locateCgroup says where the processes of a container are.
func (s *Supervisor) locateCgroup(pid int, asked string) Cgroup {
	own, errOwn := procfs.CgroupsOf(os.Getpid())
	container, err := procfs.CgroupsOf(pid)
	if err := errors.Join(errOwn, err); err != nil {
		return Cgroup{}
	}
	return locateCgroup(s.hierarchies, own, container, asked)
}
