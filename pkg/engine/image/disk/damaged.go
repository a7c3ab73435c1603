package disk

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
)

// After a power cut, a repair of the filesystem or a restored backup, the metadata may have content
// that the disk has lost. Such content is removed from the metadata, so that it is fetched or
// unpacked again.

// DropDamaged removes a blob with a missing file, a wrong size or, if read is set, a wrong digest.
func (f *Files) DropDamaged(ctx context.Context, desc imagespec.Descriptor, read bool) (dropped bool, err error) {
	info, err := f.Content.Info(ctx, desc.Digest)
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	path := f.BlobPath(desc.Digest)
	if isWhole(path, desc.Digest, info.Size, read) {
		return false, nil
	}
	log.G(ctx).WithField("digest", desc.Digest).Warn("Discarding damaged image content")
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	if err := f.Content.Delete(ctx, desc.Digest); !errdefs.IsNotFound(err) { // a collection may have removed it
		return true, err
	}
	return true, nil
}

func isWhole(path string, of digest.Digest, size int64, read bool) bool {
	file, err := os.Open(path) //nolint:gosec // the store's own
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist) // readers get the error
	}
	defer file.Close()
	if st, err := file.Stat(); err != nil || st.Size() != size {
		return false
	}
	if !read {
		return true
	}
	sum := of.Verifier()
	_, err = io.Copy(sum, file)
	return err == nil && sum.Verified()
}

// DropForgotten removes from the metadata the snapshots that the snapshotter lacks, because its
// directory was lost or restored from another backup.
func (f *Files) DropForgotten(ctx context.Context, l *Layers) error {
	names, err := f.namedInMetadata(l.Name)
	forgotten := slices.DeleteFunc(names, func(name string) bool {
		_, err := l.Stat(ctx, name)
		return !errdefs.IsNotFound(err)
	})
	if len(forgotten) > 0 {
		log.G(ctx).WithFields(log.Fields{"snapshots": len(forgotten), "snapshotter": l.Name}).Warn("Removing image layers that the snapshotter has lost; they will be unpacked again when they are needed")
	}
	// Children are removed before their parents.
	for before := -1; len(forgotten) != before; {
		before = len(forgotten)
		forgotten = slices.DeleteFunc(forgotten, func(name string) bool { return l.Remove(ctx, name) == nil })
	}
	return err
}

// DropPartial removes partially unpacked layers and the temporary views of StackOf.
func (l *Layers) DropPartial(ctx context.Context) error {
	var half []string
	err := l.Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		unpacking := info.Kind == snapshots.KindActive && strings.HasPrefix(info.Name, snapshots.UnpackKeyPrefix+"-")
		if unpacking || strings.HasPrefix(info.Name, belowPrefix) {
			half = append(half, info.Name)
		}
		return nil
	})
	for _, name := range half {
		if err == nil {
			err = l.Remove(ctx, name)
		}
	}
	return err
}

// EntriesOf returns the number of inodes of the layers that a lease holds.
func (f *Files) EntriesOf(ctx context.Context, l leases.Lease) (n int64, err error) {
	held, err := f.Leases.ListResources(ctx, l)
	if err != nil {
		return 0, err
	}
	for _, r := range held {
		name, ok := strings.CutPrefix(r.Type, "snapshots/")
		if layers := f.Layers[name]; ok && layers != nil && layers.Unusable() == nil {
			u, err := layers.Usage(ctx, r.ID)
			if err != nil && !errdefs.IsNotFound(err) && layers.TolerateProxied(ctx, err) != nil {
				return 0, err
			}
			n += u.Inodes
		}
	}
	return n, nil
}
