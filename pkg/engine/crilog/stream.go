package crilog

import "bytes"

// Stream is one of the streams of a log. It buffers the start of a line until the line ends or is
// too long. Only one goroutine at a time may use it.
type Stream struct {
	log      *Log
	full     string // between the time and the content
	partial  string
	terminal bool
	pending  []byte // the start of a line, at most log.maxLine bytes
}

// keptPending is the largest buffer that an idle stream keeps.
const keptPending = 1024

// Stream returns a stream of that name; its lines end with a line feed.
func (l *Log) Stream(name string) *Stream {
	return &Stream{log: l, full: " " + name + " F ", partial: " " + name + " P "}
}

// Terminal returns the single stream of a terminal. Its lines end with carriage return and line
// feed, neither of which is logged.
func (l *Log) Terminal() *Stream {
	s := l.Stream(Stdout)
	s.terminal = true
	return s
}

// Write logs every line that ends in p, and buffers the start of the next one. It accepts all of p
// and never fails.
func (s *Stream) Write(p []byte) (int, error) {
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	if s.log.file == nil {
		s.pending = nil
		return len(p), nil
	}
	b := s.log.newBatch()
	defer b.done()
	rest := p
	for {
		end := bytes.IndexByte(rest, '\n')
		if end < 0 {
			break
		}
		s.end(b, rest[:end])
		rest = rest[end+1:]
	}
	rest = s.split(b, rest)
	s.pending = append(s.pending, rest...)
	b.flush()
	return len(p), nil
}

// Close logs an unfinished line as partial. The stream can be used again.
func (s *Stream) Close() error {
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	if s.log.file == nil || len(s.pending) == 0 {
		return nil
	}
	b := s.log.newBatch()
	defer b.done()
	b.line(s.partial, s.pending, nil)
	s.pending = nil
	b.flush()
	return nil
}

func (s *Stream) end(b *batch, content []byte) {
	if s.terminal {
		content = s.trim(content)
	}
	content = s.split(b, content)
	b.line(s.full, s.pending, content)
	s.release()
}

// split logs the full parts of the line, and returns the rest of content; s.pending and the rest
// together do not exceed the limit.
func (s *Stream) split(b *batch, content []byte) []byte {
	limit := s.log.maxLine
	if limit < 0 {
		return content
	}
	for len(s.pending)+len(content) > limit {
		part := limit - len(s.pending)
		b.line(s.partial, s.pending, content[:part])
		content = content[part:]
		s.release()
	}
	return content
}

func (s *Stream) trim(content []byte) []byte {
	if len(content) > 0 {
		return bytes.TrimSuffix(content, []byte{'\r'})
	}
	s.pending = bytes.TrimSuffix(s.pending, []byte{'\r'})
	return content
}

func (s *Stream) release() {
	if cap(s.pending) > keptPending {
		s.pending = nil
		return
	}
	s.pending = s.pending[:0]
}
