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

// OOMCounter counts the out-of-memory kills in a container's cgroup. It reads the counter when the
// container exits, and before that on the kernel's change events (cgroup version 2), because
// systemd may remove the cgroup at the exit. If the last read fails, it reads the kernel's log.
// Containers that share a cgroup ignore each other's kills.
type OOMCounter struct {
	processes *processes.Set
	// logged counts the kills in the kernel's log; nil if the cgroup's path is not known, or with
	// cgroup version 1, where the counter outlives the container's processes.
	logged func() uint64

	mu      sync.Mutex
	file    *os.File // nil without a counter, or after Close
	closed  bool
	serial  uint32
	seen    uint64
	ignored uint64
}

const oomKills = "oom_kill"

// CountOOM opens the out-of-memory counter of a cgroup, if it has one.
func CountOOM(ctx context.Context, p *processes.Set, c Cgroup, logged func() uint64) *OOMCounter {
	o := &OOMCounter{processes: p, logged: logged}
	if path := c.oomFile(); path != "" {
		if err := o.open(path); err != nil {
			log.G(ctx).WithError(err).Debug("Failed to open the counter of out-of-memory kills")
		}
	}
	return o
}

// LoggedAt returns the path of a cgroup in the kernel's log; "" if it is not known, or with cgroup
// version 1, where the counter stays readable. asked is the path in the spec, used if c is empty.
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
	// The file is not in Go's poller: it is always readable.
	o.file = os.NewFile(uintptr(fd), path)
	// Where files cannot be watched (version 1: EPERM), the counter is read only at the exit.
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

// Killed reports whether the kernel has killed a process for memory, beyond the ignored kills.
func (o *OOMCounter) Killed() bool {
	o.read()
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.seen > o.ignored
}

// IgnoreAll ignores all kills until now, and returns their number.
func (o *OOMCounter) IgnoreAll() uint64 {
	kills := o.Count()
	o.SetIgnored(kills)
	return kills
}

// Count returns the number of kills until now.
func (o *OOMCounter) Count() uint64 {
	o.read()
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.seen
}

// SetIgnored sets the number of kills that did not hit this container.
func (o *OOMCounter) SetIgnored(n uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ignored = n
}

// Close stops counting; Killed and Count keep their results.
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
