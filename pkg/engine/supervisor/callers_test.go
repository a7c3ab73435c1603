package supervisor_test

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
)

// A supervisor without tasks exits if its daemon does not reconnect. It stays while it has a
// connected daemon or a task, even an exited task.
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
		t.Fatalf("the supervisor exited while its daemon was connected:\n%s", b.log())
	}
	c := b.run("c", shell("trap 'exit 7' TERM; while :; do sleep 0.02; done"))
	hangUp()
	if ended(1500 * time.Millisecond) {
		t.Fatalf("the supervisor exited while a container ran:\n%s", b.log())
	}
	b.reconnect()
	test.Must(t, c.kill(unix.SIGTERM, false))
	c.exits(7)
	hangUp()
	if ended(1500 * time.Millisecond) {
		t.Fatalf("the supervisor exited before the exited container was deleted:\n%s", b.log())
	}
	b.reconnect()
	c.mustDelete()
	hangUp()
	if !ended(20 * time.Second) {
		t.Fatalf("the supervisor without tasks and daemon does not exit:\n%s", b.log())
	}
	if state := b.cmd.ProcessState; !state.Success() {
		t.Errorf("the supervisor exited with %v", state)
	}
}
