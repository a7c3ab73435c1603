package nodefs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/berth-cri/berth/pkg/atomicfile"
)

// Bring copies all of a directory, or a file under that name with the companions that are beside it, to a directory of the node,
// which others see as a whole or not at all. Everything becomes root's, and nobody else may write it.
// change may change the text of files.
func (r Root) Bring(source, name string, companions []string, to string, change func(name string, text []byte) []byte, half func()) error {
	target := r.Path(to)
	if _, err := os.Lstat(target); err == nil {
		return nil
	}
	fresh := filepath.Join(filepath.Dir(target), "."+filepath.Base(target)+".new")
	if err := os.RemoveAll(fresh); err != nil {
		return err
	}
	if err := os.MkdirAll(fresh, 0o755); err != nil {
		return err
	}
	info, err := os.Stat(source)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		err = copyFile(source, filepath.Join(fresh, name), info, nil)
		for _, companion := range companions {
			if _, absent := os.Stat(filepath.Join(filepath.Dir(source), companion)); err == nil && absent == nil {
				err = copyAll(filepath.Dir(source), companion, fresh, change)
			}
		}
	} else {
		err = copyAll(source, ".", fresh, change)
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(fresh))
	}
	half()
	if err := os.Rename(fresh, target); err != nil {
		return err
	}
	return atomicfile.SyncDir(filepath.Dir(target))
}

// Complete copies the files of a directory that another one, of the node, does not have. What
// is there stays.
func (r Root) Complete(source, to string) error {
	return filepath.WalkDir(source, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		name, err := filepath.Rel(source, path)
		if err != nil || r.ExistsAny(filepath.Join(to, name)) {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return r.Put(filepath.Join(to, name), text, 0o644|info.Mode().Perm()&0o111)
	})
}

// copyAll copies what is at a place below source to the same place below fresh.
func copyAll(source, place, fresh string, change func(string, []byte) []byte) error {
	return filepath.WalkDir(filepath.Join(source, place), func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return copyEntry(source, path, fresh, entry, change)
	})
}

func copyEntry(source, path, fresh string, entry fs.DirEntry, change func(string, []byte) []byte) error {
	name, err := filepath.Rel(source, path)
	if err != nil || name == "." {
		return err
	}
	info, err := entry.Info()
	if err != nil {
		return err
	}
	to := filepath.Join(fresh, name)
	switch {
	case info.IsDir():
		return os.Mkdir(to, 0o755)
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(path)
		if err != nil {
			return err
		}
		if change != nil {
			target = string(change("", []byte(target)))
		}
		return os.Symlink(target, to)
	case info.Mode().IsRegular():
		var edit func([]byte) []byte
		if change != nil && strings.HasSuffix(name, ".toml") {
			edit = func(text []byte) []byte { return change(name, text) }
		}
		return copyFile(path, to, info, edit)
	}
	return fmt.Errorf("%s is neither a file, a directory nor a link", path)
}

func copyFile(from, to string, info fs.FileInfo, edit func([]byte) []byte) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	mode := 0o644 | info.Mode().Perm()&0o111
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	defer func() { err = atomicfile.Explain(errors.Join(err, out.Close())) }()
	if edit != nil {
		text, err := io.ReadAll(in)
		if err != nil {
			return err
		}
		_, err = out.Write(edit(text))
		return errors.Join(err, out.Chmod(mode), out.Sync())
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Chmod(mode), out.Sync())
}
