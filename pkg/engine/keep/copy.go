package keep

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/atomicfile"
	"github.com/berth-cri/berth/pkg/engine/failpoint"
	"github.com/berth-cri/berth/pkg/probe"
)

// make writes the copy of b from the installed binary with that identity. All files are
// written aside, flushed and read again before the first is put in place; the executable
// comes last, so that a copy without it is one that was not finished.
func (s *Store) make(b Binary, from probe.Identity) ([]Stamp, error) {
	if err := stillIs(from); err != nil {
		return nil, err
	}
	// Halves are beside the directories of copies, where they are swept up.
	half, err := os.MkdirTemp(s.dir, HalfPrefix+"*")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(half)
	to := s.files(b)
	aside := make([]probe.File, len(to))
	for i, f := range to {
		source := from.Path
		if i > 0 {
			source = from.Companions[i-1].Identity.Path
		}
		aside[i] = probe.File{Name: f.Name, Path: filepath.Join(half, strconv.Itoa(i))}
		if err := copyFile(aside[i].Path, source); err != nil {
			return nil, err
		}
	}
	if hash, err := probe.Sum(aside); err != nil || hash != b.SHA256 {
		return nil, cmp.Or(err, ErrChanged)
	}
	failpoint.Hit(failpoint.BinaryCopied)
	for i, f := range slices.Backward(to) {
		if err := place(aside[i].Path, f.Path); err != nil {
			return nil, err
		}
	}
	if err := atomicfile.SyncDir(s.dir); err != nil {
		return nil, err
	}
	failpoint.Hit(failpoint.BinaryKept)
	stamps, err := s.stamps(b)
	if err == nil {
		s.remember(b, stamps)
	}
	return stamps, err
}

// place moves a file to where it belongs, on disk.
func place(from, to string) error {
	dir := filepath.Dir(to)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return errors.Join(atomicfile.SyncDir(dir), atomicfile.SyncDir(filepath.Dir(dir)))
}

func copyFile(to, from string) error {
	in, err := os.Open(from)
	if errors.Is(err, os.ErrNotExist) {
		err = fmt.Errorf("%w: %w", ErrChanged, err)
	}
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(fill(out, in), out.Close())
}

// fill gives to the content, labels and right to be executed of from.
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

func stillIs(id probe.Identity) error {
	now, err := id.Again()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrChanged, err)
	}
	if !now.Same(id) {
		return fmt.Errorf("%s: %w", id.Path, ErrChanged)
	}
	return nil
}
