package main

import (
	"os"
	"sync"
)

// maxLogSize is the size at which the log is rotated to log.old.
const maxLogSize = 1 << 20

// boundedLog is a log file that rotates itself: no log rotation covers the supervisor's directory.
type boundedLog struct {
	path string
	max  int64
	// begun is called with each new file after a rotation; may be nil.
	begun func(*os.File)

	mu   sync.Mutex
	file *os.File
	size int64
}

func openBoundedLog(path string, limit int64) (*boundedLog, error) {
	l := &boundedLog{path: path, max: limit}
	err := l.open()
	return l, err
}

func (l *boundedLog) open() error {
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return err
	}
	if l.file != nil {
		l.file.Close()
	}
	l.file, l.size = f, info.Size()
	return nil
}

// Write appends an entry. If the file cannot be rotated, Write continues with it and tries again
// for the next entry: a failed open may follow a rename.
func (l *boundedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.size+int64(len(p)) > l.max {
		_ = os.Rename(l.path, l.path+".old")
		if l.open() == nil && l.begun != nil {
			l.begun(l.file)
		}
	}
	n, err := l.file.Write(p)
	l.size += int64(n)
	return n, err
}
