package session

import (
	"bytes"
	"path/filepath"
	"testing"

	"golang.org/x/sync/semaphore"
)

func outputsOf(t *testing.T, memory *semaphore.Weighted) *Execution {
	t.Helper()
	e := &Execution{Memory: memory}
	for name, o := range map[string]**output{"out": &e.stdout, "err": &e.stderr} {
		var err error
		if *o, err = newOutput(filepath.Join(t.TempDir(), name), memory); err != nil {
			t.Fatal(err)
		}
		t.Cleanup((*o).pipe.close)
	}
	return e
}

// A command reserves memory for its output beyond smallOutput. Once there is no memory
// left, the rest of the output is dropped.
func TestLargeOutputs(t *testing.T) {
	memory := semaphore.NewWeighted(128 << 10)
	free := func(want int64) {
		t.Helper()
		if !memory.TryAcquire(want) || memory.TryAcquire(1) {
			t.Fatalf("want exactly %d bytes to be free", want)
		}
		memory.Release(want)
	}
	small, large := bytes.Repeat([]byte("x"), smallOutput), bytes.Repeat([]byte("0123456789abcdef"), 4<<10)
	first, second := outputsOf(t, memory), outputsOf(t, memory)
	first.stdout.keep(small)
	free(128 << 10)
	first.stderr.keep(large)
	first.stdout.keep(large)
	free(32 << 10) // smallOutput of each stream needs no reservation
	second.stdout.keep(large)
	free(0)
	second.stderr.keep(small[1:])
	second.stderr.keep([]byte("x, and what is cut"))
	first.release()
	first.release()
	free(96 << 10)
	second.stderr.keep([]byte("this would leave a gap"))
	first.stdout.keep([]byte("late"))
	free(96 << 10)
	for e, want := range map[*Execution][2][]byte{first: {append(small[:smallOutput:smallOutput], large...), large}, second: {large, small}} {
		if a := e.Answer(7); a.GetExitCode() != 7 || !bytes.Equal(a.GetStdout(), want[0]) || !bytes.Equal(a.GetStderr(), want[1]) {
			t.Errorf("exit code %d with %d and %d bytes", a.GetExitCode(), len(a.GetStdout()), len(a.GetStderr()))
		}
	}
}

// Commands that hang reserve memory only for what they have written.
func TestHangingCommandsHoldWhatTheyWrote(t *testing.T) {
	memory := semaphore.NewWeighted(outputMemory)
	large := bytes.Repeat([]byte("x"), smallOutput+1)
	for range 3 {
		e := outputsOf(t, memory)
		if e.stdout.keep(large); len(e.stdout.kept()) != len(large) {
			t.Errorf("%d bytes are kept", len(e.stdout.kept()))
		}
	}
}

func TestOutputIsCutOff(t *testing.T) {
	e := outputsOf(t, nil)
	for range 3 {
		e.stdout.keep(make([]byte, 7<<20))
	}
	if n := len(e.stdout.kept()); n != maxExecOutput {
		t.Errorf("%d bytes are kept", n)
	}
}
