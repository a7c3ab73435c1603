package network

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
	"go.opentelemetry.io/otel/propagation"
)

// pluginExec runs plugins for libcni. Unlike libcni's own type, it kills the whole process group of
// a plugin when the context ends: a plugin that is a script, or waits for iptables, would otherwise
// leave a child that holds the pipes, and the call would hang as long as that child runs.
type pluginExec struct {
	version.PluginDecoder
}

var _ invoke.Exec = (*pluginExec)(nil)

func (*pluginExec) FindInPath(plugin string, paths []string) (string, error) {
	return find(plugin, paths)
}

// ExecPlugin runs a plugin and returns its stdout, or a runError if the plugin fails.
func (e *pluginExec) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	environ = append(environ, traceEnviron(ctx)...)
	for wait := busyWait; ; wait *= 2 {
		stdout, err := run(ctx, path, stdin, environ)
		if !errors.Is(err, syscall.ETXTBSY) || wait > busyWaitMax {
			return stdout, err
		}
		// The plugin's file is open for writing: it is being installed.
		select {
		case <-ctx.Done():
			return stdout, err
		case <-time.After(wait):
		}
	}
}

const (
	busyWait    = 20 * time.Millisecond
	busyWaitMax = 2 * time.Second
	// pipeWait is how long to wait for output after a plugin was killed.
	pipeWait = time.Second
	// maxOutput limits a plugin's result, which is stored with the pod.
	maxOutput = 1 << 20
)

func run(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	ctx, kill := context.WithCancelCause(ctx)
	defer kill(nil)
	stdout, stderr := &output{tooLong: kill}, &tail{max: 1 << 10}
	cmd := exec.CommandContext(ctx, path)
	cmd.Env = environ
	cmd.Stdin = bytes.NewReader(stdin)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	cmd.WaitDelay = pipeWait
	// If the daemon is killed, the plugin must not continue: the next daemon's DEL would race with
	// the plugin's ADD.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	// The kernel sends Pdeathsig when the thread that started the plugin exits, and threads that
	// were in a pod's namespaces exit before the process does. The lock reserves this thread for
	// the plugin.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := cmd.Run()
	if errors.Is(err, exec.ErrWaitDelay) && ctx.Err() == nil {
		err = nil // the plugin succeeded and left a child that keeps stdout open
	}
	if err != nil {
		return nil, pluginError(ctx, path, err, stdout.text, stderr.buf)
	}
	return stdout.text, nil
}

func pluginError(ctx context.Context, path string, err error, stdout, stderr []byte) error {
	e := &runError{Plugin: path, Cause: err, Stderr: string(stderr)}
	if ctx.Err() != nil {
		e.Cause = killed{context.Cause(ctx)}
		return e
	}
	var answer types.Error
	switch jsonErr := json.Unmarshal(stdout, &answer); {
	case jsonErr == nil:
		e.Code, e.Msg, e.Details = answer.Code, answer.Msg, answer.Details
	case len(stdout) > 0:
		e.Msg = "not a CNI result: " + cut(string(stdout), 200)
	case len(stderr) == 0:
		e.Msg = "no reason given"
	}
	return e
}

// killed is the reason why a plugin was killed: it timed out or wrote too much.
type killed struct{ error }

func (k killed) Error() string { return "killed before it finished: " + k.error.Error() }
func (k killed) Unwrap() error { return k.error }

// traceEnviron passes the span of the call to the plugin, in OpenTelemetry's environment variables.
func traceEnviron(ctx context.Context) []string {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	var out []string
	for key, value := range carrier {
		out = append(out, strings.ToUpper(key)+"="+value)
	}
	return out
}

var errTooLong = fmt.Errorf("it wrote more than %d bytes to stdout", maxOutput)

// output keeps a plugin's stdout and kills a plugin that exceeds maxOutput. It does not embed a
// bytes.Buffer, because os/exec would then call ReadFrom instead of Write.
type output struct {
	text    []byte
	tooLong context.CancelCauseFunc
}

func (o *output) Write(p []byte) (int, error) {
	if len(o.text)+len(p) > maxOutput {
		o.tooLong(errTooLong)
		return 0, errTooLong
	}
	o.text = append(o.text, p...)
	return len(p), nil
}

// tail keeps the last max bytes.
type tail struct {
	buf []byte
	max int
}

func (t *tail) Write(p []byte) (int, error) {
	t.buf = append(t.buf, p...)
	if over := len(t.buf) - t.max; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	return len(p), nil
}
