package session

import (
	"bytes"
	"context"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/semaphore"
)

func outputsOf(t *testing.T, large *reservation) *Execution {
	t.Helper()
	e := &Execution{large: large}
	for name, o := range map[string]**output{"out": &e.stdout, "err": &e.stderr} {
		var err error
		if *o, err = newOutput(filepath.Join(t.TempDir(), name), large); err != nil {
			t.Fatal(err)
		}
		t.Cleanup((*o).close)
	}
	return e
}

// Small outputs need no memory of others, large ones one share for both streams.
func TestLargeOutputsTakeAShare(t *testing.T) {
	memory := semaphore.NewWeighted(largeOutput)
	small, large := bytes.Repeat([]byte("x"), smallOutput), bytes.Repeat([]byte("0123456789abcdef"), 4<<10)
	e := outputsOf(t, newReservation(t.Context(), memory))
	e.stdout.keep(small)
	if e.large.held {
		t.Error("a small output has a share")
	}
	e.stderr.keep(large)
	e.stdout.keep(large)
	if memory.TryAcquire(1) {
		t.Error("large outputs have no share")
	}
	if a := e.Answer(7); a.GetExitCode() != 7 || !bytes.Equal(a.GetStdout(), append(small, large...)) || !bytes.Equal(a.GetStderr(), large) {
		t.Errorf("exit code %d with %d and %d bytes", a.GetExitCode(), len(a.GetStdout()), len(a.GetStderr()))
	}
	for range 2 {
		if err := e.large.end(); err != nil {
			t.Error(err)
		}
	}
	if !memory.TryAcquire(largeOutput) {
		t.Error("the share is not given back")
	}
}

func TestLargeOutputsWaitForAShare(t *testing.T) {
	dir := t
	synctest.Test(t, func(t *testing.T) {
		memory := semaphore.NewWeighted(largeOutput)
		first := outputsOf(dir, newReservation(t.Context(), memory))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		second, late := outputsOf(dir, newReservation(t.Context(), memory)), outputsOf(dir, newReservation(ctx, memory))
		large := bytes.Repeat([]byte("x"), smallOutput+1)
		first.stdout.keep(large)
		kept := make(chan struct{})
		go func() { second.stdout.keep(large); close(kept) }()
		synctest.Wait()
		if !second.large.waiting.Load() || len(second.stdout.kept()) > 0 {
			t.Error("the second does not wait")
		}
		late.stdout.keep(large) // until its time is over
		if err := late.large.end(); !errdefs.IsResourceExhausted(err) || len(late.stdout.kept()) > 0 {
			t.Errorf("what comes too late has %d bytes, %v", len(late.stdout.kept()), err)
		}
		if err := first.large.end(); err != nil {
			t.Error(err)
		}
		<-kept
		if err := second.large.end(); err != nil || len(second.stdout.kept()) != len(large) {
			t.Errorf("the second has %d bytes, %v", len(second.stdout.kept()), err)
		}
	})
}

// What descendants write after the answer takes no share.
func TestNoShareAfterTheEnd(t *testing.T) {
	memory := semaphore.NewWeighted(largeOutput)
	e := outputsOf(t, newReservation(t.Context(), memory))
	_ = e.large.end()
	e.stdout.keep(bytes.Repeat([]byte("x"), smallOutput+1))
	if len(e.stdout.kept()) > 0 || !memory.TryAcquire(largeOutput) {
		t.Errorf("it has %d bytes", len(e.stdout.kept()))
	}
}

func TestOutputIsCutOff(t *testing.T) {
	e := outputsOf(t, newReservation(t.Context(), nil))
	for range 3 {
		e.stdout.keep(make([]byte, 7<<20))
	}
	if n := len(e.stdout.kept()); n != maxExecOutput {
		t.Errorf("%d bytes are kept", n)
	}
}
