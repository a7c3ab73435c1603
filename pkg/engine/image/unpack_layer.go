package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/archive"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/failpoint"
	"github.com/berth-cri/berth/pkg/engine/image/bounds"
)

// applier unpacks layers as containerd's own applier does, by its code for
// archives. That remembers every path of a layer, and every directory with all
// attributes, until the layer is unpacked. So it is given a layer in portions.
type applier struct {
	content content.Provider
	// scratch is a directory for what does not stay in memory.
	scratch string
	// portion is how many bytes containerd may remember; see portions.
	portion int64
	budget  *budget
	// slots bounds the layers that are unpacked at the same time.
	slots *semaphore.Weighted
	// layers is the snapshotter that is unpacked into.
	layers *layers
	// pull is the context of the whole, whose step unpacking is.
	pull context.Context
	// wrote is told of the directory of each layer.
	wrote     func(dir string) error
	unpacking *part
	underway  *watchedPull
}

var _ diff.Applier = (*applier)(nil)

// Apply implements diff.Applier for the mounts of our snapshotters.
func (a *applier) Apply(ctx context.Context, desc imagespec.Descriptor, mounts []mount.Mount, opts ...diff.ApplyOpt) (_ imagespec.Descriptor, err error) {
	var config diff.ApplyConfig
	for _, opt := range opts {
		if err := opt(ctx, desc, &config); err != nil {
			return imagespec.Descriptor{}, err
		}
	}
	defer func() {
		if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
			// The bytes are those of the digest: no registry can be blamed for the end.
			err = fmt.Errorf("layer %s ends too early: %v: %w", desc.Digest, err, errdefs.ErrInvalidArgument)
		}
	}()
	to, err := whereTo(mounts)
	if err != nil {
		return imagespec.Descriptor{}, err
	}
	if err := a.wrote(to.root); err != nil {
		return imagespec.Descriptor{}, err
	}
	if err := a.slots.Acquire(ctx, 1); err != nil {
		return imagespec.Descriptor{}, err
	}
	defer a.slots.Release(1)
	defer a.unpacking.enter(a.pull)()
	a.underway.at(desc.Digest, LayerUnpacking)
	blob, err := a.content.ReaderAt(ctx, desc)
	if err != nil {
		return imagespec.Descriptor{}, err
	}
	defer func() { err = errors.Join(err, blob.Close()) }()
	ctx = context.WithValue(ctx, sizeKey{}, desc.Size)
	processor := diff.NewProcessorChain(desc.MediaType, content.NewReader(blob))
	for opened := false; !opened; opened = processor.MediaType() == imagespec.MediaTypeImageLayer {
		if processor, err = diff.GetProcessor(ctx, processor, config.ProcessorPayloads); err != nil {
			return imagespec.Descriptor{}, fmt.Errorf("open layer of type %s: %w", desc.MediaType, err)
		}
	}
	defer processor.Close()
	sum := digest.Canonical.Digester()
	plain := readAhead(ctx, io.TeeReader(processor, sum.Hash()))
	defer plain.close()
	tar := &tape{ctx: ctx, from: plain, budget: a.budget}
	defer tar.short()
	limit, _ := config.ProcessorPayloads[entries].(*entryLimit)
	chain := a.layers.rebases.parentOf(to.root)
	if chain != "" {
		to = to.onOthers()
	}
	p := &portions{tape: tar, limit: limit, size: a.portion, shared: a.budget.portions, scratch: a.scratch, root: to.root, overlay: to.overlay}
	if chain != "" {
		p.below = func(ctx context.Context) ([]string, error) { return a.below(ctx, chain) }
	}
	if err := p.apply(ctx, to.options...); err != nil {
		return imagespec.Descriptor{}, err
	}
	// What is behind the archive belongs to the digest.
	if _, err := io.Copy(io.Discard, tar); err != nil {
		return imagespec.Descriptor{}, err
	}
	if seal := a.layers.kind.seal; seal != nil {
		if err := seal(ctx, to.root); err != nil {
			return imagespec.Descriptor{}, err
		}
	}
	failpoint.Hit(failpoint.ImageApplied)
	a.underway.at(desc.Digest, LayerUnpacked)
	return imagespec.Descriptor{MediaType: imagespec.MediaTypeImageLayer, Size: tar.n, Digest: sum.Digest()}, nil
}

// below waits until a layer is there, and returns its directories. Meanwhile others
// have the slot: that layer may need it.
func (a *applier) below(ctx context.Context, chain string) ([]string, error) {
	a.slots.Release(1)
	waited := a.layers.wait(ctx, chain)
	// Who releases it need not know that it was given up.
	if err := a.slots.Acquire(context.WithoutCancel(ctx), 1); err != nil {
		return nil, err
	}
	if waited != nil {
		return nil, waited
	}
	return a.layers.stackOf(ctx, chain)
}

// destination is the directory that a layer is unpacked into.
type destination struct {
	root string
	// overlay says that root has only what differs from the layers below.
	overlay bool
	options []archive.ApplyOpt
}

// onOthers is a directory that overlay mounts will have on top of others.
func (d destination) onOthers() destination {
	if !d.overlay {
		d.overlay, d.options = true, append(d.options, archive.WithConvertWhiteout(archive.OverlayConvertWhiteout))
	}
	return d
}

// whereTo needs no mount: whiteouts are what an overlay mount would make of them.
func whereTo(mounts []mount.Mount) (destination, error) {
	if len(mounts) == 1 && mounts[0].Type == "bind" {
		return destination{root: mounts[0].Source}, nil
	}
	d := destination{}.onOthers()
	if len(mounts) == 1 && mounts[0].Type == "overlay" {
		for _, o := range mounts[0].Options {
			switch key, value, _ := strings.Cut(o, "="); key {
			case "upperdir":
				d.root = value
			case "lowerdir":
				d.options = append(d.options, archive.WithParents(strings.Split(value, ":")))
			}
		}
	}
	if d.root == "" {
		return d, fmt.Errorf("unpack into mounts of an unexpected kind: %w", errdefs.ErrInternal)
	}
	return d, nil
}

func syncFilesystem(path string) error {
	dir, err := os.Open(filepath.Clean(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := unix.Syncfs(int(dir.Fd())); err != nil {
		return fmt.Errorf("flush %s: %w", path, err)
	}
	return nil
}

// entries is the name under which the unpacker hands the limit of an image to the
// applier of its layers.
const entries = "berth.dev/entries"

// entryLimit is how many entries the layers of an image may still have.
type entryLimit struct {
	max  int64
	seen atomic.Int64
}

var _ typeurl.Any = (*entryLimit)(nil)

// GetTypeUrl implements typeurl.Any.
func (*entryLimit) GetTypeUrl() string { return entries } //nolint:revive // the interface's name

// GetValue implements typeurl.Any; nobody may read it.
func (*entryLimit) GetValue() []byte { return nil }

// withEntries bounds the entries of all layers that are unpacked with it.
func withEntries(l *entryLimit) diff.ApplyOpt {
	return func(_ context.Context, _ imagespec.Descriptor, c *diff.ApplyConfig) error {
		if c.ProcessorPayloads == nil {
			c.ProcessorPayloads = map[string]typeurl.Any{}
		}
		c.ProcessorPayloads[entries] = l
		return nil
	}
}

func (l *entryLimit) count() error {
	if l == nil {
		return nil
	}
	if l.seen.Add(1) > l.max {
		return bounds.Beyond("layers have more than %d entries, which is registry.max_image_entries", l.max)
	}
	return nil
}
