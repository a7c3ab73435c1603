package supervisor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/mountpoint"
	"github.com/berth-cri/berth/pkg/engine/procfs"
)

const (
	// defaultCallTimeout bounds a runtime call when the options do not.
	defaultCallTimeout = 2 * time.Minute
	// cleanupTimeout bounds the calls that undo what another call began.
	cleanupTimeout = 20 * time.Second
	// killedTimeout is how long a killed runtime may take to be gone.
	killedTimeout = 5 * time.Second
	// maxCaptured is how much of a runtime's own output is read.
	maxCaptured = 256 * 1024
	// maxMessage bounds the part of an error that a runtime wrote.
	maxMessage = 700
)

// call is one invocation of a runtime.
type call struct {
	options *Options
	args    []string // the subcommand and what follows it
	logFile string   // where the runtime writes its errors; empty for stderr
	// stdio is what the runtime hands on to a container. Without it the
	// runtime gets no input and its output is captured.
	stdio *[3]int
	// flags come before the configuration's own.
	flags []string
	// deathSignal is sent to the runtime when this process dies.
	deathSignal syscall.Signal
	// score is the oom_score_adj that the runtime starts with, and whatever it starts;
	// nil for that of this process.
	score *int
	// environment is added to what all runtimes get.
	environment []string
	// byCRIU is set when the runtime waits for CRIU, of which it may never hear again.
	byCRIU bool
	// begun is told which process the runtime is; the call ends if it fails.
	begun func(runtime Process) error
}

// argv is the whole command line. The flags of the configuration come after
// ours, so that they win.
func (c *call) argv() []string {
	o := c.options
	argv := []string{o.Runtime, "--root", o.Root}
	if o.SystemdCgroup {
		argv = append(argv, "--systemd-cgroup")
	}
	if c.logFile != "" {
		argv = append(argv, "--log", c.logFile, "--log-format", "json")
	}
	argv = append(append(argv, c.flags...), o.GlobalFlags...)
	return append(argv, c.args...)
}

// errCall is a runtime that ended with another status than 0.
type errCall struct {
	verb    string
	status  uint32
	message string
	// question is a command line that shows whether the runtime runs at all.
	question string
}

func (e *errCall) Error() string {
	if e.message != "" {
		return e.message
	}
	return fmt.Sprintf("%s; see whether %q works, and what the kernel logged (dmesg)", e.end(), e.question)
}

// end is how the call ended, without its words.
func (e *errCall) end() string {
	if e.status > 128 {
		return fmt.Sprintf("the runtime's %s was killed by signal %d", e.verb, e.status-128)
	}
	return fmt.Sprintf("the runtime's %s exited with status %d", e.verb, e.status)
}

// invoke runs a call to its end and returns what the runtime printed. The call
// is ended by killing its process group when ctx ends or the options' bound is
// over, which is context.DeadlineExceeded.
func (p *processes) invoke(ctx context.Context, c *call) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, c.options.callLimit())
	defer cancel()

	return p.invokeForever(ctx, c)
}

// invokeForever is invoke without the options' bound.
func (p *processes) invokeForever(ctx context.Context, c *call) ([]byte, error) {
	r, err := p.begin(c)
	if err != nil {
		return nil, err
	}
	defer r.close()
	if c.begun != nil {
		if err := c.begun(r.process()); err != nil {
			r.end()
			return nil, err
		}
	}
	var lost <-chan struct{} // never
	if c.byCRIU {
		lost = r.lostCRIU()
	}
	select {
	case <-r.ended:
		return r.result()
	case <-lost:
		r.end()
		return nil, errLostCRIU
	case <-ctx.Done():
		r.end()
		return nil, c.aborted(ctx, r.wrote())
	}
}

// callLimit bounds a runtime call.
func (o *Options) callLimit() time.Duration {
	if o.CallTimeout <= 0 {
		return defaultCallTimeout
	}
	return o.CallTimeout
}

// errNoRuntime says that a runtime was uninstalled, or may not be executed.
var errNoRuntime = errors.New("the runtime binary cannot be run; reinstall it")

// removeState removes what a runtime that is gone keeps of an ended container, as
// its own delete would: nobody else knows of it, and a pod must not stay for ever
// because its runtime was uninstalled.
func (o *Options) removeState(id string) error {
	if o.OwnKernel {
		files, err := filepath.Glob(filepath.Join(o.Root, id+"_sandbox:*"))
		for _, file := range append(files, filepath.Join(o.Root, "runsc-"+id+".sock")) {
			err = errors.Join(err, ignoreNotExist(os.Remove(file)))
		}
		return err
	}
	dir := filepath.Join(o.Root, id)
	if err := mountpoint.UnmountBelow(dir); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

// invocation is a runtime call that has begun.
type invocation struct {
	processes  *processes
	call       *call
	pid, pidfd int
	stdout     *os.File // captured; nil when it goes to the container
	stderr     *os.File
	ended      chan struct{}
}

func (p *processes) begin(c *call) (_ *invocation, retErr error) {
	r := &invocation{processes: p, call: c, ended: make(chan struct{})}
	defer func() {
		if retErr != nil {
			r.closeFiles()
		}
	}()
	files, err := r.openFiles()
	if err != nil {
		return nil, err
	}
	if c.stdio == nil {
		defer unix.Close(int(files[0]))
	}
	r.pid, r.pidfd, err = p.fork(c, files)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
			err = fmt.Errorf("%w: %w: %w", errNoRuntime, err, errdefs.ErrFailedPrecondition)
		}
		return nil, err
	}
	if err := p.ended(r.pidfd, func() { close(r.ended) }); err != nil {
		r.kill()
		p.reapWhenDead(r.pid, r.pidfd)
		return nil, err
	}
	return r, nil
}

func (r *invocation) openFiles() ([]uintptr, error) {
	if s := r.call.stdio; s != nil {
		return []uintptr{uintptr(s[0]), uintptr(s[1]), uintptr(s[2])}, nil
	}
	var err error
	if r.stdout, err = capture("stdout"); err != nil {
		return nil, err
	}
	if r.stderr, err = capture("stderr"); err != nil {
		return nil, err
	}
	null, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return []uintptr{uintptr(null), r.stdout.Fd(), r.stderr.Fd()}, nil
}

// capture is a file that needs no one to read it while it is written, as a pipe
// would.
func capture(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

func captured(f *os.File) []byte {
	if f == nil {
		return nil
	}
	b, _ := io.ReadAll(io.NewSectionReader(f, 0, maxCaptured))
	return b
}

func (r *invocation) kill() { _ = unix.Kill(-r.pid, unix.SIGKILL) }

// process is the runtime's.
func (r *invocation) process() Process {
	p := Process{PID: r.pid}
	if stat, err := procfs.StatOf(r.pid); err == nil { // it is not reaped before its end is asked for
		p.StartTime = stat.Started
	}
	return p
}

// end kills a call that takes too long or that nobody wants any more.
func (r *invocation) end() {
	r.kill()
	select {
	case <-r.ended:
		_, _ = r.reap()
	case <-time.After(killedTimeout):
		// It hangs in the kernel. Whenever it ends it is an orphan's case.
		go r.bury(r.pidfd)
		r.pidfd = -1
	}
}

// aborted is the error of a call that was killed because ctx has ended, after it said that.
func (c *call) aborted(ctx context.Context, said []byte) error {
	verb := c.args[0]
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("the runtime's %s was killed: %w", verb, context.Canceled)
	}
	wrote := "it wrote no error"
	if last := runtimeMessage(said); last != "" {
		wrote = "it last wrote: " + last
	}
	longer := ""
	if verb == "run" || verb == "create" || verb == "restore" {
		longer = "; if it only needs longer, raise the handler's container_create_timeout, and start_timeout if that is set"
	}
	return fmt.Errorf("the runtime's %s timed out and was killed (%s); see whether %q hangs too, or what it waits for, as a disk or a cgroup (dmesg)%s; %s: %w",
		verb, strings.Join(c.argv(), " "), c.question(), longer, wrote, context.DeadlineExceeded)
}

// question asks the runtime for its version, with the same flags.
func (c *call) question() string {
	asks := call{options: c.options, args: []string{"--version"}}
	return strings.Join(asks.argv(), " ")
}

// wrote is what the runtime wrote to its log and to a stderr of its own.
func (r *invocation) wrote() []byte {
	said := captured(r.stderr)
	if r.call.logFile != "" {
		said = append(said, readTail(r.call.logFile)...)
	}
	return said
}

func (r *invocation) bury(pidfd int) {
	<-r.ended
	_, _ = r.processes.reap(r.pid, pidfd)
	unix.Close(pidfd)
}

func (r *invocation) reap() (uint32, error) { return r.processes.reap(r.pid, r.pidfd) }

func (r *invocation) result() ([]byte, error) {
	status, err := r.reap()
	if err != nil {
		return nil, fmt.Errorf("reap the runtime: %w", err)
	}
	out := captured(r.stdout)
	if status == 0 {
		return out, nil
	}
	return out, &errCall{verb: r.call.args[0], status: status, message: runtimeMessage(r.wrote()), question: r.call.question()}
}

func (r *invocation) close() {
	r.closeFiles()
	if r.pidfd >= 0 {
		unix.Close(r.pidfd)
	}
}

func (r *invocation) closeFiles() {
	for _, f := range []*os.File{r.stdout, r.stderr} {
		if f != nil {
			f.Close()
		}
	}
}

// environment is what a runtime gets: that of this process, without what service managers and
// the daemon put there for us, and with what one call adds. runc would take NOTIFY_SOCKET for
// its container's.
func environment(added ...string) []string {
	var env []string
	for _, kv := range os.Environ() {
		switch name, _, _ := strings.Cut(kv, "="); name {
		case "NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "WATCHDOG_USEC", "WATCHDOG_PID", InheritEnv:
		default:
			if !slices.ContainsFunc(added, func(kv string) bool { return strings.HasPrefix(kv, name+"=") }) {
				env = append(env, kv)
			}
		}
	}
	return append(env, added...)
}

// readTail returns the end of a log file.
func readTail(path string) []byte {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil
	}
	b, _ := io.ReadAll(io.NewSectionReader(f, max(0, info.Size()-maxCaptured), maxCaptured))
	return b
}

// textMessage is an error as logrus prints it without a terminal.
var textMessage = regexp.MustCompile(`level=(?:error|fatal)\b.*? msg=("(?:[^"\\]|\\.)*"|\S+)`)

// usage begins what follows a mistake in the command line: runsc's and crun's.
var usage = regexp.MustCompile("^(Usage:|Try `)")

// runtimeMessage finds in a runtime's log or stderr what it says went wrong:
// the last error of a JSON log, else of a text log, else the last line before a usage.
func runtimeMessage(said []byte) string {
	var fromJSON, fromText, last string
	for line := range bytes.Lines(said) {
		line = bytes.TrimSpace(line)
		if len(line) == 0 {
			continue
		}
		var entry struct{ Level, Msg string }
		if json.Unmarshal(line, &entry) == nil {
			if (entry.Level == "error" || entry.Level == "fatal") && entry.Msg != "" {
				fromJSON = entry.Msg
			}
			continue
		}
		if m := textMessage.FindSubmatch(line); m != nil {
			fromText = string(m[1])
			if s, err := strconv.Unquote(fromText); err == nil {
				fromText = s
			}
		}
		if last != "" && usage.Match(line) {
			break
		}
		last = string(line)
	}
	for _, m := range []string{fromJSON, fromText, last} {
		if m = strings.TrimSpace(m); m != "" {
			return shorten(m)
		}
	}
	return ""
}

// shorten keeps the start and the end of a text: a runtime's message begins
// with what it did and ends with what went wrong.
func shorten(s string) string {
	s = strings.ToValidUTF8(s, "?")
	if len(s) <= maxMessage {
		return s
	}
	const half = maxMessage/2 - 4
	return strings.ToValidUTF8(s[:half], "") + " […] " + strings.ToValidUTF8(s[len(s)-half:], "")
}

// unknownToRuntime says whether a runtime refused a call because it has no such
// container. There is no code for it, only these words of runc, crun and runsc.
func unknownToRuntime(err error) bool {
	var e *errCall
	if !errors.As(err, &e) {
		return false
	}
	return slices.ContainsFunc([]string{"does not exist", "No such file or directory", "file does not exist", "not found"}, func(words string) bool {
		return strings.Contains(e.message, words)
	})
}
