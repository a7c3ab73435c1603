package image

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/pkg/engine/image/bounds"
	"github.com/berth-cri/berth/pkg/engine/image/disk"
	"github.com/berth-cri/berth/pkg/engine/image/pull"
)

// Config configures a Store. The zero value of each field but Root is a working default.
type Config struct {
	// Root is the store's directory: absolute, without ':' and ',', which overlayfs options cannot
	// contain. It is created if missing.
	Root string
	// WritableRoot is the directory of writable layers: absolute, without ':' and ','. Empty is
	// Root. Several stores may share it.
	WritableRoot string
	// HostsDir holds <registry>/hosts.toml files in containerd's format. Empty means that every
	// registry is contacted directly. The files are read at each pull.
	HostsDir string
	// DefaultSnapshotter is used by handlers that name none; empty is "overlayfs".
	DefaultSnapshotter string
	// Snapshotters maps the names of proxy snapshotters to their sockets.
	Snapshotters map[string]string
	// MaxConcurrentDownloads bounds the layers that one pull downloads concurrently. 0 is 3.
	MaxConcurrentDownloads int
	// PullProgressTimeout ends a pull if an open request receives nothing for this long. 0 is 5
	// minutes, negative is never.
	PullProgressTimeout time.Duration
	// Limits bound what a pull can cost.
	Limits bounds.Limits
	// DiscardLayers deletes compressed layers once they are unpacked. They are fetched again if
	// needed.
	DiscardLayers bool
	// MountOptions are added to the overlay mounts of root filesystems.
	MountOptions []string
	// SyncRootfs makes fsync in a container's root filesystem, and its unmount, write to disk.
	// Otherwise writable layers are mounted volatile, so that an unmount does not flush the whole
	// disk: after a power cut a restarted container gets a new root filesystem anyway.
	SyncRootfs bool
	// DecryptionKeysDir holds the private keys of encrypted layers. Empty or missing means none. It
	// is read for each layer.
	DecryptionKeysDir string
	// PreloadDir holds image archives, which are imported in the background after Open. Empty or
	// missing means none.
	PreloadDir string
	// Verifiers decide which images may be pulled.
	Verifiers pull.Verifiers
	// CheckpointImages are names of images that containers may be restored from, in the form of
	// PinnedImages.
	CheckpointImages []string
	// PinnedImages are image names that the kubelet must not collect; '*' in a name matches any
	// characters.
	PinnedImages []string
	// Events receives containerd's events of images, content and snapshots. It may be nil.
	Events events.Publisher
}

const defaultMaxDownloads = 3

// complete returns c with its defaults, or an error that names the wrong field.
func (c Config) complete() (Config, error) {
	if !filepath.IsAbs(c.Root) || strings.ContainsAny(c.Root, ":,") {
		return c, fmt.Errorf("image store root %q must be an absolute path without ':' and ',': %w", c.Root, errdefs.ErrInvalidArgument)
	}
	c.WritableRoot = cmp.Or(c.WritableRoot, c.Root)
	if !filepath.IsAbs(c.WritableRoot) || strings.ContainsAny(c.WritableRoot, ":,") {
		return c, fmt.Errorf("directory %q of writable layers must be an absolute path without ':' and ',': %w", c.WritableRoot, errdefs.ErrInvalidArgument)
	}
	c.DefaultSnapshotter = cmp.Or(c.DefaultSnapshotter, disk.Overlayfs)
	if known := disk.SnapshotterNames(c.Snapshotters); !slices.Contains(known, c.DefaultSnapshotter) {
		return c, disk.UnknownSnapshotter(c.DefaultSnapshotter, known)
	}
	c.MaxConcurrentDownloads = cmp.Or(c.MaxConcurrentDownloads, defaultMaxDownloads)
	c.PullProgressTimeout = cmp.Or(c.PullProgressTimeout, pull.DefaultProgressTimeout)
	c.Limits = c.Limits.Complete()
	return c, nil
}
