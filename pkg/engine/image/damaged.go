package image

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
)

// The metadata can have what the disk has lost: after a power cut, a repair of the
// filesystem or a restored backup. What is found so is removed from the metadata, so that
// it is fetched or unpacked again.

// dropDamaged removes a blob whose file is missing or has another size. Documents are
// compared by their digest, too; layers only if the check is thorough.
func (f *files) dropDamaged(ctx context.Context, desc imagespec.Descriptor, thorough bool) (dropped bool, err error) {
	info, err := f.content.Info(ctx, desc.Digest)
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	path := f.path("content", "blobs", desc.Digest.Algorithm().String(), desc.Digest.Encoded())
	if isWhole(path, desc.Digest, info.Size, thorough || isDocument(desc.MediaType)) {
		return false, nil
	}
	log.G(ctx).WithField("digest", desc.Digest).Warn("Discarding damaged image content")
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	if err := f.content.Delete(ctx, desc.Digest); !errdefs.IsNotFound(err) { // it may have been collected
		return true, err
	}
	return true, nil
}

func isWhole(path string, of digest.Digest, size int64, read bool) bool {
	file, err := os.Open(path) //nolint:gosec // the store's own
	if err != nil {
		return false
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

// contentWhole drops the damaged content of an image, and says whether there was none. The
// content of layers need not be there.
func (s *puller) contentWhole(ctx context.Context, img *Image, thorough bool, also ...imagespec.Descriptor) bool {
	all := true
	check := func(descs ...imagespec.Descriptor) {
		for _, desc := range descs {
			dropped, err := s.files.dropDamaged(ctx, desc, thorough)
			all = all && err == nil && !dropped
		}
	}
	check(append(also, img.manifest)...)
	manifest, err := s.reader.readManifest(ctx, img.manifest, checkManifest)
	if err != nil {
		return false
	}
	check(append(manifest.Layers, manifest.Config)...)
	_, err = s.files.content.Info(ctx, manifest.Config.Digest)
	return all && err == nil
}

// whole says whether the layers of a view are on disk.
func (vs *views) whole(k viewKey) bool {
	v := vs.table.get(k)
	return v == nil || allThere(v.stack.lower)
}

func allThere(dirs []string) bool {
	return !slices.ContainsFunc(dirs, func(dir string) bool {
		_, err := os.Stat(dir)
		return err != nil
	})
}

// mended calls f, which unpacks, and once more if layers were lost that it relied on.
func (vs *views) mended(ctx context.Context, k viewKey, img *Image, f func() error) error {
	err := f()
	if err == nil && vs.whole(k) || err != nil && !errors.Is(err, fs.ErrNotExist) || !vs.dropLost(ctx, k, img) {
		return err
	}
	return f()
}

// dropLost removes the layers of an image that are not on disk, with what is built on
// them, and says whether there are any. Those of other programs are theirs to check.
func (vs *views) dropLost(ctx context.Context, k viewKey, img *Image) bool {
	l := vs.files.layers[k.snapshotter]
	if l.proxied != nil {
		return false
	}
	chains := []digest.Digest{img.ChainID}
	if config, err := vs.unpacker.reader.config(ctx, img); err == nil {
		chains = append(chains, identity.ChainIDs(config.RootFS.DiffIDs)...)
	}
	lost := map[string]bool{}
	for _, chain := range chains {
		dirs, err := l.stackOf(ctx, chain.String())
		lost[chain.String()] = errors.Is(err, fs.ErrNotExist) || err == nil && !allThere(dirs[:1])
	}
	gone, err := l.dropBuiltOn(ctx, func(info snapshots.Info) bool { return lost[info.Name] })
	for name := range gone {
		if strings.HasPrefix(name, viewPrefix) {
			vs.table.forget(viewKey{snapshotter: k.snapshotter, chain: chainOfView(name)})
		}
	}
	if len(gone) > 0 || err != nil {
		log.G(ctx).WithError(err).WithFields(log.Fields{"image": img.ID, "snapshotter": k.snapshotter, "snapshots": len(gone)}).Warn("Removed lost image layers; they will be unpacked again")
		vs.work.collector.kick()
	}
	return len(gone) > 0
}

// dropForgotten removes the snapshots that the metadata has and the snapshotter does not:
// its directory was lost, or restored from another backup.
func (f *files) dropForgotten(ctx context.Context, snapshotter string, l *layers) error {
	names, err := f.namedInMetadata(snapshotter)
	forgotten := slices.DeleteFunc(names, func(name string) bool {
		_, err := l.Stat(ctx, name)
		return !errdefs.IsNotFound(err)
	})
	if len(forgotten) > 0 {
		log.G(ctx).WithFields(log.Fields{"snapshots": len(forgotten), "snapshotter": snapshotter}).Warn("Removing image layers that the snapshotter has lost; they will be unpacked again when they are needed")
	}
	// What others are built on goes after those.
	for before := -1; len(forgotten) != before; {
		before = len(forgotten)
		forgotten = slices.DeleteFunc(forgotten, func(name string) bool { return l.Remove(ctx, name) == nil })
	}
	return err
}
