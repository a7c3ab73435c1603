package retention

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/podcheckpoint/manifest"
)

// Found is what there is directly below a directory.
type Found struct {
	// Checkpoints are whole: all files are there, in their size. The newest is first.
	Checkpoints []Checkpoint
	// Damaged are directories that are not: nobody writes them, and nobody removes them.
	Damaged []Damaged
}

// Damaged is a directory that is not a whole checkpoint, and why.
type Damaged struct {
	Directory string
	Err       error
}

// scanner looks for checkpoints, and remembers manifests that have not changed.
type scanner struct{ known map[string]remembered }

type remembered struct {
	stamp      stamp
	checkpoint Checkpoint
	files      manifest.Manifest // nothing but those
}

// stamp changes with a manifest.
type stamp struct {
	device, inode uint64
	size          int64
	changed       unix.Timespec
}

// scan looks at all directories below dir. A dir that is not there has none. One that others than
// root can change is not looked at, since checkpoints are removed by what it says.
func (s *scanner) scan(dir string) (f Found, err error) {
	entries, err := manifest.Entries(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return f, nil
	case err != nil:
		return f, fmt.Errorf("the directory of checkpoints: %w", err)
	}
	known := map[string]remembered{}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if !e.IsDir() || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		r, err := s.look(path)
		switch {
		case err == nil:
			known[path] = r
			f.Checkpoints = append(f.Checkpoints, r.checkpoint)
		case unwritten(path):
			f.Damaged = append(f.Damaged, Damaged{path, err})
		}
	}
	s.known = known
	slices.SortFunc(f.Checkpoints, newestFirst)
	return f, nil
}

// look reads one.
func (s *scanner) look(dir string) (r remembered, err error) {
	var st unix.Stat_t
	if err := unix.Lstat(filepath.Join(dir, manifest.Name), &st); err != nil {
		return r, fmt.Errorf("it has no manifest: %w", err)
	}
	r.stamp = stamp{st.Dev, st.Ino, st.Size, st.Ctim}
	if before, there := s.known[dir]; there && before.stamp == r.stamp {
		r = before
	} else {
		m, err := manifest.Read(dir)
		if err != nil {
			return r, err
		}
		r.files.Files = m.Files
		if r.checkpoint, err = Of(dir, m); err != nil {
			return r, err
		}
	}
	return r, r.files.Verify(context.Background(), dir, manifest.Barely)
}

// Of is a checkpoint with the manifest m.
func Of(dir string, m *manifest.Manifest) (Checkpoint, error) {
	namespace, name, err := m.PodName()
	return Checkpoint{Directory: dir, Namespace: namespace, Name: name, Created: m.Created, Size: m.Size()}, err
}

// unwritten says whether a directory without a whole checkpoint is nobody's: one that is being
// written has none yet, and one that is gone is none.
func unwritten(dir string) bool {
	lock, err := alone(dir)
	if err != nil {
		return !errors.Is(err, ErrInUse) && !errors.Is(err, fs.ErrNotExist)
	}
	return lock.Close() == nil
}
