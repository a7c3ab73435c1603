package openfiles

import (
	"context"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
)

func TestCount(t *testing.T) {
	self := []int{os.Getpid()}
	before, err := Count(t.Context(), self)
	if err != nil || before.Files == 0 {
		t.Fatalf("got %+v, %v", before, err)
	}
	sockets := test.Value(unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))(t)
	file := test.Value(os.Open(os.DevNull))(t)
	after, err := Count(t.Context(), self)
	if err != nil || after.Files != before.Files+3 || after.Sockets != before.Sockets+2 {
		t.Errorf("with three more, of which two are sockets: %+v, before %+v, %v", after, before, err)
	}
	file.Close()
	unix.Close(sockets[0])
	unix.Close(sockets[1])
	if again, err := Count(t.Context(), self); err != nil || again != before {
		t.Errorf("got %+v, %v, want %+v", again, err, before)
	}
}

func TestEndedProcess(t *testing.T) {
	cmd := exec.Command("true")
	test.Must(t, cmd.Run())
	ended := cmd.Process.Pid
	if c, err := Count(t.Context(), []int{ended}); err != nil || c != (Counted{}) {
		t.Errorf("got %+v, %v", c, err)
	}
	if _, known, err := SoftLimit(ended); known || err != nil {
		t.Errorf("got %v, %v", known, err)
	}
}

func TestCountEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	test.ErrorIs(t, test.Err(Count(ctx, []int{os.Getpid()})), context.Canceled, "Count with an ended context")
}

func TestSoftLimit(t *testing.T) {
	var want unix.Rlimit
	test.Must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &want))
	if got, known, err := SoftLimit(os.Getpid()); err != nil || !known || got != want.Cur {
		t.Errorf("got %d, %v, %v, want %d", got, known, err, want.Cur)
	}
	for limits, want := range map[string]uint64{"Max processes  1  1  processes\nMax open files   1024   4096   files\n": 1024, "Max open files  unlimited unlimited files": 0, "": 0} {
		if got, known := parseSoft(limits); got != want || known != (want > 0) {
			t.Errorf("%q: got %d, %v", limits, got, known)
		}
	}
}
