package crilog

import (
	"bytes"
	"fmt"
	"io"
	"os"
)

// mendEnd takes half a line from the end of a file that a killed writer left:
// the kernel gives a write up between two pages when its caller is killed. torn
// says that the file still ends within a line.
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
