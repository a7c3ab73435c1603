// Package oomlog counts out-of-memory kills by the kernel's log, for cgroups that are gone.
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

// kernelLogFile has one record for each read, oldest first, and never the same twice.
// https://docs.kernel.org/admin-guide/abi-testing.html#abi-file-testing-dev-kmsg
const kernelLogFile = "/dev/kmsg"

// Log knows of out-of-memory kills by what the kernel logged of them. The
// counter of a cgroup says it better, while it is there: systemd removes the
// cgroup of a scope as soon as its last process exits, which it hears of before
// that process can be waited for, so the counter may be gone when it is read. The
// kernel logs a kill before it kills. It leaves out some when there are many at
// once, so this is the second best.
type Log struct {
	open func() (readRecord, error)

	mu sync.Mutex
	// read is nil before the first question, and where there is no log to read.
	read  readRecord
	tried bool
	// victims are the cgroups of killed processes, newest last.
	victims []string
}

// readRecord reads one record, and fails with unix.EAGAIN when there is none yet.
type readRecord func(into []byte) (int, error)

// maxVictims bounds what is remembered; questions come within milliseconds of a kill.
const maxVictims = 1024

// New opens the log when it is first asked.
func New() *Log { return &Log{open: openKernelLog} }

func openKernelLog() (readRecord, error) {
	fd, err := unix.Open(kernelLogFile, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return func(into []byte) (int, error) { return unix.Read(fd, into) }, nil
}

// Kills counts the processes that were killed in a cgroup or below it. The cgroup
// is told by its path in the hierarchy, of which no other cgroup's is a part.
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

// catchUp takes down what was logged since the last time. l.mu is held.
func (l *Log) catchUp(ctx context.Context) {
	record := make([]byte, 8192) // the kernel's longest
	for {
		n, err := l.read(record)
		switch {
		case err == nil && n > 0:
			if victim := victimOf(record[:n]); victim != "" {
				l.victims = append(l.victims, victim)
			}
		case errors.Is(err, unix.EPIPE), errors.Is(err, unix.EINTR):
			// Records were overwritten before they were read; the next is there.
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

// longestName is how many bytes the name of a process has at most.
const longestName = 15

// victimOf returns the cgroup in which a record says that a process was killed, or
// nothing. The names of cgroups and processes in it are chosen by pods: marks in them
// are not believed. It ends with ",task_memcg=<cgroup>,task=<name>,pid=<n>,uid=<n>".
func victimOf(record []byte) string {
	prefix, text, _ := bytes.Cut(record, []byte{';'})
	if !fromKernel(prefix) || !bytes.HasPrefix(text, []byte("oom-kill:")) {
		return ""
	}
	line, _, _ := bytes.Cut(text, []byte{'\n'})
	const mark, nameMark = ",task_memcg=", ",task="
	line = line[:max(bytes.LastIndex(line, []byte(",pid=")), 0)]
	// The first mark behind which there is a name: one may be in a name.
	for i := range line {
		name, is := bytes.CutPrefix(line[i:], []byte(nameMark))
		if !is {
			continue
		}
		escapes := bytes.Count(name, []byte(`\x`)) // of one byte each, in four
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

// fromKernel says whether a record is the kernel's own: programs that may write to
// the log have another facility. The prefix is "<facility*8+level>,…".
func fromKernel(prefix []byte) bool {
	number, _, _ := bytes.Cut(prefix, []byte{','})
	return len(number) == 1 && number[0] >= '0' && number[0] <= '7'
}
