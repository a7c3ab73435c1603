package shim

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/berth-cri/berth/internal/test"
)

// A start action that outlives its daemon still writes its answer, and Started waits for
// the answer.
func TestStartedWaitsForTheAction(t *testing.T) {
	m, bundle := &ForeignShims{}, t.TempDir()
	test.ErrorIs(t, test.Err(m.Started(t.Context(), bundle)), ErrGone, "without a start")
	f := test.Value(newAnswer(bundle))(t)
	action := exec.Command("sh", "-c", "sleep 0.3; echo unix:///run/s/z")
	action.Stdout = f
	test.Must(t, action.Start())
	defer func() { _ = action.Wait() }()
	if err := f.Close(); err != nil { // as the kernel does when the daemon dies
		t.Fatal(err)
	}
	ep, err := m.Started(t.Context(), bundle)
	if err != nil || ep.Address != "unix:///run/s/z" {
		t.Errorf("got %+v, %v", ep, err)
	}
}

func TestStartedWithoutAnswer(t *testing.T) {
	m, bundle := &ForeignShims{}, t.TempDir()
	f := test.Value(newAnswer(bundle))(t)
	if info, err := f.Stat(); err != nil || info.Size() != 0 {
		t.Errorf("an answer that was not written has %d bytes (%v)", info.Size(), err)
	}
	test.Must(t, f.Close())
	test.ErrorIs(t, test.Err(m.Started(t.Context(), bundle)), ErrGone, "Started without an answer")
}

// The kernel may have given the PID of a dead shim to another process.
func TestKillSparesAStrangerWithThePID(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	test.Must(t, cmd.Start())
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	since := test.Value(startTime(cmd.Process.Pid))(t)
	if own, err := startTime(os.Getpid()); err != nil || since < own {
		t.Errorf("a child started at %d, before its parent at %d (%v)", since, own, err)
	}
	stranger := Endpoint{PID: cmd.Process.Pid, StartTime: since + 1}
	test.Check(t, stranger.kill())
	select {
	case <-ended:
		t.Fatal("another process was killed")
	case <-time.After(50 * time.Millisecond):
	}
	ep := Endpoint{PID: cmd.Process.Pid, StartTime: since}
	test.Check(t, ep.kill())
	<-ended
	test.Checkf(t, ep.kill(), "kill of a dead shim")
}
