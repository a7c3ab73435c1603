package nodefs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/berth-cri/berth/pkg/atomicfile"
)

// Put writes a file of the node, and creates the directories above it.
func (r Root) Put(path string, content []byte, mode fs.FileMode) error {
	there := r.Path(path)
	if err := os.MkdirAll(filepath.Dir(there), 0o755); err != nil {
		return err
	}
	if old, err := os.ReadFile(there); err == nil && bytes.Equal(old, content) {
		return nil
	}
	return atomicfile.Write(there, content, mode, atomicfile.Durable)
}

// Remove removes a file, and the temporary file of a killed Put.
func (r Root) Remove(path string) error {
	for _, file := range []string{atomicfile.TempPath(r.Path(path)), r.Path(path)} {
		if err := atomicfile.Remove(file); err != nil && !errors.Is(err, syscall.ENOTDIR) {
			return err
		}
	}
	return nil
}

// Link creates or replaces a symbolic link.
func (r Root) Link(path, target string) error {
	there := r.Path(path)
	if now, err := os.Readlink(there); err == nil && now == target {
		return nil
	}
	return atomicfile.Symlink(target, there)
}

// Copy copies a file or a directory tree to a path of the node. Existing files stay, so an
// interrupted copy can be resumed. The copies belong to root, and only root can write them. Link
// targets, and the text of .toml files, go through edit if it is not nil. each is called after each
// copied file.
func (r Root) Copy(source, to string, edit func(string) string, each func()) error {
	return filepath.WalkDir(source, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(source, path)
		if err != nil {
			return err
		}
		target := r.Path(filepath.Join(to, name))
		if entry.IsDir() {
			return os.MkdirAll(target, 0o755)
		}
		if _, err := os.Lstat(target); err == nil {
			return nil
		}
		if err := copyEntry(path, target, entry, edit); err != nil {
			return err
		}
		each()
		return nil
	})
}

func copyEntry(path, target string, entry fs.DirEntry, edit func(string) string) error {
	if edit == nil {
		edit = func(text string) string { return text }
	}
	switch {
	case entry.Type()&fs.ModeSymlink != 0:
		link, err := os.Readlink(path)
		if err != nil {
			return err
		}
		return os.Symlink(edit(link), target)
	case !entry.Type().IsRegular():
		return fmt.Errorf("%s is not a file, a directory or a link", path)
	case strings.HasSuffix(path, ".toml"):
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return atomicfile.Write(target, []byte(edit(string(text))), 0o644, atomicfile.Durable)
	}
	return CopyFile(path, target)
}

// CopyFile copies a file atomically. The copy is executable if the source is.
func CopyFile(from, to string) (err error) {
	defer func() { err = atomicfile.Explain(err) }()
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	return atomicfile.WriteBy(atomicfile.TempPath(to), to, 0o644|info.Mode().Perm()&0o111, atomicfile.Durable, func(w io.Writer) error {
		_, err := io.Copy(w, in)
		return err
	})
}
