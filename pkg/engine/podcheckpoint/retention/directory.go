package retention

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

const (
	// timeForm is when a checkpoint was begun, in the name of its directory.
	timeForm = "20060102T150405.000Z"
	// maxOwner bounds what of such a name is the pod's: a name has 255 bytes.
	maxOwner = 200
)

// NewDirectory makes a directory below parent, which is made if need be, for a checkpoint of a
// pod. Only root can enter either.
func NewDirectory(parent, namespace, name string, now time.Time) (string, error) {
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return "", err
	}
	dir := filepath.Join(parent, directoryName(namespace, name, now))
	if err := os.Mkdir(dir, 0o700); err != nil {
		if errors.Is(err, fs.ErrExist) {
			err = fmt.Errorf("%w; try again: %w", err, errdefs.ErrAlreadyExists)
		}
		return "", err
	}
	return dir, nil
}

// directoryName is NAMESPACE_NAME_TIME, with nothing in it that a path takes for something else.
// Pure.
func directoryName(namespace, name string, now time.Time) string {
	owner := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '_', r == '.':
			return r
		}
		return '-'
	}, namespace+"_"+name)
	owner = strings.TrimLeft(owner, ".")
	return owner[:min(len(owner), maxOwner)] + "_" + now.UTC().Format(timeForm)
}

// ours says whether a directory has a name of directoryName. Pure.
func ours(name string) bool {
	i := strings.LastIndexByte(name, '_')
	_, err := time.Parse(timeForm, name[i+1:])
	return i > 0 && err == nil
}

// forsaken removes the directory of a checkpoint that NewDirectory made, if it is empty and nobody
// writes into it.
func forsaken(dir string) error {
	if !ours(filepath.Base(dir)) {
		return nil
	}
	lock, err := alone(dir)
	if err != nil {
		return nil // somebody has it, or nobody had it
	}
	defer lock.Close()
	if err := os.Remove(dir); err != nil && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// allForsaken does so for all that are directly below parent.
func allForsaken(parent string) error {
	entries, err := os.ReadDir(parent)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if e.IsDir() {
			err = errors.Join(err, forsaken(filepath.Join(parent, e.Name())))
		}
	}
	return err
}
