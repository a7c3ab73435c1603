package shim

import (
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/supervisor/journal"
)

// keeper holds descriptors that running tasks would lose with their supervisor.
type keeper struct {
	mu   sync.Mutex
	kept map[keptTask]*keptFiles
}

// keptTask identifies a task by its id and the key of its supervisor.
type keptTask struct{ key, id string }

// keptFiles are one task's descriptors, which this process never reads.
type keptFiles struct {
	pidfd *os.File
	tty   *os.File
	pipes []*os.File
}

func newKeeper() *keeper { return &keeper{kept: map[keptTask]*keptFiles{}} }

// close closes the descriptors; b may be nil.
func (b *keptFiles) close() {
	if b == nil {
		return
	}
	for _, f := range append([]*os.File{b.pidfd, b.tty}, b.pipes...) {
		if f != nil {
			_ = f.Close()
		}
	}
}

func (k *keeper) put(key, id string, b *keptFiles) {
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

// lend returns the files that a successor inherits, the first at descriptor base, and their
// descriptor numbers by task. The files are duplicates: release closes them.
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
			return 0 // the successor opens a pidfd itself, but cannot open a terminal
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
