package unpack

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strconv"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/failpoint"
	"github.com/berth-cri/berth/pkg/engine/image/catalog"
	"github.com/berth-cri/berth/pkg/engine/image/disk"
)

// LinkedLabel is on the snapshot of an artifact; its value is the size in bytes of the files that
// are links to content.
const LinkedLabel = "berth.dev/linked-bytes"

// SnapshotRef begins the label by which content keeps a snapshot; the snapshotter's name follows.
const SnapshotRef = "containerd.io/gc.ref.snapshot."

// unpackArtifact makes the volume of an artifact: a snapshot with the name of its chain. Its files
// are hard links to content, which take no space and no time.
func (u *Unpacker) unpackArtifact(ctx context.Context, l *disk.Layers, img *catalog.Image, limit int64) (err error) {
	lock := l.Name + "/" + img.ChainID.String()
	if err := u.Locks.Lock(ctx, lock); err != nil {
		return err
	}
	defer u.Locks.Unlock(lock)
	if done, err := IsUnpacked(ctx, l, img.ChainID); done || err != nil {
		return err
	}
	files, err := u.Reader.ArtifactFiles(ctx, img)
	if err != nil {
		return err
	}
	id, labels, err := u.files.Flusher.Begin()
	if err != nil {
		return err
	}
	defer u.files.Flusher.End(id)
	// Recovery recognises a partial volume by the beginning of its name.
	key := snapshots.UnpackKeyPrefix + "-" + rand.Text() + " " + img.ChainID.String()
	mounts, err := l.Prepare(ctx, key, "", labels...)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.Remove(context.WithoutCancel(ctx), key))
		}
	}()
	apply := u.applier(ctx, l, id, limit)
	for _, f := range files {
		if f.Path != "" {
			continue
		}
		if _, err := apply.Apply(ctx, f.Blob, mounts); err != nil {
			return fmt.Errorf("unpack blob %s: %w", f.Blob.Digest, err)
		}
	}
	to, err := disk.UnpackTarget(mounts)
	if err != nil {
		return err
	}
	// An archive must not change content through a link, so links come last.
	linked, err := u.link(ctx, to.Root, files, apply.entries)
	if err != nil {
		return err
	}
	failpoint.Hit(failpoint.ImageLinked)
	labels = append(labels, snapshots.WithLabels(map[string]string{LinkedLabel: strconv.FormatInt(linked, 10)}))
	if err := l.Commit(ctx, img.ChainID.String(), key, labels...); err != nil {
		return err
	}
	// The manifest keeps its volume from being collected.
	ref := SnapshotRef + l.Name
	info := content.Info{Digest: img.Manifest.Digest, Labels: map[string]string{ref: img.ChainID.String()}}
	_, err = u.files.Content.Update(ctx, info, "labels."+ref)
	return err
}

// link adds blobs to a directory that is not in use yet, and returns how many bytes on disk they
// share with the content store.
func (u *Unpacker) link(ctx context.Context, dir string, files []catalog.ArtifactFile, entries *entryLimit) (linked int64, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	counted := map[digest.Digest]bool{}
	dirs := dirMaker{root: root, entries: entries, made: map[string]bool{".": true}}
	for _, f := range files {
		if f.Path == "" {
			continue
		}
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		if err := entries.count(1); err != nil {
			return 0, err
		}
		if err := dirs.make(path.Dir(f.Path)); err != nil {
			return 0, linkError(f, err)
		}
		shares, bytes, err := linkFile(root, u.files.BlobPath(f.Blob.Digest), f.Path)
		if err != nil {
			return 0, linkError(f, err)
		}
		if shares && !counted[f.Blob.Digest] {
			counted[f.Blob.Digest] = true
			linked += bytes
		}
	}
	return linked, nil
}

// linkError names the blob that cannot be added.
func linkError(f catalog.ArtifactFile, err error) error {
	if errors.Is(err, fs.ErrExist) || errors.Is(err, unix.ENOTDIR) {
		return fmt.Errorf("blob %s of the artifact is called %.300q, where an archive of the artifact has something else: %w", f.Blob.Digest, f.Path, errdefs.ErrInvalidArgument)
	}
	return fmt.Errorf("blob %s of the artifact as %.300q: %w", f.Blob.Digest, f.Path, err)
}

// dirMaker makes directories that all users may read, whatever the umask is. Links in an archive
// cannot lead outside of root.
type dirMaker struct {
	root    *os.Root
	entries *entryLimit
	made    map[string]bool
}

func (d dirMaker) make(dir string) error {
	if d.made[dir] {
		return nil
	}
	if err := d.make(path.Dir(dir)); err != nil {
		return err
	}
	d.made[dir] = true
	if err := d.root.Mkdir(dir, 0o755); err != nil {
		if info, serr := d.root.Stat(dir); serr == nil && info.IsDir() {
			return nil
		}
		return err
	}
	return errors.Join(d.root.Chmod(dir, 0o755), d.entries.count(1))
}

// linkFile links a blob to a name below root, and returns its bytes on disk. If the filesystem
// allows no link, it copies the blob, and shares is false.
func linkFile(root *os.Root, blob, name string) (shares bool, bytes int64, err error) {
	var st unix.Stat_t
	if err := unix.Stat(blob, &st); err != nil {
		return false, 0, err
	}
	// The blob may have been fetched under a narrow umask.
	if err := os.Chmod(blob, 0o444); err != nil {
		return false, 0, err
	}
	dir, err := root.Open(path.Dir(name))
	if err != nil {
		return false, 0, err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	err = unix.Linkat(unix.AT_FDCWD, blob, int(dir.Fd()), path.Base(name), 0)
	if errors.Is(err, unix.EMLINK) || errors.Is(err, unix.EXDEV) || errors.Is(err, unix.EPERM) {
		return false, 0, copyFile(root, blob, name)
	}
	return err == nil, st.Blocks * 512, err
}

// copyFile shares the blocks of the blob if the filesystem supports it.
func copyFile(root *os.Root, blob, name string) (err error) {
	from, err := os.Open(blob) //nolint:gosec // a path of the store's own
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	to, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	return errors.Join(err, to.Chmod(0o444), to.Close())
}
