package manifest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/atomicfile"
	"github.com/berth-cri/berth/pkg/engine/beneath"
	"github.com/berth-cri/berth/pkg/engine/wanted"
)

// Seal completes a checkpoint of the files that a runtime wrote to ImagesDir of dir: it makes them
// accessible to root only, lists them in m, and writes m. Everything is on disk when it returns.
func Seal(ctx context.Context, dir string, m *Manifest) error {
	names, err := list(dir)
	if err != nil {
		return err
	}
	m.Format, m.Files = format, nil
	for _, name := range names {
		f, err := seal(ctx, dir, name)
		if err != nil {
			return fmt.Errorf("checkpoint file %s: %w", name, err)
		}
		m.Files = append(m.Files, f)
	}
	if err := m.check(); err != nil {
		return err
	}
	if err := atomicfile.SyncDir(filepath.Join(dir, ImagesDir)); err != nil {
		return err
	}
	return m.write(dir)
}

// Thoroughness selects the checksum to verify.
type Thoroughness int

const (
	// Quickly verifies CRC32C, while a caller waits for a pod.
	Quickly Thoroughness = iota
	// Thoroughly verifies SHA-256.
	Thoroughly
)

func seal(ctx context.Context, dir, name string) (File, error) {
	f, err := beneath.Read(dir, filepath.Join(ImagesDir, name))
	if err != nil {
		return File{}, err
	}
	defer f.Close()
	if err := errors.Join(f.Chmod(0o600), f.Sync()); err != nil {
		return File{}, err
	}
	sum, crc := sha256.New(), crc32.New(castagnoli)
	n, err := read(ctx, io.MultiWriter(sum, crc), f)
	return File{Name: name, Size: n, SHA256: hex.EncodeToString(sum.Sum(nil)), CRC32C: crc.Sum32()}, err
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Verify fails unless ImagesDir of dir contains exactly the files of m, unchanged and writable by
// root only.
func (m *Manifest) Verify(ctx context.Context, dir string, how Thoroughness) error {
	names, err := list(dir)
	if err != nil {
		return err
	}
	there := map[string]bool{}
	for _, name := range names {
		there[name] = true
	}
	for _, want := range m.Files {
		if !there[want.Name] {
			return damaged("its file %s is missing", want.Name)
		}
		delete(there, want.Name)
		if err := want.verify(ctx, dir, how); err != nil {
			return err
		}
	}
	for name := range there {
		return damaged("it has another file, %q, which its manifest does not list", name)
	}
	return nil
}

func (f File) verify(ctx context.Context, dir string, how Thoroughness) error {
	in, err := beneath.Read(dir, filepath.Join(ImagesDir, f.Name))
	if err != nil {
		return damaged("%v", err)
	}
	defer in.Close()
	if err := checkRootOnly(in); err != nil {
		return err
	}
	info, err := in.Stat()
	if err != nil {
		return err
	}
	if info.Size() != f.Size {
		return damaged("its file %s has %d bytes instead of %d", f.Name, info.Size(), f.Size)
	}
	sum, crc := sha256.New(), crc32.New(castagnoli)
	var to io.Writer = crc
	if how == Thoroughly {
		to = io.MultiWriter(sum, crc)
	}
	if _, err := read(ctx, to, in); err != nil {
		return err
	}
	if crc.Sum32() != f.CRC32C || how == Thoroughly && hex.EncodeToString(sum.Sum(nil)) != f.SHA256 {
		return damaged("its file %s was changed", f.Name)
	}
	return nil
}

// checkRootOnly refuses a file that users other than root can change: they may replace it before
// the runtime opens it.
func checkRootOnly(f *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	if st.Uid != 0 || st.Mode&0o022 != 0 {
		return fmt.Errorf("%s belongs to user %d with mode %#o, and others than root can change it; give it to root, with mode 0700 for directories and 0600 for files: %w", f.Name(), st.Uid, st.Mode&0o7777, errdefs.ErrInvalidArgument)
	}
	return nil
}

// list returns the names of all files in ImagesDir. It fails unless only root can change dir and
// ImagesDir.
func list(dir string) (names []string, err error) {
	_, err = Entries(dir)
	var all []os.DirEntry
	if err == nil {
		all, err = Entries(filepath.Join(dir, ImagesDir))
	}
	if _, is := errors.AsType[*fs.PathError](err); is {
		err = damaged("%v", err)
	}
	for _, e := range all {
		names = append(names, e.Name())
	}
	return names, err
}

func read(ctx context.Context, to io.Writer, f *os.File) (int64, error) {
	return io.CopyBuffer(to, wanted.Reader(ctx, f), make([]byte, 1<<20))
}

// Empty fails unless path is an empty directory that only root can change.
func Empty(path string) error {
	entries, err := Entries(path)
	if _, unreadable := errors.AsType[*fs.PathError](err); unreadable {
		return fmt.Errorf("the directory of the checkpoint: %w; create it first: %w", err, errdefs.ErrInvalidArgument)
	}
	if len(entries) > 0 {
		return fmt.Errorf("the directory %s is not empty; name an empty one: %w", path, errdefs.ErrInvalidArgument)
	}
	return err
}

// ownNames are all names that berth creates in the directory of a checkpoint.
var ownNames = []string{Name, "." + Name + ".new", ImagesDir}

// Entries returns the entries of a directory, sorted by name. It fails if users other than root can
// change the directory.
func Entries(dir string) ([]os.DirEntry, error) {
	d, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	if err := checkRootOnly(d); err != nil {
		return nil, err
	}
	entries, err := d.ReadDir(-1)
	slices.SortFunc(entries, func(a, b os.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, err
}

// Others returns the names in the directory of a checkpoint that are not berth's.
func Others(dir string) (others []string, err error) {
	entries, err := Entries(dir)
	for _, e := range entries {
		if !slices.Contains(ownNames, e.Name()) {
			others = append(others, e.Name())
		}
	}
	return others, err
}

// Remove removes berth's files from the directory of a checkpoint.
func Remove(dir string) error {
	info, err := os.Lstat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s is not a directory: %w", dir, errdefs.ErrFailedPrecondition)
	}
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	// The manifest is removed first: without it the rest is not a checkpoint.
	for _, name := range ownNames {
		err = errors.Join(err, root.RemoveAll(name))
	}
	return errors.Join(err, root.Close())
}
