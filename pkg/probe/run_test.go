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
		"no error":                        {nil, false},
		"no process":                      {fmt.Errorf("fork: %w: %w", syscall.EAGAIN, errdefs.ErrUnavailable), true},
		"open for writing":                {&os.PathError{Op: "fork/exec", Path: "/r", Err: syscall.ETXTBSY}, true},
		"no memory":                       {syscall.ENOMEM, true},
		"too many open files":             {os.NewSyscallError("pipe2", syscall.EMFILE), true},
		"too many open files on the node": {os.NewSyscallError("pipe2", syscall.ENFILE), true},
		"too slow":                        {context.DeadlineExceeded, true},
		"missing":                         {&os.PathError{Op: "stat", Path: "/r", Err: syscall.ENOENT}, false},
		"permission denied":               {&os.PathError{Op: "fork/exec", Path: "/r", Err: syscall.EACCES}, false},
		"for another kernel":              {syscall.ENOEXEC, false},
		"only the class":                  {errdefs.ErrUnavailable, false},
	} {
		test.Equal(t, name, Transient(c.err), c.want)
	}
}

// Exit statuses and output of real programs are classified in the same way.
func TestProgramsThatMayRunAgain(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct {
		body string
		want bool
	}{
		"killed":        {"kill -9 $$", true},
		"crashed":       {"kill -11 $$", false},
		"failed":        {"echo no >&2; exit 1", false},
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
		t.Errorf("a program that is open for writing: %v", err)
	}
}

// A killed "features" command fails the probe. The runtime may still have features.
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
		t.Errorf("the same output gave another Runtime: %+v, %v", same, err)
	}
	say("echo runc version 1.6.0")
	if old, err := p.Probe(t.Context(), oci(path)); err != nil || old != first {
		t.Errorf("Probe ran a binary that has not changed: %+v, %v", old, err)
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
		t.Errorf("after a transient failure: %+v, %v", known, err)
	}
	say("exit 1")
	if _, err := p.Ask(t.Context(), oci(path)); err == nil || Transient(err) {
		t.Errorf("got %v", err)
	}
	if known, err := p.Probe(t.Context(), oci(path)); err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("Probe of a broken runtime returned %+v", known)
	}
}

func TestOutputIsBounded(t *testing.T) {
	path := script(t, t.TempDir(), "runtime", "head -c 4000000 /dev/zero; head -c 4000000 /dev/zero >&2\n")
	if out, err := run(t.Context(), path); err != nil || len(out) != maxOutput {
		t.Errorf("%d bytes, %v", len(out), err)
	}
}
