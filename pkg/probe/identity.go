package probe

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
)

// Identify reads the identity of the executable at path and of its companions without running it.
// Companions are files and directories, named relative to the directory of the executable after
// symbolic links are resolved, because programs look for them there. Identity.Path stays as given:
// that path is executed.
func Identify(path string, companions ...string) (Identity, error) {
	fi, err := os.Stat(path)
	if err != nil {
		return Identity{}, fmt.Errorf("runtime binary: %w; install it or correct the handler's runtime_path: %w", err, errdefs.ErrUnavailable)
	}
	if !fi.Mode().IsRegular() || fi.Mode().Perm()&0o111 == 0 {
		return Identity{}, fmt.Errorf("runtime binary %s is not an executable file (%s); correct the handler's runtime_path: %w", path, fi.Mode(), errdefs.ErrUnavailable)
	}
	id, err := identityOf(path, fi)
	if err != nil {
		return id, err
	}
	return id.with(companions)
}

// with returns the identity of the same executable with more companions.
func (i Identity) with(companions []string) (_ Identity, err error) {
	if len(companions) == 0 {
		return i, nil
	}
	i.Beside = slices.Concat(i.Beside, companions)
	if i.Companions, err = beside(i.Path, i.Beside); err != nil {
		return Identity{}, fmt.Errorf("runtime binary %s lacks a companion: %w; install all files of its release side by side: %w", i.Path, err, errdefs.ErrUnavailable)
	}
	return i, nil
}

func identityOf(path string, fi fs.FileInfo) (Identity, error) {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return Identity{}, fmt.Errorf("runtime binary %s: stat has no inode: %w", path, errdefs.ErrInternal)
	}
	return Identity{
		Path: path, Dev: st.Dev, Inode: st.Ino, Size: fi.Size(), ModTime: fi.ModTime(), ChangeTime: time.Unix(st.Ctim.Unix()),
	}, nil
}

// beside returns the regular files of an executable's companions, sorted by name.
func beside(path string, companions []string) ([]Companion, error) {
	executable, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, err
	}
	dir := filepath.Dir(executable)
	var all []Companion
	for _, name := range companions {
		err := filepath.WalkDir(filepath.Join(dir, name), func(file string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			fi, err := os.Stat(file)
			if err != nil {
				return err
			}
			if !fi.Mode().IsRegular() {
				return fmt.Errorf("%s is not a regular file (%s)", file, fi.Mode())
			}
			id, err := identityOf(file, fi)
			relative, failure := filepath.Rel(dir, file)
			all = append(all, Companion{relative, id})
			return errors.Join(err, failure)
		})
		if err != nil {
			return nil, err
		}
	}
	slices.SortFunc(all, func(a, b Companion) int { return cmp.Compare(a.Name, b.Name) })
	return slices.CompactFunc(all, func(a, b Companion) bool { return a.Name == b.Name }), nil
}

// Again reads the identity at the same paths once more.
func (i Identity) Again() (Identity, error) { return Identify(i.Path, i.Beside...) }

// Same compares identities. Times are compared as instants, regardless of location.
func (i Identity) Same(o Identity) bool {
	return i.Path == o.Path && i.Dev == o.Dev && i.Inode == o.Inode && i.Size == o.Size &&
		i.ModTime.Equal(o.ModTime) && i.ChangeTime.Equal(o.ChangeTime) &&
		slices.EqualFunc(i.Companions, o.Companions, func(a, b Companion) bool { return a.Name == b.Name && a.Identity.Same(b.Identity) })
}

// SHA256 reads the executable and its companions, and returns their Sum.
func (i Identity) SHA256() (string, error) {
	files := []File{{Path: i.Path}}
	for _, c := range i.Companions {
		files = append(files, File{Name: c.Name, Path: c.Identity.Path})
	}
	return Sum(files)
}

// File is one file of a program. Name is the name of a companion; it is empty for the executable.
type File struct{ Name, Path string }

// Sum returns the SHA256 of a program in hex. Without companions it is the hash of the executable,
// which is the first file. With companions it is the hash of the list of all hashes and names.
func Sum(files []File) (string, error) {
	list := sha256.New()
	for _, f := range files {
		sum, err := hashFile(f.Path)
		if err != nil || len(files) == 1 {
			return sum, err
		}
		fmt.Fprintf(list, "%s  %s\n", sum, f.Name)
	}
	return hex.EncodeToString(list.Sum(nil)), nil
}

func hashFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
