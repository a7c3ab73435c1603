package crilog

import (
	"bytes"
	"fmt"
	"io"
	"time"
)

// batch collects the lines of one Write of a stream, to write them at once. It exists only while
// the log is locked, so times within a file never decrease unless the clock does.
type batch struct {
	log   *Log
	buf   []byte
	stamp []byte // time of its creation
}

const (
	// batchSize is the size of one write, except for a longer line.
	batchSize = 64 * 1024
	// spareBatches limits the memory of idle batches in the process.
	spareBatches = 2
)

// spare keeps idle batches. It is not a sync.Pool: the size of a pool would follow the load.
var spare = make(chan *batch, spareBatches)

func (l *Log) newBatch() (b *batch) {
	select {
	case b = <-spare:
	default:
		b = &batch{}
	}
	b.log, b.stamp = l, time.Now().UTC().AppendFormat(b.stamp[:0], time.RFC3339Nano)
	return b
}

func (b *batch) done() {
	b.log, b.buf = nil, b.buf[:0]
	if cap(b.buf) > 2*batchSize {
		return
	}
	select {
	case spare <- b:
	default:
	}
}

func (b *batch) line(tag string, head, tail []byte) {
	size := len(b.stamp) + len(tag) + len(head) + len(tail) + 1
	if len(b.buf)+size > batchSize {
		b.flush()
	}
	b.buf = append(b.buf, b.stamp...)
	b.buf = append(b.buf, tag...)
	b.buf = append(b.buf, head...)
	b.buf = append(b.buf, tail...)
	b.buf = append(b.buf, '\n')
}

// flush writes the lines. It drops lines that cannot be written.
func (b *batch) flush() {
	lines := b.buf
	b.buf = b.buf[:0]
	if len(lines) == 0 {
		return
	}
	l := b.log
	if l.torn {
		if _, err := l.file.Write([]byte{'\n'}); err != nil {
			l.failed(err)
			return
		}
		l.torn = false
	}
	if n, err := l.file.Write(lines); err != nil {
		l.repair(lines[:n])
		l.failed(err)
		return
	}
	l.failing = false
}

// repair removes an incomplete line from the end of the file after a write failed; written are the
// bytes that it wrote. Unlike repairEnd, it removes only bytes of this log.
func (l *Log) repair(written []byte) {
	excess := int64(len(written) - bytes.LastIndexByte(written, '\n') - 1)
	if excess == 0 {
		return
	}
	end, err := l.file.Seek(0, io.SeekEnd)
	if err == nil {
		err = l.file.Truncate(end - excess)
	}
	l.torn = err != nil
}

func (l *Log) failed(err error) {
	if !l.failing && l.onError != nil {
		l.onError(fmt.Errorf("write container output: %w", err))
	}
	l.failing = true
}
