package supervisor_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	supervisorv1 "github.com/berth-cri/berth/proto/berth/supervisor/v1"
)

// maxAttachGrowth is how much more a supervisor may cost with clients that do not
// read, in KiB.
const maxAttachGrowth = 32 << 10

// attachUnread attaches a client that never reads, and returns the name of its FIFO.
func (c *container) attachUnread(name string) string {
	c.Helper()
	fifo := filepath.Join(c.base, name)
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		c.Fatal(err)
	}
	f, err := os.OpenFile(fifo, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		c.Fatal(err)
	}
	c.Cleanup(func() { f.Close() })
	if _, err := c.extra.Attach(c.ctx(), &supervisorv1.AttachRequest{Id: c.id, Stdout: fifo}); err != nil {
		c.Fatal(err)
	}
	return fifo
}

// TestMemoryOfClientsThatDoNotRead attaches 150 of them to containers that write
// without end. All are cut off, the supervisor stays small, and one that is not behind is
// still attached. Its container waits for its turn: on a busy machine nobody may keep up
// with the others.
func TestMemoryOfClientsThatDoNotRead(t *testing.T) {
	if raceDetector {
		t.Skip("without the race detector: it costs more than the budget")
	}
	const clients = 150
	b := newBed(t, findRuntime(t, "runc"))
	script := "read go; i=0; while :; do i=$((i+1)); echo $i $i $i $i $i $i $i $i $i $i $i $i $i $i $i $i; done"
	config := shell(script)
	config.stdin = true
	all := []*container{b.run("a", config), b.run("b", config)}
	waits := shell("read go; echo $go")
	waits.stdin = true
	quiet := b.run("c", waits)
	out, _, _ := quiet.attachAs("reads", false, &supervisorv1.AttachRequest{})
	before, most := b.pss(), 0
	var fifos []string
	for n := range clients {
		fifos = append(fifos, all[n%len(all)].attachUnread(fmt.Sprint("unread", n)))
	}
	for _, c := range all {
		c.send("go\n")
	}
	for end := time.Now().Add(4 * time.Minute); len(fifos) > 0; {
		most = max(most, b.pss())
		if most > before+maxAttachGrowth {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d clients that do not read are still attached", len(fifos))
		}
		if _, err := os.Lstat(fifos[0]); errors.Is(err, os.ErrNotExist) {
			fifos = fifos[1:]
		} else {
			time.Sleep(5 * time.Millisecond)
		}
	}
	t.Logf("PSS was %d KiB before and at most %d KiB", before, most)
	if most > before+maxAttachGrowth {
		t.Errorf("PSS grew from %d to %d KiB, by more than %d", before, most, maxAttachGrowth)
	}
	select {
	case end := <-out:
		t.Fatalf("the client that was not behind was cut off, after %d bytes", len(end))
	default:
	}
	quiet.send("its turn\n")
	if got := <-out; got != "its turn\n" {
		t.Errorf("the client that was not behind has read %q", got)
	}
}
