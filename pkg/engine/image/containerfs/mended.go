package containerfs

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

	"github.com/berth-cri/berth/pkg/engine/image/catalog"
)

// Whole says whether the layers of a view are on disk.
func (vs *Views) Whole(k ViewKey) bool {
	v := vs.Get(k)
	return v == nil || allThere(v.Stack.Lower)
}

func allThere(dirs []string) bool {
	return !slices.ContainsFunc(dirs, func(dir string) bool {
		_, err := os.Stat(dir)
		return err != nil
	})
}

// Mended calls f, which unpacks, and once more if layers were lost that it relied on.
func (vs *Views) Mended(ctx context.Context, k ViewKey, img *catalog.Image, f func() error) error {
	err := f()
	if err == nil && vs.Whole(k) || err != nil && !errors.Is(err, fs.ErrNotExist) || !vs.DropLost(ctx, k, img) {
		return err
	}
	return f()
}

// DropLost removes the layers of an image that are not on disk, with what is built on
// them, and says whether there are any. Those of other programs are theirs to check.
func (vs *Views) DropLost(ctx context.Context, k ViewKey, img *catalog.Image) bool {
	l := vs.Files.Layers[k.Snapshotter]
	if l.Proxied != nil {
		return false
	}
	chains := []digest.Digest{img.ChainID}
	if config, err := vs.Unpacker.Reader.Config(ctx, img); err == nil {
		chains = append(chains, identity.ChainIDs(config.RootFS.DiffIDs)...)
	}
	lost := map[string]bool{}
	for _, chain := range chains {
		dirs, err := l.StackOf(ctx, chain.String())
		lost[chain.String()] = errors.Is(err, fs.ErrNotExist) || err == nil && !allThere(dirs[:1])
	}
	gone, err := l.DropBuiltOn(ctx, func(info snapshots.Info) bool { return lost[info.Name] })
	for name := range gone {
		if strings.HasPrefix(name, viewPrefix) {
			vs.forget(ViewKey{Snapshotter: k.Snapshotter, Chain: chainOfView(name)})
		}
	}
	if len(gone) > 0 || err != nil {
		log.G(ctx).WithError(err).WithFields(log.Fields{"image": img.ID, "snapshotter": k.Snapshotter, "snapshots": len(gone)}).Warn("Removed lost image layers; they will be unpacked again")
		vs.Work.Collector.Kick()
	}
	return len(gone) > 0
}
