// Package directory has the directories of checkpoints of pods: their names, the locks that keep
// one in use from being removed, and removals.
//
// A removal first renames the directory to a name that begins with a dot, so that no checkpoint
// is ever partially there. Finish removes what a kill or a power cut left under such a name.
package directory

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/errdefs"
)

const (
	// timeForm is when a checkpoint was begun, in the name of its directory.
	timeForm = "20060102T150405.000Z"
	// maxOwner bounds the pod's part of such a name: a name has at most 255 bytes.
	maxOwner = 200
)

// New makes a directory below parent for a checkpoint of a pod, and parent if it does not exist.
// Only root can enter either.
func New(parent, namespace, name string, now time.Time) (string, error) {
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return "", err
	}
	dir := filepath.Join(parent, nameOf(namespace, name, now))
	if err := os.Mkdir(dir, 0o700); err != nil {
		if errors.Is(err, fs.ErrExist) {
			err = fmt.Errorf("%w; try again: %w", err, errdefs.ErrAlreadyExists)
		}
		return "", err
	}
	return dir, nil
}

// nameOf is NAMESPACE_NAME_TIME, with nothing in it that a path takes for something else. Pure.
func nameOf(namespace, name string, now time.Time) string {
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

// ours reports whether nameOf makes such names. Pure.
func ours(name string) bool {
	i := strings.LastIndexByte(name, '_')
	_, err := time.Parse(timeForm, name[i+1:])
	return i > 0 && err == nil
}
