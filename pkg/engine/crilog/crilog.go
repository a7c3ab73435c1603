// Package crilog writes container output in the CRI log format:
//
//	<RFC3339Nano time> <stdout|stderr> <P|F> <content>\n
//
// All streams of a container share one file, which is only ever appended to and only by whole
// lines: a reader, a rotation or a kill between two writes never sees half a line. A line longer
// than the limit is split into parts: the last is tagged F, the others P; the concatenated parts
// are the line.
//
// Output must flow even if the file cannot be written: a failed write (disk full) is reported once,
// its lines are dropped, and Write continues to return success.
package crilog

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/berth-cri/berth/pkg/engine/beneath"
)

// DefaultMaxLine is the longest content of one log line in bytes, unless Options set another limit.
// containerd has the same.
const DefaultMaxLine = 16 * 1024

// Names of streams.
const (
	Stdout = "stdout"
	Stderr = "stderr"
)

// mode lets the kubelet's group read logs, as with other CRI runtimes.
const mode = 0o640

// ErrClosed is the error of a closed log.
var ErrClosed = errors.New("the log is closed")

// Options configure a log. The zero value has the defaults.
type Options struct {
	// Dir is the trusted directory above the file. Other users may write below it, and symbolic
	// links there are not followed. If empty, it is the file's own directory.
	Dir string
	// MaxLine is the longest content of one line in bytes: 0 means DefaultMaxLine, a negative value
	// means unlimited (a line is then held in memory until it ends).
	MaxLine int
	// OnError is called for the first failed write after a successful one. It is called with the
	// log locked: it must not call back.
	OnError func(error)
}

// Log is one log file. It is safe for use by several goroutines.
type Log struct {
	dir     string
	path    string
	maxLine int
	onError func(error)

	mu      sync.Mutex
	file    *os.File // nil when output is discarded or the log is closed
	closed  bool
	failing bool // the last write failed
	torn    bool // the file ends within a line
}

// Open opens the file for appending and creates it, but not its directory, if it does not exist. It
// removes a partial line at the end, which a killed writer may have left. An empty path discards
// everything. A file that is not regular or has several names is errdefs.ErrFailedPrecondition.
func Open(path string, o Options) (*Log, error) {
	l := Unopened(path, o)
	if path == "" {
		return l, nil
	}
	file, err := l.open()
	if err != nil {
		return nil, err
	}
	l.file, l.torn = file, repairEnd(file)
	return l, nil
}

// Unopened returns a log that discards everything until Reopen succeeds, because output must flow
// even if the file cannot be opened.
func Unopened(path string, o Options) *Log {
	return &Log{dir: o.Dir, path: path, maxLine: cmp.Or(o.MaxLine, DefaultMaxLine), onError: o.OnError}
}

func (l *Log) open() (*os.File, error) {
	root, name, err := beneath.Split(l.dir, l.path)
	if err != nil {
		return nil, err
	}
	return beneath.Append(root, name, mode) // readable, because repairEnd reads its end
}

// repairEnd removes a partial line from the end of a file, because the kernel interrupts a write
// between two pages if the writer is killed. torn reports whether the file still ends within a
// line.
func repairEnd(file *os.File) (torn bool) {
	end, err := file.Seek(0, io.SeekEnd)
	if err != nil || end == 0 {
		return false // the file is empty, or cannot be read
	}
	last := make([]byte, 1)
	if _, err := file.ReadAt(last, end-1); err != nil || last[0] == '\n' {
		return false
	}
	from := max(0, end-batchSize)
	tail := make([]byte, end-from)
	if _, err := file.ReadAt(tail, from); err != nil {
		return true
	}
	whole := bytes.LastIndexByte(tail, '\n') + 1
	if whole == 0 {
		return true
	}
	return file.Truncate(from+int64(whole)) != nil
}

// Reopen continues in a new file at the log's path, or in an existing one: the second half of a
// rotation. When it returns nil the path exists; earlier lines are in the old file, later lines in
// the new one. If it fails, the log continues in the old file.
func (l *Log) Reopen() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return ErrClosed
	}
	if l.path == "" {
		return nil
	}
	file, err := l.open()
	if err != nil {
		return err
	}
	old := l.file
	l.file, l.torn = file, repairEnd(file)
	if old == nil {
		return nil
	}
	// An error here concerns only the old file. Reopen must not fail: its caller would assume that
	// the log continues in the old file.
	if err := old.Close(); err != nil && l.onError != nil {
		l.onError(fmt.Errorf("close the old file: %w", err))
	}
	return nil
}

// Close closes the file. Later output of streams is discarded. Closing twice is not an error.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if l.file == nil {
		return nil
	}
	file := l.file
	l.file = nil
	return file.Close()
}
