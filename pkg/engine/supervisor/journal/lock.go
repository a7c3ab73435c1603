package journal

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// lockFile is in a supervisor's directory. The serving process holds a lock on the file for its
// whole life, and has written its pid into the file.
const lockFile = "lock"

// A child that was being forked when its supervisor was killed keeps the lock until it executes its
// program: Lock retries for lockPatience.
const (
	lockPatience = time.Second
	lockRetry    = 5 * time.Millisecond
)

// Lock makes this process the only supervisor of dir until the file is closed. It fails with
// errdefs.ErrAlreadyExists if there is another supervisor.
func Lock(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	for end := time.Now().Add(lockPatience); ; time.Sleep(lockRetry) {
		err = tryLock(f)
		if !errors.Is(err, unix.EWOULDBLOCK) || time.Now().After(end) {
			break
		}
	}
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = fmt.Errorf("%s is already served by process %s; a directory can have only one supervisor: %w", dir, holder(f), errdefs.ErrAlreadyExists)
	}
	if err == nil {
		err = f.Truncate(0)
	}
	if err == nil {
		_, err = f.WriteString(strconv.Itoa(os.Getpid()))
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func tryLock(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) }

func holder(f *os.File) string {
	b := make([]byte, 20)
	n, err := f.ReadAt(b, 0)
	if pid := strings.TrimSpace(string(b[:n])); pid != "" && (err == nil || errors.Is(err, io.EOF)) {
		return pid
	}
	return "unknown"
}

// Holder returns the pid of the process that serves dir, or served it last. It takes no lock, so it
// can be called at any time.
func Holder(dir string) (pid int, known bool) {
	f, err := os.Open(filepath.Join(dir, lockFile))
	if err != nil {
		return 0, false
	}
	defer f.Close()
	pid, err = strconv.Atoi(holder(f))
	return pid, err == nil
}

// Served reports whether a process serves dir, and its pid ("unknown" for a moment during its
// start). It takes the lock for a moment, so it must not be called while a supervisor is being
// started in dir.
func Served(dir string) (pid string, yes bool, err error) {
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return "", false, nil
	}
	if err != nil {
		return "", false, err
	}
	defer f.Close()
	switch err := tryLock(f); {
	case err == nil:
		return "", false, nil
	case errors.Is(err, unix.EWOULDBLOCK):
		return holder(f), true, nil
	default:
		return "", false, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
}
