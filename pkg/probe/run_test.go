package probe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/internal/test"
)

func TestWhatMayPass(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want bool
	}{
		"nothing":            {nil, false},
		"no process":         {fmt.Errorf("fork: %w: %w", syscall.EAGAIN, errdefs.ErrUnavailable), true},
		"it is written":      {&os.PathError{Op: "fork/exec", Path: "/r", Err: syscall.ETXTBSY}, true},
		"no memory":          {syscall.ENOMEM, true},
		"open files":         {os.NewSyscallError("pipe2", syscall.EMFILE), true},
		"open files of all":  {os.NewSyscallError("pipe2", syscall.ENFILE), true},
		"too slow":           {context.DeadlineExceeded, true},
		"it is not there":    {&os.PathError{Op: "stat", Path: "/r", Err: syscall.ENOENT}, false},
		"it may not be run":  {&os.PathError{Op: "fork/exec", Path: "/r", Err: syscall.EACCES}, false},
		"for another kernel": {syscall.ENOEXEC, false},
		"of its class":       {errdefs.ErrUnavailable, false},
	} {
		test.Equal(t, name, Transient(c.err), c.want)
	}
}

// What a real program ends by, and writes, means the same.
func TestProgramsThatMayRunAgain(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct {
		body string
		want bool
	}{
		"killed":        {"kill -9 $$", true},
		"crashed":       {"kill -11 $$", false},
		"no":            {"echo no >&2; exit 1", false},
		"no process":    {"echo 'runtime: failed to create new OS thread (have 2 already; errno=11)' >&2; exit 2", true},
		"no memory":     {"echo 'cannot allocate memory' >&2; exit 1", true},
		"no open files": {"echo 'pipe: Too many open files' >&2; exit 1", true},
	} {
		_, err := run(t.Context(), script(t, dir, "r", c.body))
		if err == nil || Transient(err) != c.want || !errdefs.IsUnavailable(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	path := filepath.Join(dir, "busy")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o755) //nolint:gosec // it is a program
	test.Must(t, err)
	defer f.Close()
	if _, err := run(t.Context(), path); !Transient(err) {
		t.Errorf("a program that is written: %v", err)
	}
}

// features that were killed are no features document, and not the lack of one.
func TestAnAnswerThatWasCutOffIsNone(t *testing.T) {
	dir := t.TempDir()
	path := script(t, dir, "runc", `case "$1" in --version) echo "runc version 1.5.2" ;; *) kill -9 $$ ;; esac`)
	if rt, err := New(nil).Probe(t.Context(), oci(path)); err == nil || !Transient(err) {
		t.Errorf("got %+v, %v", rt, err)
	}
}

func TestAskAsksAgain(t *testing.T) {
	dir := t.TempDir()
	said := filepath.Join(dir, "said")
	say := func(text string) {
		t.Helper()
		test.Must(t, os.WriteFile(said, []byte(text), 0o600))
	}
	// A wrapper: its answer depends on another file.
	path := script(t, dir, "wrapper", `[ "$1" = --version ] && . `+said)
	p := New(nil)
	say("echo runc version 1.5.2")
	first := test.Value(p.Probe(t.Context(), oci(path)))(t)
	if same, err := p.Ask(t.Context(), oci(path)); err != nil || same != first {
		t.Errorf("the same answer is another Runtime: %+v, %v", same, err)
	}
	say("echo runc version 1.6.0")
	if old, err := p.Probe(t.Context(), oci(path)); err != nil || old != first {
		t.Errorf("a binary that has not changed was asked: %+v, %v", old, err)
	}
	now, err := p.Ask(t.Context(), oci(path))
	if err != nil || now.Version != "1.6.0" {
		t.Fatalf("got %+v, %v", now, err)
	}
	if known, err := p.Probe(t.Context(), oci(path)); err != nil || known != now {
		t.Errorf("got %+v, %v", known, err)
	}
	say("kill -9 $$")
	if _, err := p.Ask(t.Context(), oci(path)); !Transient(err) {
		t.Errorf("got %v", err)
	}
	if known, err := p.Probe(t.Context(), oci(path)); err != nil || known != now {
		t.Errorf("after what may pass: %+v, %v", known, err)
	}
	say("exit 1")
	if _, err := p.Ask(t.Context(), oci(path)); err == nil || Transient(err) {
		t.Errorf("got %v", err)
	}
	if known, err := p.Probe(t.Context(), oci(path)); err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("a broken runtime is known as %+v", known)
	}
}

func TestOutputIsBounded(t *testing.T) {
	path := script(t, t.TempDir(), "runtime", "head -c 4000000 /dev/zero; head -c 4000000 /dev/zero >&2\n")
	if out, err := run(t.Context(), path); err != nil || len(out) != maxOutput {
		t.Errorf("%d bytes, %v", len(out), err)
	}
}
