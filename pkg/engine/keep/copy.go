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

// create makes the copy of b from the installed binary. All files are written to a temporary
// directory, flushed and read back before the first is renamed; the executable comes last, so a
// copy without it is incomplete.
func (s *Store) create(b Binary, from probe.Identity) ([]Stamp, error) {
	if err := checkUnchanged(from); err != nil {
		return nil, err
	}
	// Temporary directories lie beside the copies, where the collector removes leftovers.
	partial, err := os.MkdirTemp(s.dir, PartialPrefix+"*")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(partial)
	to := s.files(b)
	aside := make([]probe.File, len(to))
	for i, f := range to {
		source := from.Path
		if i > 0 {
			source = from.Companions[i-1].Identity.Path
		}
		aside[i] = probe.File{Name: f.Name, Path: filepath.Join(partial, strconv.Itoa(i))}
		if err := copyFile(aside[i].Path, source); err != nil {
			return nil, err
		}
	}
	if hash, err := probe.Sum(aside); err != nil || hash != b.SHA256 {
		return nil, cmp.Or(err, ErrChanged)
	}
	failpoint.Hit(failpoint.BinaryCopied)
	for i, f := range slices.Backward(to) {
		if err := moveDurably(aside[i].Path, f.Path); err != nil {
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

func moveDurably(from, to string) error {
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

// fill copies the content, the SELinux label and the file capabilities of from, and makes the file
// executable.
func fill(to, from *os.File) error {
	if err := unix.IoctlFileClone(int(to.Fd()), int(from.Fd())); err != nil { // shares the blocks if the filesystem supports it
		if _, err := io.Copy(to, from); err != nil {
			return err
		}
	}
	if err := to.Chmod(0o755); err != nil {
		return err
	}
	// Attributes come last, because a write to the content clears file capabilities.
	for _, name := range []string{"security.selinux", "security.capability"} {
		if err := copyXattr(to, from, name); err != nil {
			return fmt.Errorf("carry over %s: %w", name, err)
		}
	}
	return to.Sync()
}

func copyXattr(to, from *os.File, name string) error {
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

func checkUnchanged(id probe.Identity) error {
	now, err := id.Again()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrChanged, err)
	}
	if !now.Same(id) {
		return fmt.Errorf("%s: %w", id.Path, ErrChanged)
	}
	return nil
}
