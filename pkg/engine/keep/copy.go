package keep

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/failpoint"
	"github.com/berth-cri/berth/pkg/probe"
)

// make writes the copy of b from the installed binary with that identity, and
// puts it in place whole, flushed and read again.
func (s *Store) make(b Binary, from probe.Identity) (Stamp, error) {
	in, err := openAs(from)
	if err != nil {
		return Stamp{}, err
	}
	defer in.Close()
	to := s.Abs(b)
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return Stamp{}, err
	}
	// Halves are beside the directories of copies, where they are swept up.
	half, err := os.CreateTemp(s.dir, HalfPrefix+"*")
	if err != nil {
		return Stamp{}, err
	}
	defer os.Remove(half.Name()) // gone when all went well
	err = fill(half, in)
	if err = errors.Join(err, half.Close()); err != nil {
		return Stamp{}, err
	}
	if err := isRight(half.Name(), b.SHA256); err != nil {
		return Stamp{}, err
	}
	failpoint.Hit(failpoint.BinaryCopied)
	if err := os.Rename(half.Name(), to); err != nil {
		return Stamp{}, err
	}
	if err := errors.Join(flushDir(filepath.Dir(to)), flushDir(s.dir)); err != nil {
		return Stamp{}, err
	}
	failpoint.Hit(failpoint.BinaryKept)
	stamp, err := stampOf(to)
	if err == nil {
		s.remember(b, stamp)
	}
	return stamp, err
}

// fill makes to a program with the content and labels of from.
func fill(to, from *os.File) error {
	if err := unix.IoctlFileClone(int(to.Fd()), int(from.Fd())); err != nil { // shares the blocks, where that can be
		if _, err := io.Copy(to, from); err != nil {
			return err
		}
	}
	if err := to.Chmod(0o755); err != nil {
		return err
	}
	// After the last change of the content, which takes capabilities away.
	for _, name := range []string{"security.selinux", "security.capability"} {
		if err := carry(to, from, name); err != nil {
			return fmt.Errorf("carry over %s: %w", name, err)
		}
	}
	return to.Sync()
}

// carry copies an extended attribute, if from has it.
func carry(to, from *os.File, name string) error {
	value := make([]byte, 4096)
	n, err := unix.Fgetxattr(int(from.Fd()), name, value)
	if errors.Is(err, unix.ENODATA) || errors.Is(err, unix.ENOTSUP) {
		return nil
	}
	if err != nil {
		return err
	}
	return unix.Fsetxattr(int(to.Fd()), name, value[:n], 0)
}

// isRight reads a file again, and fails unless it has that hash.
func isRight(path, want string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	hash, err := hashOf(f)
	if err == nil && hash != want {
		err = ErrChanged
	}
	return err
}

func hashOf(r io.Reader) (string, error) {
	h := sha256.New()
	_, err := io.Copy(h, r)
	return hex.EncodeToString(h.Sum(nil)), err
}

// openAs opens the binary with that identity.
func openAs(id probe.Identity) (*os.File, error) {
	f, err := os.Open(id.Path)
	if errors.Is(err, os.ErrNotExist) {
		err = fmt.Errorf("%w: %w", ErrChanged, err)
	}
	if err != nil {
		return nil, err
	}
	if err := stillIs(id); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func stillIs(id probe.Identity) error {
	now, err := probe.Identify(id.Path)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrChanged, err)
	}
	if !now.Same(id) {
		return fmt.Errorf("%s: %w", id.Path, ErrChanged)
	}
	return nil
}

func flushDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
