package supervisor_test

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
)

// A supervisor that nobody needs ends when its daemon does not come back. One with
// a container stays, and so does one with a daemon.
func TestWithoutADaemonForLong(t *testing.T) {
	b := newBed(t, findRuntime(t, "runc"))
	b.kill9()
	b.arguments = []string{"--patience", "1s"}
	ended := func(within time.Duration) bool {
		select {
		case <-b.exited:
			return true
		case <-time.After(within):
			return false
		}
	}
	hangUp := func() {
		_ = b.client.Close()
		b.conn.Close()
	}

	b.serve()
	if ended(1500 * time.Millisecond) {
		t.Fatalf("it ended under its daemon:\n%s", b.log())
	}
	c := b.run("c", shell("trap 'exit 7' TERM; while :; do sleep 0.02; done"))
	hangUp()
	if ended(1500 * time.Millisecond) {
		t.Fatalf("it left a container alone:\n%s", b.log())
	}
	b.reconnect()
	test.Must(t, c.kill(unix.SIGTERM, false))
	c.exits(7)
	hangUp()
	if ended(1500 * time.Millisecond) {
		t.Fatalf("it ended with an exit code that nobody has asked for:\n%s", b.log())
	}
	b.reconnect()
	c.mustDelete()
	hangUp()
	if !ended(20 * time.Second) {
		t.Fatalf("it stays without a task:\n%s", b.log())
	}
	if state := b.cmd.ProcessState; !state.Success() {
		t.Errorf("it ended with %v", state)
	}
}
