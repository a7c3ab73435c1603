package probe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/pkg/printable"
)

const (
	// maxOutput is far above the size of any features document (runc's is 6 KiB).
	maxOutput = 1 << 20
	// pipeGrace is how long the children of a killed binary may keep its pipes open.
	pipeGrace = time.Second
	// maxQuote bounds the quotation of a binary's stderr in an error.
	maxQuote = 300
)

// run executes a binary with a minimal environment in a process group of its own, and kills the
// whole group when ctx ends.
func run(ctx context.Context, path string, args ...string) ([]byte, error) {
	var stdout, stderr limited
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "XDG_RUNTIME_DIR="}
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = pipeGrace
	err := cmd.Run()
	if errors.Is(err, exec.ErrWaitDelay) {
		// The binary exited successfully and left a child behind that holds its pipes.
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		err = nil
	}
	if err == nil {
		return stdout.text, nil
	}
	return stdout.text, failure(ctx, err, path, args, string(stderr.text))
}

func failure(ctx context.Context, err error, path string, args []string, stderr string) error {
	line := path + " " + strings.Join(args, " ")
	if ctx.Err() != nil {
		return transient{fmt.Errorf("%s timed out and was killed; check whether it also hangs in a shell, and in dmesg whether a disk or network file system hangs: %w", line, errdefs.ErrUnavailable)}
	}
	err = passing(err, stderr)
	quote := ""
	if s := strings.TrimSpace(stderr); s != "" {
		quote = fmt.Sprintf(" (%q)", printable.Clip(s, maxQuote))
	}
	return fmt.Errorf("%s: %w%s; reinstall the runtime or correct the handler's runtime_path: %w", line, err, quote, errdefs.ErrUnavailable)
}

// limited keeps the first maxOutput bytes and discards the rest, so that the writer never blocks.
// It does not embed a bytes.Buffer: os/exec would fill that with its ReadFrom, without a bound.
type limited struct{ text []byte }

func (l *limited) Write(p []byte) (int, error) {
	l.text = append(l.text, p[:min(maxOutput-len(l.text), len(p))]...)
	return len(p), nil
}

// transient marks an error that may pass by itself.
type transient struct{ error }

// Unwrap keeps the error class.
func (t transient) Unwrap() error { return t.error }

// Passing marks an error as transient.
func Passing(err error) error { return transient{err} }

// errnos are the kernel's errors for a temporary shortage, or for a program that is still being
// written.
var errnos = []error{syscall.EAGAIN, syscall.ETXTBSY, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE, syscall.EINTR}

// shortage lists messages of programs that exit because of a temporary shortage.
var shortage = []string{"resource temporarily unavailable", "cannot allocate memory", "out of memory", "too many open files", "failed to create new os thread"}

// Transient reports whether a probe is inconclusive because its cause may pass within seconds: a
// shortage of resources, a program that is being written, or a runtime that was too slow or was
// killed.
//
// An inconclusive probe leaves the cached answer as it is, and is repeated. A handler that was
// ready stays ready while such probes fail for less than 15 seconds. Any other handler is not ready
// until a probe succeeds. The result of a self-check pod after failed starts always counts.
func Transient(err error) bool {
	var t transient
	if errors.As(err, &t) || errors.Is(err, context.DeadlineExceeded) {
		return true
	}
	return slices.ContainsFunc(errnos, func(errno error) bool { return errors.Is(err, errno) })
}

// passing marks a program's error as transient by its signal or by its stderr.
func passing(err error, stderr string) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		if st, ok := exit.Sys().(syscall.WaitStatus); ok && st.Signaled() && st.Signal() == syscall.SIGKILL {
			return transient{err}
		}
	}
	said := strings.ToLower(stderr)
	for _, words := range shortage {
		if strings.Contains(said, words) {
			return transient{err}
		}
	}
	return err
}
