package cgroups

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"

	"github.com/containerd/log"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/supervisor/processes"
)

// OOMCounter knows whether the kernel killed a process of a container for
// memory. The counter is read when the container ends, and what the kernel says
// of changes (cgroup version 2) is followed as well: systemd may have removed the
// cgroup by then. If it has before all was read, the kernel's log is asked. A nil
// counter has seen nothing. Where containers share a cgroup, kills that are none
// of this one's are excused.
type OOMCounter struct {
	processes *processes.Set
	// logged counts the kills by the kernel's log; nil where the counter outlives
	// the container's processes, as it does without systemd.
	logged func() uint64

	mu     sync.Mutex
	file   *os.File // nil when there is none (any more)
	closed bool
	serial uint32
	seen   uint64
	excuse uint64
}

// oomKills is the key of the counter, in both versions' files.
const oomKills = "oom_kill"

// CountOOM opens the counter of a cgroup, or returns nil where there is nothing to
// count by.
func CountOOM(ctx context.Context, p *processes.Set, c Cgroup, logged func() uint64) *OOMCounter {
	gone := func() *OOMCounter {
		if logged == nil {
			return nil
		}
		return &OOMCounter{processes: p, logged: logged}
	}
	path := c.oomFile()
	if path == "" {
		return gone()
	}
	o, err := openCounter(p, path)
	if err != nil {
		log.G(ctx).WithError(err).Debug("Failed to open the counter of out-of-memory kills")
		return gone()
	}
	o.logged = logged
	return o
}

func openCounter(p *processes.Set, path string) (*OOMCounter, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	// Not for Go's poller: the file is always readable.
	o := &OOMCounter{processes: p, file: os.NewFile(uintptr(fd), path)}
	// Where files cannot be watched (version 1: EPERM) the end will tell.
	if serial, err := p.Watch(fd, unix.EPOLLPRI|unix.EPOLLET, func() { o.read() }); err == nil {
		o.serial = serial
	}
	return o, nil
}

func (o *OOMCounter) read() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return
	}
	if o.file != nil {
		var b [1024]byte
		n, err := o.file.ReadAt(b[:], 0)
		o.seen = max(o.seen, parseCounter(b[:n], oomKills))
		if err == nil || errors.Is(err, io.EOF) {
			return
		}
	}
	if o.logged != nil {
		o.seen = max(o.seen, o.logged())
	}
}

// Killed reports whether there was such a kill until now.
func (o *OOMCounter) Killed() bool {
	if o == nil {
		return false
	}
	o.read()
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.seen > o.excuse
}

// ExcuseAll excuses all kills until now, and returns how many those are.
func (o *OOMCounter) ExcuseAll() uint64 {
	kills := o.Count()
	o.SetExcuse(kills)
	return kills
}

// Count is how many kills there were until now.
func (o *OOMCounter) Count() uint64 {
	if o == nil {
		return 0
	}
	o.read()
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.seen
}

// SetExcuse sets how many kills are none of this container's.
func (o *OOMCounter) SetExcuse(n uint64) {
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.excuse = n
}

// Close ends the counting; what was counted stays.
func (o *OOMCounter) Close() {
	if o == nil {
		return
	}
	o.processes.Unwatch(o.serial)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	if o.file != nil {
		o.file.Close()
		o.file = nil
	}
}
