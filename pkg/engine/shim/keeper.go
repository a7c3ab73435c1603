package shim

import (
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/supervisor/journal"
)

// keeper holds what running tasks would lose with their supervisor.
type keeper struct {
	mu   sync.Mutex
	kept map[keptTask]*belongings
}

// keptTask is a task of the supervisor with that key.
type keptTask struct{ key, id string }

// belongings are one task's open files. None is ever read from here.
type belongings struct {
	pidfd *os.File
	tty   *os.File
	pipes []*os.File
}

func newKeeper() *keeper { return &keeper{kept: map[keptTask]*belongings{}} }

// close may be called for nothing.
func (b *belongings) close() {
	if b == nil {
		return
	}
	for _, f := range append([]*os.File{b.pidfd, b.tty}, b.pipes...) {
		if f != nil {
			_ = f.Close()
		}
	}
}

func (k *keeper) put(key, id string, b *belongings) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.kept[keptTask{key, id}].close()
	k.kept[keptTask{key, id}] = b
}

func (k *keeper) drop(key, id string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.kept[keptTask{key, id}].close()
	delete(k.kept, keptTask{key, id})
}

func (k *keeper) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, b := range k.kept {
		b.close()
	}
	clear(k.kept)
}

// lend returns the files that a successor inherits, the first of them at
// descriptor base, and the map that tells it which is which. The files are
// duplicates: release closes them.
func (k *keeper) lend(key string, base int) (files []*os.File, which map[string]journal.Inherited, release func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	which = map[string]journal.Inherited{}
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
	for task, b := range k.kept {
		if task.key == key {
			which[task.id] = journal.Inherited{Pidfd: lendOne(b.pidfd), TTY: lendOne(b.tty)}
		}
	}
	return files, which, func() {
		for _, f := range files {
			_ = f.Close()
		}
	}
}
