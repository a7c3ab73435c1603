// Package stdio opens the stdio of a process: FIFOs that the daemon created, or a terminal that the
// runtime created and sends. It does not copy any output.
package stdio

import (
	"fmt"
	"os"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// openFIFO opens a FIFO that the daemon created. The flags are those of open(2).
func openFIFO(path string, flags int) (int, error) {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil {
		return -1, fmt.Errorf("open FIFO %s: %w", path, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return -1, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFIFO {
		unix.Close(fd)
		return -1, fmt.Errorf("%s is not a FIFO: %w", path, errdefs.ErrInvalidArgument)
	}
	return fd, nil
}

// OpenReader opens a FIFO for reading. It does not wait for a writer.
func OpenReader(path string) (*os.File, error) { return openEnd(path, unix.O_RDONLY) }

// OpenWriter opens a FIFO for writing. It fails with unix.ENXIO if the FIFO has no reader.
func OpenWriter(path string) (*os.File, error) { return openEnd(path, unix.O_WRONLY) }

func openEnd(path string, mode int) (*os.File, error) {
	fd, err := openFIFO(path, mode|unix.O_NONBLOCK)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

// HoldOpen opens a write end of a FIFO, with or without a reader, so that its reader sees no end of
// file.
func HoldOpen(path string) (*os.File, error) {
	reader, err := openFIFO(path, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return nil, err
	}
	defer unix.Close(reader)
	return OpenWriter(path)
}

// Paths are the FIFOs of a process; an empty path stands for /dev/null.
type Paths struct {
	Stdin, Stdout, Stderr string
}

// Ends are the stdio descriptors of a process without a terminal.
type Ends struct {
	FDs  [3]int
	temp []int // other ends, held while the process is being started
}

// OutputMode selects how the process's ends of its output FIFOs are opened.
type OutputMode int

const (
	// OutlivesReader ends are open for reading too: without a reader the process blocks until there
	// is a reader again, and SIGPIPE does not kill it.
	OutlivesReader OutputMode = iota
	// DiesWithReader ends are for writing only.
	DiesWithReader
)

// Open opens the ends of a process. uid and gid become the owners of its FIFOs unless both are 0.
func Open(p Paths, mode OutputMode, uid, gid uint32) (_ *Ends, retErr error) {
	s := &Ends{FDs: [3]int{-1, -1, -1}}
	defer func() {
		if retErr != nil {
			s.Close()
		}
	}()
	for i, path := range []string{p.Stdin, p.Stdout, p.Stderr} {
		fd, err := s.open(i, path, mode)
		if err != nil {
			return nil, err
		}
		s.FDs[i] = fd
		if path != "" && (uid != 0 || gid != 0) {
			if err := unix.Fchown(fd, int(uid), int(gid)); err != nil {
				return nil, fmt.Errorf("change owner of %s to %d:%d: %w", path, uid, gid, err)
			}
		}
	}
	return s, nil
}

func (s *Ends) open(i int, path string, mode OutputMode) (int, error) {
	switch {
	case path == "":
		return unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	case i == 0:
		// The open must not wait for a writer, but the process expects blocking reads.
		fd, err := openFIFO(path, unix.O_RDONLY|unix.O_NONBLOCK)
		if err != nil {
			return -1, err
		}
		return fd, unix.SetNonblock(fd, false)
	case mode == OutlivesReader:
		return openFIFO(path, unix.O_RDWR)
	}
	// The client may open its end only after the start: until then this reader protects the process
	// from SIGPIPE.
	reader, err := openFIFO(path, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return -1, err
	}
	s.temp = append(s.temp, reader)
	return openFIFO(path, unix.O_WRONLY)
}

// Close closes the ends in this process.
func (s *Ends) Close() {
	for _, fd := range append(s.temp, s.FDs[:]...) {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
	s.temp, s.FDs = nil, [3]int{-1, -1, -1}
}
