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

// Config says where a Store lives and how it behaves. The zero value of each
// field but Root is a working default.
type Config struct {
	// Root is the store's directory, absolute, without ':' and ',' (overlayfs
	// options cannot carry them). It is made if it is missing.
	Root string
	// WritableRoot is where what containers write is kept, absolute, without ':' and ','.
	// Empty is Root. Several stores may have the same.
	WritableRoot string
	// HostsDir holds <registry>/hosts.toml files in containerd's format. Empty
	// means that every registry is asked directly. Read at each pull.
	HostsDir string
	// DefaultSnapshotter is used where a handler names none; empty is "overlayfs".
	DefaultSnapshotter string
	// Snapshotters are the sockets of other programs' snapshotters, by their names.
	Snapshotters map[string]string
	// MaxConcurrentDownloads bounds the layers that one pull downloads at the
	// same time. 0 is 3.
	MaxConcurrentDownloads int
	// PullProgressTimeout ends a pull that has a request open and got no byte
	// for this long. 0 is 5 minutes, negative is never.
	PullProgressTimeout time.Duration
	// Limits bound what a pull can cost.
	Limits bounds.Limits
	// DiscardLayers lets compressed layers go once they are unpacked. They are fetched
	// again if something needs them.
	DiscardLayers bool
	// MountOptions are added to the overlay mounts of root filesystems.
	MountOptions []string
	// SyncRootfs makes fsync in a container's root filesystem, and its unmount,
	// reach the disk. Off, writable layers are mounted volatile: a container
	// that is restarted after a power cut gets a new root filesystem anyway, and
	// unmounting a layer does not flush the whole disk.
	SyncRootfs bool
	// DecryptionKeysDir holds the private keys that open encrypted layers. Empty
	// or missing means that there are none. Read at each layer.
	DecryptionKeysDir string
	// PreloadDir has archives of images, which are imported in the background after
	// Open. Empty or missing means that there are none.
	PreloadDir string
	// Verifiers decide which images may be pulled.
	Verifiers pull.Verifiers
	// CheckpointImages are names of images whose processes may go on here, as PinnedImages
	// are written.
	CheckpointImages []string
	// PinnedImages are image names that the kubelet must not collect; '*' in a
	// name stands for any characters.
	PinnedImages []string
	// Events is told of images, content and snapshots that come and go, in the words of
	// containerd's API. nil is nobody.
	Events events.Publisher
}

const defaultMaxDownloads = 3

// complete returns c with its defaults, or says which field is wrong.
func (c Config) complete() (Config, error) {
	if !filepath.IsAbs(c.Root) || strings.ContainsAny(c.Root, ":,") {
		return c, fmt.Errorf("image store root %q must be an absolute path without ':' and ',': %w", c.Root, errdefs.ErrInvalidArgument)
	}
	c.WritableRoot = cmp.Or(c.WritableRoot, c.Root)
	if !filepath.IsAbs(c.WritableRoot) || strings.ContainsAny(c.WritableRoot, ":,") {
		return c, fmt.Errorf("directory %q of what containers write must be an absolute path without ':' and ',': %w", c.WritableRoot, errdefs.ErrInvalidArgument)
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
