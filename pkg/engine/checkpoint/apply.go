package checkpoint

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	metadata "github.com/checkpoint-restore/checkpointctl/lib"
	"github.com/containerd/containerd/v2/pkg/archive"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/beneath"
	"github.com/berth-cri/berth/pkg/engine/wanted"
)

const (
	// maxEntries limits the entries that an archive creates in a root filesystem.
	maxEntries = 5_000_000
	// xattrRecord is the prefix of tar records that are extended attributes.
	xattrRecord = "SCHILY.xattr."
)

// Apply makes the container's changes in a root filesystem, which must be that of the container's
// image and must not be changed meanwhile: rootfs-diff.tar has new and changed files, deleted.files
// the removed ones. After an error the root filesystem may be partly changed.
func (u *Unpacked) Apply(ctx context.Context, rootfs string) error {
	deleted, err := u.deleted()
	if err != nil {
		return err
	}
	// A file that is in the archive too is not deleted.
	if err := u.applyTar(ctx, rootfs, func(name string) { delete(deleted, inRoot(name)) }); err != nil {
		return err
	}
	for name := range deleted {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if err := remove(rootfs, name); err != nil {
			return fmt.Errorf("%s: %q: %w", metadata.DeletedFilesFile, name, err)
		}
	}
	return nil
}

func (u *Unpacked) deleted() (map[string]bool, error) {
	text, err := readBounded(u.dir, metadata.DeletedFilesFile, maxDeleted)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var names []string
	if err == nil {
		err = json.Unmarshal(text, &names)
	}
	if err != nil {
		return nil, invalid(metadata.DeletedFilesFile, err)
	}
	all := make(map[string]bool, len(names))
	for _, name := range names {
		clean := inRoot(name)
		if clean == "." || !filepath.IsLocal(clean) {
			return nil, invalid(metadata.DeletedFilesFile, fmt.Errorf("%.300q leads out of the container", name))
		}
		all[clean] = true
	}
	return all, nil
}

// inRoot returns a name relative to the root of a container. Some archives have a leading slash.
func inRoot(name string) string { return filepath.Clean(strings.TrimLeft(name, "/")) }

func (u *Unpacked) applyTar(ctx context.Context, rootfs string, seen func(name string)) error {
	const name = metadata.RootFsDiffTar
	f, err := beneath.Read(u.dir, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // nothing had changed
	}
	if err != nil {
		return invalid(name, reason(err))
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	b := &budget{bytes: info.Size(), entries: maxEntries}
	filter := archive.WithFilter(func(h *tar.Header) (bool, error) {
		if err := b.admit(h); err != nil {
			return false, invalid(name, fmt.Errorf("%.300q: %w", h.Name, err))
		}
		seen(h.Name)
		return true, nil
	})
	if _, err := archive.Apply(ctx, rootfs, wanted.Reader(ctx, f), filter); err != nil {
		if context.Cause(ctx) == nil && !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
			err = invalid(name, err)
		}
		return fmt.Errorf("apply %s: %w", name, err)
	}
	return nil
}

type budget struct{ bytes, entries int64 }

// admit refuses entries that no container writes, or that would exceed the size of the tar file. It
// keeps only the extended attributes that a container may set.
func (b *budget) admit(h *tar.Header) error {
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeDir, tar.TypeLink, tar.TypeSymlink, tar.TypeFifo, tar.TypeXGlobalHeader:
	case tar.TypeChar, tar.TypeBlock:
		return errors.New("it is a device, which berth does not create from an archive; checkpoint the container without it")
	default:
		return fmt.Errorf("entries of type %q are not known", h.Typeflag)
	}
	if b.entries--; b.entries < 0 {
		return fmt.Errorf("more than %d entries", maxEntries)
	}
	if b.bytes -= h.Size; h.Size < 0 || b.bytes < 0 {
		return errors.New("it is larger than the archive; sparse files are not supported")
	}
	names := []string{h.Name}
	if h.Typeflag == tar.TypeLink { // the target of a symbolic link concerns only the container
		names = append(names, h.Linkname)
	}
	for _, name := range names {
		if !filepath.IsLocal(inRoot(name)) {
			return errors.New("it leads out of the container")
		}
	}
	for key := range h.PAXRecords {
		if name, is := strings.CutPrefix(key, xattrRecord); is && name != "security.capability" && !strings.HasPrefix(name, "user.") {
			delete(h.PAXRecords, key)
		}
	}
	return nil
}

// remove removes the file or directory with a name below root. It does not follow links. A missing
// file is not an error.
func remove(root, name string) error {
	dir, err := os.OpenRoot(root)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }() // it is only a handle
	steps := strings.Split(name, "/")
	for i := range steps[:len(steps)-1] {
		info, err := dir.Lstat(filepath.Join(steps[:i+1]...))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return reason(err)
		}
		if !info.IsDir() {
			return nil // a file of the archive has replaced the directory
		}
	}
	if err := dir.RemoveAll(name); err != nil {
		return reason(err)
	}
	return nil
}
