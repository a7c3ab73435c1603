// Package checkpoint writes the archive of a checkpointed container in the form of CRI-O and
// Podman, which checkpointctl reads.
//
// It runs no programs, and an archive is visible only when it is complete.
package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	metadata "github.com/checkpoint-restore/checkpointctl/lib"
	"github.com/containerd/containerd/v2/pkg/archive"
	continuity "github.com/containerd/continuity/fs"

	"github.com/berth-cri/berth/pkg/atomicfile"
	"github.com/berth-cri/berth/pkg/engine/beneath"
)

// logFile is the name of the container's log in archives of Podman, CRI-O and containerd.
const logFile = "container.log"

// Dir is the directory from which an archive is made.
type Dir struct{ Path string }

// Open creates an empty directory that only root can read, because it will contain the memory of
// processes. It removes the files of an earlier call.
func Open(path string) (*Dir, error) {
	if err := os.RemoveAll(path); err != nil {
		return nil, err
	}
	d := &Dir{path}
	return d, os.MkdirAll(d.Images(), 0o700)
}

// Images returns the directory for CRIU's images.
func (d *Dir) Images() string { return filepath.Join(d.Path, metadata.CheckpointDirectory) }

// Describe writes the container's config, its spec (JSON text) and its status (to be encoded).
func (d *Dir) Describe(config metadata.ContainerConfig, spec []byte, status any) error {
	_, err1 := metadata.WriteJSONFile(config, d.Path, metadata.ConfigDumpFile)
	_, err2 := metadata.WriteJSONFile(status, d.Path, metadata.StatusDumpFile)
	err3 := os.WriteFile(filepath.Join(d.Path, metadata.SpecDumpFile), spec, 0o600)
	return errors.Join(err1, err2, err3)
}

// Log copies the container's log up to its present end. A missing log is skipped: the kubelet may
// rotate it away at any time. Symbolic links below dir are not followed; an empty dir means the
// log's own directory.
func (d *Dir) Log(dir, path string) error {
	root, name, err := beneath.Split(dir, path)
	if err != nil {
		return err
	}
	in, err := beneath.Read(root, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(filepath.Join(d.Path, logFile), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// Pack writes the archive to location, readable by root only. The archive is complete or absent.
func (d *Dir) Pack(ctx context.Context, location string) error {
	// Checkpoints of several containers may have one location. Each has its own temporary file, and
	// the last one replaces the others as a whole.
	fresh := filepath.Join(filepath.Dir(location), "."+filepath.Base(d.Path)+".new")
	return atomicfile.WriteBy(fresh, location, 0o600, atomicfile.Durable, func(to io.Writer) error {
		w := archive.NewChangeWriter(to, d.Path)
		err := filepath.WalkDir(d.Path, func(path string, e fs.DirEntry, err error) error {
			if err != nil || path == d.Path {
				return err
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			return add(w, d.Path, path, e)
		})
		if err != nil {
			return err
		}
		return w.Close()
	})
}

func add(w *archive.ChangeWriter, root, path string, e fs.DirEntry) error {
	info, err := e.Info()
	if err != nil {
		return err
	}
	rel, err := filepath.Rel(root, path)
	if err != nil {
		return err
	}
	if err := w.HandleChange(continuity.ChangeKindAdd, "/"+rel, info, nil); err != nil {
		return fmt.Errorf("archive %s: %w", rel, err)
	}
	return nil
}
