// Package oomlog counts out-of-memory kills in the kernel's log, for cgroups that are gone.
package oomlog

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/log"
	"golang.org/x/sys/unix"
)

// kernelLogFile returns one record for each read, oldest first, and each only once.
// https://docs.kernel.org/admin-guide/abi-testing.html#abi-file-testing-dev-kmsg
const kernelLogFile = "/dev/kmsg"

// Log finds out-of-memory kills in the kernel's log. A cgroup's own counter is more reliable while
// the cgroup exists. But systemd removes the cgroup of a scope as soon as its last process exits,
// which may be before the counter is read. The kernel logs a kill before it kills, but it omits
// some if there are many at once.
type Log struct {
	open func() (readRecord, error)

	mu sync.Mutex
	// read is nil before the first call, and without a readable log.
	read  readRecord
	tried bool
	// victims are the cgroups of killed processes, newest last.
	victims []string
}

// readRecord reads one record, and fails with unix.EAGAIN if it does not exist yet.
type readRecord func(into []byte) (int, error)

// maxVictims limits the remembered kills; Kills is called within milliseconds of a kill.
const maxVictims = 1024

// New returns a log that is opened at the first call.
func New() *Log { return &Log{open: openKernelLog} }

func openKernelLog() (readRecord, error) {
	fd, err := unix.Open(kernelLogFile, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return func(into []byte) (int, error) { return unix.Read(fd, into) }, nil
}

// Kills counts the processes that were killed in a cgroup or below it. cgroup is the path in the
// hierarchy, which must not occur in the path of an unrelated cgroup.
func (l *Log) Kills(ctx context.Context, cgroup string) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.tried {
		l.tried = true
		var err error
		if l.read, err = l.open(); err != nil {
			log.G(ctx).WithError(err).Debug("Failed to open the kernel's log; out-of-memory kills in cgroups that are gone will not be seen")
		}
	}
	if l.read != nil {
		l.catchUp(ctx)
	}
	var n uint64
	for _, victim := range l.victims {
		if strings.Contains(victim+"/", strings.TrimRight(cgroup, "/")+"/") {
			n++
		}
	}
	return n
}

// catchUp reads the records since the last call. l.mu is held.
func (l *Log) catchUp(ctx context.Context) {
	record := make([]byte, 8192) // the kernel's longest record
	for {
		n, err := l.read(record)
		switch {
		case err == nil && n > 0:
			if victim := victimOf(record[:n]); victim != "" {
				l.victims = append(l.victims, victim)
			}
		case errors.Is(err, unix.EPIPE), errors.Is(err, unix.EINTR):
			// Records were overwritten, or the read was interrupted: continue with the next.
		default:
			if err != nil && !errors.Is(err, unix.EAGAIN) {
				log.G(ctx).WithError(err).Debug("Failed to read the kernel's log")
			}
			if more := len(l.victims) - maxVictims; more > 0 {
				l.victims = slices.Delete(l.victims, 0, more)
			}
			return
		}
	}
}

// longestName is the maximum length of a process's name, in bytes.
const longestName = 15

// victimOf returns the cgroup of the killed process in a record, or "". Pods choose the names of
// cgroups and processes in it, so marks inside names are ignored. The record ends with
// ",task_memcg=<cgroup>,task=<name>,pid=<n>,uid=<n>".
func victimOf(record []byte) string {
	prefix, text, _ := bytes.Cut(record, []byte{';'})
	if !fromKernel(prefix) || !bytes.HasPrefix(text, []byte("oom-kill:")) {
		return ""
	}
	line, _, _ := bytes.Cut(text, []byte{'\n'})
	const mark, nameMark = ",task_memcg=", ",task="
	line = line[:max(bytes.LastIndex(line, []byte(",pid=")), 0)]
	// Use the first mark with a valid name behind it, because a name may contain the mark.
	for i := range line {
		name, is := bytes.CutPrefix(line[i:], []byte(nameMark))
		if !is {
			continue
		}
		escapes := bytes.Count(name, []byte(`\x`)) // each is one byte, written as four
		if len(name)-3*escapes <= longestName {
			line = line[:i]
			break
		}
	}
	at := bytes.LastIndex(line, []byte(mark))
	if at < 0 {
		return ""
	}
	return string(line[at+len(mark):])
}

// fromKernel reports whether a record is the kernel's own: programs with access to the log use
// another facility. The prefix is "<facility*8+level>,…".
func fromKernel(prefix []byte) bool {
	number, _, _ := bytes.Cut(prefix, []byte{','})
	return len(number) == 1 && number[0] >= '0' && number[0] <= '7'
}
