package remote

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ledger keeps on disk what is known of one daemon: two lists, and the changes
// since. It is not synced: what it is for does not survive a reboot anyway.
type ledger struct {
	path string

	mu   sync.Mutex
	file *os.File // open for appending; nil before the first write
}

// Kinds of records beside those of changes.
const (
	sandboxList   kind = 'P'
	containerList kind = 'C'
)

// head begins a record.
func head(k kind, size int) []byte { return binary.AppendUvarint([]byte{byte(k)}, uint64(size)) }

// encode is the record of a change.
func (c change) encode() ([]byte, error) {
	content, err := []byte(c.id), error(nil)
	var before []byte
	switch c.kind {
	case madeSandbox:
		content, err = proto.Marshal(c.sandbox)
		if c.pin != "" {
			before = encodePin(c.sandbox.GetId(), c.pin)
		}
	case madeContainer:
		content, err = proto.Marshal(c.container)
	}
	return slices.Concat(before, head(c.kind, len(content)), content), err
}

// decode is the change of a record.
func decode(k kind, content []byte) (change, error) {
	c := change{kind: k}
	switch k {
	case madeSandbox:
		c.sandbox = &runtimeapi.PodSandbox{}
		return c, proto.Unmarshal(content, c.sandbox)
	case madeContainer:
		c.container = &runtimeapi.Container{}
		return c, proto.Unmarshal(content, c.container)
	case startedContainer, endedContainer, removedContainer, stoppedSandbox, removedSandbox:
		c.id = string(content)
		return c, nil
	}
	return c, fmt.Errorf("unknown kind of record %q", byte(k))
}

// write writes down all that is known.
func (l *ledger) write(k *known) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	pins := k.stay()
	k.mu.Lock()
	sandboxes, containers := k.sandboxes, k.containers
	changes := append([]change(nil), k.changes...)
	k.mu.Unlock()

	// Lists may be large, and are not copied. One that nobody told is none.
	var content net.Buffers
	for _, l := range []struct {
		kind
		page
	}{{sandboxList, sandboxes}, {containerList, containers}} {
		if !l.at.IsZero() {
			content = append(content, head(l.kind, len(l.frame)), l.frame)
		}
	}
	for id, name := range pins {
		content = append(content, encodePin(id, name))
	}
	for _, c := range changes {
		r, err := c.encode()
		if err != nil {
			return err
		}
		content = append(content, r)
	}
	fresh := l.path + ".new"
	file, err := os.OpenFile(fresh, os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	if _, err := content.WriteTo(file); err != nil {
		return errors.Join(err, file.Close(), os.Remove(fresh))
	}
	if at := older(sandboxes.at, containers.at); !at.IsZero() {
		if err := os.Chtimes(fresh, at, at); err != nil {
			return errors.Join(err, file.Close(), os.Remove(fresh))
		}
	}
	if err := os.Rename(fresh, l.path); err != nil {
		return errors.Join(err, file.Close(), os.Remove(fresh))
	}
	before := l.file
	l.file = file
	if before != nil {
		return before.Close()
	}
	return nil
}

// older is the time that is longer ago. A zero one is the longest.
func older(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// add writes down one more change.
func (l *ledger) add(c change) error {
	r, err := c.encode()
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		if l.file, err = os.OpenFile(l.path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600); err != nil {
			return err
		}
	}
	_, err = l.file.Write(r)
	return err
}

// load reads what was known. It is as old as the file, whose time is that of the
// lists, or of a call since. What a killed daemon had half written at the end is left out.
func (l *ledger) load(k *known) error {
	if err := os.MkdirAll(filepath.Dir(l.path), 0o700); err != nil {
		return err
	}
	content, err := os.ReadFile(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	info, err := os.Stat(l.path)
	if err != nil {
		return err
	}
	for whole := int64(0); len(content) > 0; {
		size, n := binary.Uvarint(content[1:])
		if n <= 0 || size > uint64(len(content)-1-n) {
			return os.Truncate(l.path, whole) // so that what is added can be read
		}
		body := content[1+n : 1+n+int(size)]
		switch at := kind(content[0]); at {
		case sandboxList:
			k.sandboxes.frame, k.sandboxes.at = append(frame(nil), body...), info.ModTime()
		case containerList:
			k.containers.frame, k.containers.at = append(frame(nil), body...), info.ModTime()
		case pinnedSandbox:
			k.pin(decodePin(body))
		default:
			c, err := decode(at, body)
			if err != nil {
				return fmt.Errorf("read %s: %w", l.path, err)
			}
			k.note(c)
		}
		whole += int64(1 + n + int(size))
		content = content[1+n+int(size):]
	}
	if _, err := k.state(); err != nil {
		return fmt.Errorf("read %s: a list is damaged", l.path)
	}
	return nil
}

// close ends the writing, and forgets everything if the daemon is no backend of
// this berth any more.
func (l *ledger) close(forget bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var err error
	if l.file != nil {
		err = l.file.Close()
		l.file = nil
	}
	if forget {
		if e := os.Remove(l.path); !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	return err
}
