package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	metadata "github.com/checkpoint-restore/checkpointctl/lib"
	"github.com/containerd/containerd/v2/pkg/archive"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/thread"
	"github.com/berth-cri/berth/pkg/engine/wanted"
)

// Files writes the container's changes in its root filesystem: rootfs-diff.tar has new and changed
// files, deleted.files the files of the image that it removed. written is the writable layer in
// overlayfs format, layers the image below it. The container must stay frozen meanwhile, so Files
// stops when ctx ends.
func (d *Dir) Files(ctx context.Context, written, layers string) error {
	lower, err := os.OpenRoot(layers)
	if err != nil {
		return err
	}
	defer func() { _ = lower.Close() }() // it was only read
	var deleted []string
	err = pack(ctx, written, filepath.Join(d.Path, metadata.RootFsDiffTar), func(path string, e fs.DirEntry) bool {
		rel := strings.TrimPrefix(path, "/")
		if isWhiteout(e) {
			deleted = append(deleted, rel)
			return false
		}
		if e.IsDir() {
			deleted = append(deleted, hiddenBelow(lower, path, rel)...)
		}
		return true
	})
	if err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("the container has written too much to archive in the time limit: %w", context.Cause(ctx))
		}
		return err
	}
	if len(deleted) == 0 {
		return nil
	}
	slices.Sort(deleted)
	_, err = metadata.WriteJSONFile(deleted, d.Path, metadata.DeletedFilesFile)
	return err
}

// pack writes the entries of a directory that belongs accepts to a new tar file, until ctx ends.
// belongs gets the path /etc for dir/etc.
func pack(ctx context.Context, dir, file string, belongs func(path string, e fs.DirEntry) bool) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	space := &room{to: f}
	err = below(dir, func(root string) error {
		w := archive.NewChangeWriter(wanted.Writer(ctx, f), root)
		err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
			if err != nil || path == root || !belongs(path, e) {
				return err
			}
			return space.add(w, root, path, e)
		})
		return errors.Join(err, w.Close())
	})
	return errors.Join(err, f.Close())
}

// room is the destination of an archive. It checks the free space, because a container can create
// sparse files that are larger than any disk, and an archive contains their holes as zeros.
type room struct {
	to     *os.File
	linked map[[2]uint64]bool // files with more than one name, which are written once
}

// small is the size up to which a file is written without a check of the free space.
const small = 1 << 20

// add calls the function add if there is room for the entry.
func (r *room) add(w *archive.ChangeWriter, root, path string, e fs.DirEntry) error {
	info, err := e.Info()
	if err != nil {
		return err
	}
	if info.Mode().IsRegular() && info.Size() > small && r.first(info) {
		var st unix.Statfs_t
		if err := unix.Fstatfs(int(r.to.Fd()), &st); err != nil {
			return &fs.PathError{Op: "fstatfs", Path: r.to.Name(), Err: err}
		}
		if free := int64(st.Bavail) * st.Bsize; info.Size() > free { //nolint:gosec // no disk is that large
			return fmt.Errorf("no space left for %q, which has %d bytes with its holes, while %d bytes are free; remove the file, or use a larger disk: %w",
				path, info.Size(), free, errdefs.ErrResourceExhausted)
		}
	}
	return add(w, root, path, e)
}

func (r *room) first(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || st.Nlink < 2 {
		return true
	}
	inode := [2]uint64{st.Dev, st.Ino}
	if r.linked[inode] {
		return false
	}
	if r.linked == nil {
		r.linked = map[[2]uint64]bool{}
	}
	r.linked[inode] = true
	return true
}

// below calls f in a chroot at dir: other containers of the pod, which are not frozen, may replace
// a directory by a link, which must not lead to the node's files.
func below(dir string, f func(root string) error) error {
	return thread.Run(func() error {
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return fmt.Errorf("unshare the root directory: %w", err)
		}
		if err := unix.Chroot(dir); err != nil {
			return fmt.Errorf("chroot %s: %w", dir, err)
		}
		if err := unix.Chdir("/"); err != nil {
			return err
		}
		return f("/")
	})
}

// isWhiteout reports whether an entry marks a removed file: a device 0:0.
func isWhiteout(e fs.DirEntry) bool {
	if e.Type()&fs.ModeCharDevice == 0 {
		return false
	}
	info, err := e.Info()
	if err != nil {
		return false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && st.Rdev == 0
}

// hiddenBelow returns the entries of the image that an opaque directory hides, because the
// container replaced it.
func hiddenBelow(lower *os.Root, dir, rel string) (hidden []string) {
	if !isOpaque(dir) {
		return nil
	}
	if info, err := lower.Lstat(rel); err != nil || !info.IsDir() {
		return nil // the image has no such directory
	}
	below, err := lower.Open(rel)
	if err != nil {
		return nil // a link in the path leads elsewhere
	}
	defer below.Close()
	names, _ := below.Readdirnames(-1)
	for _, name := range names {
		if _, err := os.Lstat(filepath.Join(dir, name)); errors.Is(err, fs.ErrNotExist) {
			hidden = append(hidden, filepath.Join(rel, name))
		}
	}
	return hidden
}

func isOpaque(dir string) bool {
	value := make([]byte, 1)
	n, err := unix.Lgetxattr(dir, "trusted.overlay.opaque", value)
	return err == nil && n == 1 && value[0] == 'y'
}
