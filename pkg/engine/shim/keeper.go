package shim

import (
	"context"
	"fmt"
	"os"
	"sync"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	berthshim "github.com/berth-cri/berth/pkg/engine/supervisor"
	supervisorapi "github.com/berth-cri/berth/proto/berth/supervisor/v1"
)

// keeper holds what running tasks would lose with their supervisor.
type keeper struct {
	mu   sync.Mutex
	kept map[string]map[string]*belongings // by key, by task id
}

// belongings are one task's open files. None is ever read from here.
type belongings struct {
	pidfd *os.File
	tty   *os.File
	pipes []*os.File
}

func newKeeper() *keeper {
	return &keeper{kept: map[string]map[string]*belongings{}}
}

func (b *belongings) close() {
	for _, f := range append([]*os.File{b.pidfd, b.tty}, b.pipes...) {
		if f != nil {
			_ = f.Close()
		}
	}
}

func (k *keeper) put(key, id string, b *belongings) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.kept[key] == nil {
		k.kept[key] = map[string]*belongings{}
	}
	if old := k.kept[key][id]; old != nil {
		old.close()
	}
	k.kept[key][id] = b
}

func (k *keeper) drop(key, id string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if b := k.kept[key][id]; b != nil {
		b.close()
		delete(k.kept[key], id)
	}
	if len(k.kept[key]) == 0 {
		delete(k.kept, key)
	}
}

func (k *keeper) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, tasks := range k.kept {
		for _, b := range tasks {
			b.close()
		}
	}
	k.kept = map[string]map[string]*belongings{}
}

// lend returns the files that a successor inherits, the first of them at
// descriptor base, and the map that tells it which is which. The files are
// duplicates: release closes them.
func (k *keeper) lend(key string, base int) (files []*os.File, which map[string]berthshim.Inherited, release func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	which = map[string]berthshim.Inherited{}
	lendOne := func(f *os.File) int {
		if f == nil {
			return 0
		}
		fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			return 0 // the successor then opens a pidfd of its own
		}
		files = append(files, os.NewFile(uintptr(fd), f.Name()))
		return base + len(files) - 1
	}
	for id, b := range k.kept[key] {
		which[id] = berthshim.Inherited{Pidfd: lendOne(b.pidfd), TTY: lendOne(b.tty)}
	}
	return files, which, func() {
		for _, f := range files {
			_ = f.Close()
		}
	}
}

// Kept names what to keep of a task.
type Kept struct {
	ID  string
	PID int
	// Pipes are paths of FIFOs that the task writes to.
	Pipes []string
	// Terminal is set if the supervisor holds a terminal of the task.
	Terminal bool
}

// Keep takes hold of a running task's belongings. A process that has already
// ended is no error: there is nothing left to keep.
func (m *Supervisors) Keep(ctx context.Context, key string, c *Client, t Kept) error {
	b := &belongings{}
	if t.PID > 0 {
		fd, err := unix.PidfdOpen(t.PID, 0)
		if err == nil {
			b.pidfd = os.NewFile(uintptr(fd), fmt.Sprintf("pidfd:%d", t.PID))
		}
	}
	for _, p := range t.Pipes {
		// A FIFO opens at once when it is opened for reading without blocking.
		fd, err := unix.Open(p, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			b.close()
			return fmt.Errorf("keep pipe %s: %w", p, err)
		}
		b.pipes = append(b.pipes, os.NewFile(uintptr(fd), p))
	}
	if t.Terminal {
		tty, err := c.takeTerminal(ctx, t.ID)
		if err != nil && !errdefs.IsNotFound(err) {
			b.close()
			return fmt.Errorf("keep terminal: %w", err)
		}
		b.tty = tty
	}
	m.keep.put(key, t.ID, b)
	return nil
}

// Drop ends a Keep. It may be called for a task that was never kept.
func (m *Supervisors) Drop(key, id string) { m.keep.drop(key, id) }

// takeTerminal copies the descriptor of a task's terminal out of the supervisor.
func (c *Client) takeTerminal(ctx context.Context, id string) (*os.File, error) {
	info, err := c.Supervisor.Info(ctx, &supervisorapi.InfoRequest{})
	if err != nil {
		return nil, err
	}
	term, err := c.Supervisor.Terminal(ctx, &supervisorapi.TerminalRequest{Id: id})
	if err != nil {
		return nil, err
	}
	pidfd, err := unix.PidfdOpen(int(info.Pid), 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(pidfd)
	fd, err := unix.PidfdGetfd(pidfd, int(term.Fd), 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "terminal:"+id), nil
}
