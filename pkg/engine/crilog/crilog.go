// Package crilog writes container output in the CRI log format:
//
//	<RFC3339Nano time> <stdout|stderr> <P|F> <content>\n
//
// All streams of a container share one file, which is only ever appended to and
// only by whole lines: a reader, a rotation or a kill between two writes never
// sees half a line. A line longer than the limit is split into parts tagged P,
// the last of which is tagged F; the contents of a line's parts, put together,
// are the line.
//
// Output must flow even when the file cannot take it: a failed write (disk
// full) is reported once, its lines are dropped, and Write goes on
// returning success.
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

// DefaultMaxLine is the longest content of one log line in bytes, unless
// Options say otherwise; it is what containerd has.
const DefaultMaxLine = 16 * 1024

// Names of streams.
const (
	Stdout = "stdout"
	Stderr = "stderr"
)

// mode lets the kubelet's group read logs, as with other CRI runtimes.
const mode = 0o640

// ErrClosed is what a closed log answers.
var ErrClosed = errors.New("the log is closed")

// Options say how a log is written. The zero value is the usual way.
type Options struct {
	// Dir is the directory above the file that is trusted: what is below it may be
	// another's to write into, and symbolic links there are not followed. Empty is
	// the file's own directory.
	Dir string
	// MaxLine is the longest content of one line in bytes: 0 means
	// DefaultMaxLine, a negative one means no limit (a line is then held in
	// memory until it ends).
	MaxLine int
	// OnError is told of the first write that fails after one that did not. It
	// is called with the log locked: it must not call back.
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

// Open opens the file for appending and creates it, not its directory, if it is
// not there. Half a line at its end, as a killed writer leaves it, is taken
// away. An empty path means that everything is discarded. What is not a regular
// file with one name is refused with errdefs.ErrFailedPrecondition.
func Open(path string, o Options) (*Log, error) {
	l := Unopened(path, o)
	if path == "" {
		return l, nil
	}
	file, err := l.open()
	if err != nil {
		return nil, err
	}
	l.file, l.torn = file, mendEnd(file)
	return l, nil
}

// Unopened is a log that discards everything until Reopen succeeds, for output that
// has to flow although the file cannot be opened.
func Unopened(path string, o Options) *Log {
	return &Log{dir: o.Dir, path: path, maxLine: cmp.Or(o.MaxLine, DefaultMaxLine), onError: o.OnError}
}

func (l *Log) open() (*os.File, error) {
	root, name, err := beneath.Split(l.dir, l.path)
	if err != nil {
		return nil, err
	}
	return beneath.Append(root, name, mode) // readable, for what mendEnd has to know
}

// mendEnd takes half a line from the end of a file, which a killed
// writer left: the kernel gives a write up between two pages when its caller is
// killed. It is torn if the file still ends within a line.
func mendEnd(file *os.File) (torn bool) {
	end, err := file.Seek(0, io.SeekEnd)
	if err != nil || end == 0 {
		return false // nothing is there yet
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

// Reopen goes on in a new file at the log's path, or in the one that is there:
// the second half of a rotation. When it returns nil the path exists; lines
// written before are in the old file, lines written after in the new one. When
// it fails the log goes on in the old file.
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
	l.file, l.torn = file, mendEnd(file)
	if old == nil {
		return nil
	}
	// That the old file could not be brought to its end changes nothing of where
	// the log goes on, and a failure is taken for that.
	if err := old.Close(); err != nil && l.onError != nil {
		l.onError(fmt.Errorf("close the old file: %w", err))
	}
	return nil
}

// Close closes the file. What streams write later is discarded. Closing twice
// is no error.
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
