package cgroups

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/log"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/supervisor/processes"
)

// OOMCounter knows whether the kernel killed a process of a container for
// memory. The counter is read when the container ends, and what the kernel says
// of changes (cgroup version 2) is followed as well: systemd may have removed the
// cgroup by then. If it has before all was read, the kernel's log is asked. Where
// containers share a cgroup, kills that are none of this one's are excused.
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

// CountOOM opens the counter of a cgroup, if it has one.
func CountOOM(ctx context.Context, p *processes.Set, c Cgroup, logged func() uint64) *OOMCounter {
	o := &OOMCounter{processes: p, logged: logged}
	if path := c.oomFile(); path != "" {
		if err := o.open(path); err != nil {
			log.G(ctx).WithError(err).Debug("Failed to open the counter of out-of-memory kills")
		}
	}
	return o
}

// LoggedAt is the path by which the kernel's log names a cgroup whose counter may go before it
// is read; empty where the counter stays. asked is where the cgroup should be, if it was gone
// before it was found.
func LoggedAt(all []Hierarchy, c Cgroup, asked string) string {
	unified := slices.IndexFunc(all, func(h Hierarchy) bool { return h.Controller == "" })
	if unified < 0 || slices.ContainsFunc(all, func(h Hierarchy) bool { return h.Controller == "memory" }) {
		return ""
	}
	if inside, ok := strings.CutPrefix(c.Unified, all[unified].Mount); ok && inside != "" {
		asked = inside
	}
	if asked == "/" {
		return ""
	}
	return asked
}

func (o *OOMCounter) open(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	// Not for Go's poller: the file is always readable.
	o.file = os.NewFile(uintptr(fd), path)
	// Where files cannot be watched (version 1: EPERM) it is read at the end.
	o.serial, _ = o.processes.Watch(fd, unix.EPOLLPRI|unix.EPOLLET, o.read)
	return nil
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
	o.read()
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.seen
}

// SetExcuse sets how many kills are none of this container's.
func (o *OOMCounter) SetExcuse(n uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.excuse = n
}

// Close ends the counting; what was counted stays.
func (o *OOMCounter) Close() {
	o.processes.Unwatch(o.serial)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	if o.file != nil {
		o.file.Close()
		o.file = nil
	}
}
