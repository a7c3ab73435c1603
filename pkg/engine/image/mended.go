package image

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
)

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
