package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/images"
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
	document := images.IsConfigType(desc.MediaType) || images.IsManifestType(desc.MediaType) || images.IsIndexType(desc.MediaType)
	path := f.path("content", "blobs", desc.Digest.Algorithm().String(), desc.Digest.Encoded())
	if isWhole(path, desc.Digest, info.Size, document || thorough) {
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
	whole := func(desc imagespec.Descriptor) bool {
		dropped, err := s.files.dropDamaged(ctx, desc, thorough)
		return err == nil && !dropped
	}
	all := true
	for _, desc := range append(also, img.manifest) {
		all = whole(desc) && all
	}
	manifest, err := s.reader.readManifest(ctx, img.manifest, checkManifest)
	if err != nil {
		return false
	}
	for _, desc := range append(manifest.Layers, manifest.Config) {
		all = whole(desc) && all
	}
	_, err = s.files.content.Info(ctx, manifest.Config.Digest)
	return all && err == nil
}

// whole says whether the layers of a view are on disk.
func (vs *views) whole(ctx context.Context, k viewKey) bool {
	v := vs.table.get(k)
	return v == nil || vs.files.layers[k.snapshotter].hold(ctx, k.chain.String(), v.stack.lower)
}

// hold says whether the directories of a layer and those below it, topmost first, are
// there, and hold something if they ever did.
func (l *layers) hold(ctx context.Context, chain string, dirs []string) bool {
	at := 0
	for i, dir := range dirs {
		empty, err := isEmpty(dir)
		if err != nil {
			return false
		}
		if !empty || l.kind.seal != nil || chain == "" {
			continue
		}
		for ; at < i; at++ {
			info, err := l.Stat(ctx, chain)
			if err != nil {
				return false
			}
			chain = info.Parent
		}
		if used, err := l.Usage(ctx, chain); err != nil || used.Inodes > 1 {
			return false
		}
	}
	return true
}

func isEmpty(dir string) (bool, error) {
	d, err := os.Open(dir) //nolint:gosec // the store's own
	if err != nil {
		return false, err
	}
	defer d.Close()
	_, err = d.Readdirnames(1)
	if errors.Is(err, io.EOF) {
		return true, nil
	}
	return false, err
}

// mended calls f, which unpacks, and once more if layers were lost that it relied on.
func (vs *views) mended(ctx context.Context, k viewKey, img *Image, f func() error) error {
	err := f()
	if err == nil && vs.whole(ctx, k) || err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	dropped, failed := vs.dropLost(ctx, k, img)
	if dropped == 0 {
		return errors.Join(err, failed)
	}
	return f()
}

// dropLost removes the layers of an image that are not on disk, with what is built on
// them. Containers that run keep what is mounted.
func (vs *views) dropLost(ctx context.Context, k viewKey, img *Image) (int, error) {
	l := vs.files.layers[k.snapshotter]
	if l.proxied != nil {
		return 0, nil
	}
	chains, err := vs.unpacker.reader.chainsOf(ctx, img)
	if err != nil {
		return 0, err
	}
	lost := map[string]bool{}
	for _, chain := range chains {
		dirs, err := l.stackOf(ctx, chain.String())
		lost[chain.String()] = errors.Is(err, fs.ErrNotExist) || err == nil && !l.hold(ctx, chain.String(), dirs[:1])
	}
	gone, err := l.dropBuiltOn(ctx, func(info snapshots.Info) bool { return lost[info.Name] })
	for name := range gone {
		if strings.HasPrefix(name, viewPrefix) {
			vs.table.forget(viewKey{snapshotter: k.snapshotter, chain: chainOfView(name)})
		}
	}
	if err != nil {
		return 0, fmt.Errorf("remove damaged layers of image %s: %w", img.ID, err)
	}
	if len(gone) > 0 {
		log.G(ctx).WithFields(log.Fields{"image": img.ID, "snapshotter": k.snapshotter, "snapshots": len(gone)}).Warn("Unpacking lost image layers again")
		vs.work.collector.kick()
	}
	return len(gone), nil
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

// chainsOf are the layers that an image is unpacked into, the lowest first.
func (r *reader) chainsOf(ctx context.Context, img *Image) ([]digest.Digest, error) {
	if img.ArtifactType != "" {
		return []digest.Digest{img.ChainID}, nil
	}
	manifest, err := r.readManifest(ctx, img.manifest, checkManifest)
	if err != nil {
		return nil, err
	}
	var root []digest.Digest
	err = r.readConfig(ctx, manifest, func(config imagespec.Image) error {
		root, err = rootDiffIDs(manifest, config.Platform, config.RootFS.DiffIDs)
		return err
	})
	return identity.ChainIDs(append([]digest.Digest(nil), root...)), err
}
