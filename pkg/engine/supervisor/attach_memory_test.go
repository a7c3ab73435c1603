package supervisor_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
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

// attachCounted attaches a client that reads, and returns how many bytes it has read so
// far. The channel is closed when it is cut off.
func (c *container) attachCounted(name string) (*atomic.Int64, <-chan struct{}) {
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
	read, ended := &atomic.Int64{}, make(chan struct{})
	go func() {
		defer close(ended)
		buf := make([]byte, 64<<10)
		for {
			n, err := f.Read(buf)
			read.Add(int64(n))
			if err != nil {
				return
			}
		}
	}()
	return read, ended
}

// burst is what paced writes at a time: less than a FIFO holds, so that who reads is not
// behind, however busy the machine is.
const burst = 32 << 10

// paced writes a burst for each line that it reads, and endless writes as fast as it can
// from the first one on.
const (
	paced   = `x=0123456789abcde; x="$x$x"; x="${x}01"; for i in 1 2 3 4 5 6 7 8 9 10; do x=$x$x; done; x=${x%?}; while read go; do echo "$x"; done`
	endless = "read go; i=0; while :; do i=$((i+1)); echo $i $i $i $i $i $i $i $i $i $i $i $i $i $i $i $i; done"
)

// TestMemoryOfClientsThatDoNotRead attaches 150 of them to containers that write without
// end. All are cut off, the supervisor stays small, and one that reads has got everything
// and is still attached. It reads from a container that waits for it: from the other one
// it could be too far behind on a machine that is busy.
func TestMemoryOfClientsThatDoNotRead(t *testing.T) {
	if raceDetector {
		t.Skip("without the race detector: it costs more than the budget")
	}
	const clients = 150
	b := newBed(t, findRuntime(t, "runc"))
	run := func(name, script string) *container {
		config := shell(script)
		config.stdin = true
		return b.run(name, config)
	}
	all := []*container{run("a", paced), run("b", endless)}
	read, cutOff := all[0].attachCounted("reads")
	before, most := b.pss(), 0
	var fifos []string
	for n := range clients {
		fifos = append(fifos, all[n%len(all)].attachUnread(fmt.Sprint("unread", n)))
	}
	all[1].send("go\n")
	sent := int64(0)
	for end := time.Now().Add(4 * time.Minute); len(fifos) > 0; {
		select {
		case <-cutOff:
			t.Fatalf("the client that reads was cut off, after %d of %d bytes", read.Load(), sent)
		default:
		}
		if read.Load() == sent {
			all[0].send("go\n")
			sent += burst
		}
		most = max(most, b.pss())
		if most > before+maxAttachGrowth {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d clients that do not read are still attached; the one that reads has %d of %d bytes", len(fifos), read.Load(), sent)
		}
		if _, err := os.Lstat(fifos[0]); errors.Is(err, os.ErrNotExist) {
			fifos = fifos[1:]
		} else {
			time.Sleep(time.Millisecond)
		}
	}
	t.Logf("PSS was %d KiB before and at most %d KiB; %d KiB were read", before, most, sent>>10)
	if most > before+maxAttachGrowth {
		t.Errorf("PSS grew from %d to %d KiB, by more than %d", before, most, maxAttachGrowth)
	}
	for end := time.Now().Add(time.Minute); read.Load() != sent; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the client that reads has %d of %d bytes", read.Load(), sent)
		}
	}
	select {
	case <-cutOff:
		t.Errorf("the client that reads was cut off, after %d bytes", read.Load())
	default:
	}
}
