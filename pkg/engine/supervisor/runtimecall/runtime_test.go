package runtimecall

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/supervisor/journal"
)

func TestRuntimeMessage(t *testing.T) {
	for _, tt := range []struct{ name, output, want string }{
		{"empty output", "", ""},
		{"last error of a JSON log", `{"level":"error","msg":"first"}` + "\n" + `{"level":"error","msg":"last"}` + "\n" + `{"level":"info","msg":"bye"}`, "last"},
		{"text log", `time="2026-01-02T03:04:05Z" level=error msg="cannot \"do\" that"`, `cannot "do" that`},
		{"text log without quotes", "level=fatal msg=no", "no"},
		{"panic without a log", "panic: boom\n\ngoroutine 1", "goroutine 1"},
		{"JSON between lines of text", "oops\n" + `{"level":"error","msg":"why"}` + "\nbye", "why"},
		{"JSON without an error", `{"level":"warning","msg":"hm"}` + "\nthe end", "the end"},
		{"broken JSON", `{"level":"error","msg":"cut`, `{"level":"error","msg":"cut`},
		{"usage of runsc", "flag provided but not defined: -bogus\nUsage: runsc <flags>\n\nUse \"runsc flags\"\n", "flag provided but not defined: -bogus"},
		{"usage of crun", "crun: unrecognized option '--bogus'\nTry `crun --help' or `crun --usage'\n", "crun: unrecognized option '--bogus'"},
		{"invalid UTF-8", "\xff\xfe", "?"},
	} {
		test.Equal(t, fmt.Sprint(tt.name), Message([]byte(tt.output)), tt.want)
	}
	long := Message([]byte("begin " + strings.Repeat("é", 5000) + " end"))
	if len(long) > maxMessage || !strings.HasPrefix(long, "begin ") || !strings.HasSuffix(long, " end") {
		t.Errorf("the long message is cut to %d bytes: %.20q … %.20q", len(long), long, long[len(long)-20:])
	}
}

func TestUnknownToRuntime(t *testing.T) {
	for message, want := range map[string]bool{
		"container does not exist":                                      true,
		"error opening file `/run/x/status`: No such file or directory": true,
		"loading container: file does not exist":                        true,
		"permission denied":                                             false,
		"crun: error while loading shared libraries: libyajl.so.2: cannot open shared object file: No such file or directory": false,
	} {
		test.Equal(t, fmt.Sprintf("IsUnknown of %q", message), IsUnknown(&Error{Message: message}), want)
	}
	if IsUnknown(errors.New("does not exist")) {
		t.Error("IsUnknown is true for an error that is not a runtime's")
	}
}

func TestEnvironmentIsWithoutWhatIsOurs(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "/run/x")
	t.Setenv(journal.InheritEnv, "{}")
	t.Setenv("KEPT", "yes")
	kept := false
	for _, kv := range environment() {
		kept = kept || kv == "KEPT=yes"
		if strings.HasPrefix(kv, "NOTIFY_SOCKET=") || strings.HasPrefix(kv, journal.InheritEnv+"=") {
			t.Errorf("a runtime gets %s", kv)
		}
	}
	if !kept {
		t.Error("a runtime does not get the other variables")
	}
	if got := environment("KEPT=no"); slices.Contains(got, "KEPT=yes") || got[len(got)-1] != "KEPT=no" {
		t.Errorf("with KEPT=no added the environment is %q", got)
	}
}

func TestArgv(t *testing.T) {
	c := &Call{
		Options: &journal.Options{Runtime: "/r", Root: "/root", SystemdCgroup: true, GlobalFlags: []string{"--debug"}},
		Args:    []string{"run", "id"}, LogFile: "/log",
	}
	const want = "/r --root /root --systemd-cgroup --log /log --log-format json --debug run id"
	if got := strings.Join(c.argv(), " "); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// The error of a call that hung has its command and last output, and for a start the timeout
// settings.
func TestAborted(t *testing.T) {
	late, end := context.WithTimeout(t.Context(), 0)
	defer end()
	o := &journal.Options{Runtime: "/bin/runc", Root: "/run/runc"}
	for _, c := range []struct {
		verb, output string
		want, not    []string
	}{
		{"run", "", []string{"/bin/runc --root /run/runc run id", `"/bin/runc --root /run/runc --version" hangs too`, "container_create_timeout", "start_timeout", "it wrote no error"}, nil},
		{"delete", "waiting\n", []string{"/bin/runc --root /run/runc delete id", "it last wrote: waiting"}, []string{"container_create_timeout"}},
	} {
		err := (&Call{Options: o, Args: []string{c.verb, "id"}}).Aborted(late, []byte(c.output))
		test.Says(t, err, c.want...)
		for _, not := range c.not {
			if strings.Contains(err.Error(), not) {
				t.Errorf("%s: the error is %q, which must not contain %q", c.verb, err, not)
			}
		}
	}
}
