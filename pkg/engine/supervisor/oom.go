package supervisor

import (
	"context"
	"os"
	"sync"

	"github.com/containerd/log"
	"golang.org/x/sys/unix"
)

// oomCounter knows whether the kernel killed a process of a container for
// memory. The counter is read when the container ends; but systemd may have
// removed the cgroup by then, so the kernel's notifications (cgroup version 2)
// are followed as well. A nil counter has seen nothing. Where containers share a
// cgroup, kills that are none of this one's are excused.
type oomCounter struct {
	processes *processes
	key       string

	mu     sync.Mutex
	file   *os.File // nil when closed
	serial uint32
	seen   uint64
	excuse uint64
}

// countOOM opens the counter of a cgroup, or returns nil where there is none.
func countOOM(ctx context.Context, p *processes, c Cgroup) *oomCounter {
	path := c.oomFile()
	if path == "" {
		return nil
	}
	o, err := openCounter(p, path, "oom_kill")
	if err != nil {
		log.G(ctx).WithError(err).Debug("Out-of-memory kills of a container will not be seen")
		return nil
	}
	return o
}

func openCounter(p *processes, path, key string) (*oomCounter, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	// Not for Go's poller: the file is always readable.
	o := &oomCounter{processes: p, key: key, file: os.NewFile(uintptr(fd), path)}
	// Where files cannot be watched (version 1: EPERM) the end will tell.
	if serial, err := p.watch(fd, unix.EPOLLPRI|unix.EPOLLET, func() { o.read() }); err == nil {
		o.serial = serial
	}
	return o, nil
}

func (o *oomCounter) read() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.file == nil {
		return
	}
	var b [1024]byte
	n, _ := o.file.ReadAt(b[:], 0)
	o.seen = max(o.seen, parseCounter(b[:n], o.key))
}

// killed says whether there was such a kill until now.
func (o *oomCounter) killed() bool {
	if o == nil {
		return false
	}
	o.read()
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.seen > o.excuse
}

// excuseAll excuses all kills until now, and returns how many those are.
func (o *oomCounter) excuseAll() uint64 {
	if o == nil {
		return 0
	}
	o.read()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.excuse = o.seen
	return o.excuse
}

// count is how many kills there were until now.
func (o *oomCounter) count() uint64 {
	if o == nil {
		return 0
	}
	o.read()
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.seen
}

// setExcuse says how many kills are none of this container's.
func (o *oomCounter) setExcuse(n uint64) {
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.excuse = n
}

func (o *oomCounter) close() {
	if o == nil {
		return
	}
	o.processes.unwatch(o.serial)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.file != nil {
		o.file.Close()
		o.file = nil
	}
}
