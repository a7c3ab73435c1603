package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// buffer takes one file of statistics. The largest, memory.stat, has 2 KiB.
type buffer [16 << 10]byte

var buffers = sync.Pool{New: func() any { return new(buffer) }}

// dir is an open cgroup. Its first error other than a missing file stays in err,
// so that callers read several files and ask once.
type dir struct {
	fd   int
	path string
	err  error
}

// openDir opens a cgroup; ok is false when it is gone.
func openDir(path string) (d *dir, ok bool, err error) {
	fd, err := ignoringEINTR(func() (int, error) {
		return unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	switch {
	case err == nil:
		return &dir{fd: fd, path: path}, true, nil
	case gone(err):
		return nil, false, nil
	default:
		return nil, false, fmt.Errorf("open %s: %w", path, err)
	}
}

func (d *dir) close() { unix.Close(d.fd) }

// read returns the content of a file, in buf, or nil when there is none: the
// controller is off, or the cgroup went away meanwhile. One read is enough: the
// kernel makes up a file's text as a whole. It takes three system calls, where
// the os package takes five and memory.
func (d *dir) read(name string, buf *buffer) []byte {
	if d.err != nil {
		return nil
	}
	n, err := d.readInto(name, buf)
	if err != nil {
		if !gone(err) && !errors.Is(err, unix.EOPNOTSUPP) { // pressure that is turned off
			d.err = fmt.Errorf("read %s/%s: %w", d.path, name, err)
		}
		return nil
	}
	return buf[:n]
}

func (d *dir) readInto(name string, buf *buffer) (int, error) {
	fd, err := ignoringEINTR(func() (int, error) {
		return unix.Openat(d.fd, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	return ignoringEINTR(func() (int, error) { return unix.Read(fd, buf[:]) })
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

// number reads a file that is one number. "max" is not known.
func (d *dir) number(name string, buf *buffer) Value {
	n, ok := parseUint(bytes.TrimSpace(d.read(name, buf)))
	return Value{n, ok}
}

// fields calls f for each "key number" line of a file.
func fields(text []byte, f func(key string, n uint64)) {
	for len(text) > 0 {
		var line []byte
		line, text, _ = bytes.Cut(text, []byte{'\n'})
		key, value, ok := bytes.Cut(line, []byte{' '})
		if !ok {
			continue
		}
		if n, ok := parseUint(value); ok {
			f(text2string(key), n)
		}
	}
}

func field(text []byte, key string) (n uint64, ok bool) {
	fields(text, func(k string, v uint64) {
		if k == key {
			n, ok = v, true
		}
	})
	return n, ok
}

// text2string saves an allocation per line; the string is valid during the call
// that it is given to.
func text2string(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

func parseUint(b []byte) (uint64, bool) {
	if len(b) == 0 {
		return 0, false
	}
	var n uint64
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + uint64(c-'0')
	}
	return n, true
}

// pressure reads a file of stall information.
func (d *dir) pressure(name string, buf *buffer) *Pressure {
	b := d.read(name, buf)
	if b == nil {
		return nil
	}
	return parsePressure(b)
}

// parsePressure takes lines such as
//
//	some avg10=0.00 avg60=1.25 avg300=0.40 total=9000
func parsePressure(text []byte) *Pressure {
	var p Pressure
	for line := range bytes.Lines(text) {
		words := bytes.Fields(line)
		if len(words) == 0 {
			continue
		}
		switch string(words[0]) {
		case "some":
			p.Some = parseStall(words[1:])
		case "full":
			p.Full = parseStall(words[1:])
		}
	}
	return &p
}

func parseStall(words [][]byte) Stall {
	var s Stall
	for _, word := range words {
		key, value, _ := bytes.Cut(word, []byte{'='})
		switch string(key) {
		case "avg10":
			s.Avg10 = parsePercent(value)
		case "avg60":
			s.Avg60 = parsePercent(value)
		case "avg300":
			s.Avg300 = parsePercent(value)
		case "total":
			usec, _ := parseUint(value)
			s.TotalNano = usec * 1000
		}
	}
	return s
}

func parsePercent(b []byte) float64 {
	f, err := strconv.ParseFloat(string(b), 64)
	if err != nil {
		return 0
	}
	return f
}
