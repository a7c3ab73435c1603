package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// buffer holds one file of statistics. The largest, memory.stat, has 2 KiB.
type buffer [16 << 10]byte

var buffers = sync.Pool{New: func() any { return new(buffer) }}

// dir is an open cgroup. err keeps its first error other than a missing file, so that callers read
// several files and check once.
type dir struct {
	fd   int
	path string
	buf  *buffer
	err  error
}

// readDir calls read with a cgroup, unless the cgroup is gone or path is empty.
func readDir(path string, read func(*dir)) (found bool, err error) {
	if path == "" {
		return false, nil
	}
	fd, err := ignoringEINTR(func() (int, error) {
		return unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if gone(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("open %s: %w", path, err)
	}
	defer unix.Close(fd)
	d := &dir{fd: fd, path: path, buf: buffers.Get().(*buffer)}
	defer buffers.Put(d.buf)
	read(d)
	return true, d.err
}

// part is a directory and the function that reads it.
type part struct {
	path string
	read func(*dir)
}

// readParts reads the directories that exist, and reports whether any does.
func readParts(parts ...part) (found bool, err error) {
	for _, p := range parts {
		is, partErr := readDir(p.path, p.read)
		found, err = found || is, errors.Join(err, partErr)
	}
	return found, err
}

// read returns the content of a file, or nil if it does not exist: the controller is off, or the
// cgroup was removed meanwhile. The content is valid until the next read. One read is enough,
// because the kernel generates the whole text. It takes three system calls, where the os package
// takes five and allocates memory.
func (d *dir) read(name string) []byte {
	if d.err != nil {
		return nil
	}
	n, err := d.readFile(name)
	if err != nil {
		if !gone(err) && !errors.Is(err, unix.EOPNOTSUPP) { // pressure stall information is disabled
			d.err = fmt.Errorf("read %s/%s: %w", d.path, name, err)
		}
		return nil
	}
	return d.buf[:n]
}

func (d *dir) readFile(name string) (int, error) {
	fd, err := ignoringEINTR(func() (int, error) {
		return unix.Openat(d.fd, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	return ignoringEINTR(func() (int, error) { return unix.Read(fd, d.buf[:]) })
}

func gone(err error) bool { return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) }

func ignoringEINTR(f func() (int, error)) (int, error) {
	for {
		n, err := f()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// number reads a file with one number. It is unknown for "max".
func (d *dir) number(name string) Value {
	n, ok := parseUint(bytes.TrimSpace(d.read(name)))
	return Value{n, ok}
}

// fieldTarget is the destination of a key's value.
type fieldTarget struct {
	key string
	to  *Value
}

// fields reads the "key number" lines of a file for the keys in into.
func (d *dir) fields(name string, into ...fieldTarget) { fields(d.read(name), into...) }

func fields(text []byte, into ...fieldTarget) {
	for line := range bytes.Lines(text) {
		key, value, _ := bytes.Cut(bytes.TrimSuffix(line, []byte{'\n'}), []byte{' '})
		i := slices.IndexFunc(into, func(p fieldTarget) bool { return p.key == string(key) })
		if i < 0 {
			continue
		}
		if n, ok := parseUint(value); ok {
			*into[i].to = Known(n)
		}
	}
}

func (d *dir) field(name, key string) (v Value) {
	d.fields(name, fieldTarget{key, &v})
	return v
}

func parseUint(b []byte) (uint64, bool) {
	n, err := strconv.ParseUint(string(b), 10, 64)
	if err != nil {
		return 0, false
	}
	return n, true
}

func (d *dir) pressure(name string) *Pressure {
	b := d.read(name)
	if b == nil {
		return nil
	}
	return parsePressure(b)
}

// parsePressure parses lines such as
//
//	some avg10=0.00 avg60=1.25 avg300=0.40 total=9000
func parsePressure(text []byte) *Pressure {
	var p Pressure
	for line := range bytes.Lines(text) {
		kind, numbers, _ := bytes.Cut(line, []byte{' '})
		switch string(kind) {
		case "some":
			p.Some = parseStall(numbers)
		case "full":
			p.Full = parseStall(numbers)
		}
	}
	return &p
}

func parseStall(text []byte) Stall {
	var s Stall
	for word := range bytes.FieldsSeq(text) {
		key, value, _ := bytes.Cut(word, []byte{'='})
		n, _ := strconv.ParseFloat(string(value), 64)
		switch string(key) {
		case "avg10":
			s.Avg10 = n
		case "avg60":
			s.Avg60 = n
		case "avg300":
			s.Avg300 = n
		case "total":
			s.TotalNano = uint64(n) * 1000
		}
	}
	return s
}
