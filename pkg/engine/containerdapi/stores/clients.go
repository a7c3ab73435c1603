// Package stores offers an image store to clients of containerd's API: by containerd's interfaces,
// over the same metadata, content and snapshots.
package stores

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"

	"github.com/berth-cri/berth/pkg/engine/image/archive"
	"github.com/berth-cri/berth/pkg/engine/image/catalog"
	"github.com/berth-cri/berth/pkg/engine/image/disk"
)

// Parts are the parts of a store that clients use.
type Parts struct {
	Files     *disk.Files
	Catalog   *catalog.Catalog
	Archives  *archive.Archives
	Collector *disk.Worker
}

// Clients are the stores that clients use. Clients may add and remove images, content and leases,
// but cannot remove content of images and pulls. Unreferenced content is garbage-collected. The
// context's namespace selects the owner: disk.Namespace is the store's, every other is empty.
//
// All methods are safe for concurrent use.
type Clients struct {
	store Parts
	// due is set while a collection is scheduled.
	due atomic.Bool
}

// New returns the Clients of a store.
func New(store Parts) *Clients { return &Clients{store: store} }

// Images returns the records of images, by their full names.
func (c *Clients) Images() images.Store { return &clientImages{c.store.Files.Images, c} }

// Content returns the blobs of images.
func (c *Clients) Content() content.Store { return &clientContent{c.store.Files.Content, c} }

// Leases returns the clients' leases, without those of pulls.
func (c *Clients) Leases() leases.Manager { return &clientLeases{c.store.Files.Leases, c} }

// Snapshotters returns the snapshotters that are not Broken, by name. Callers only read from them.
func (c *Clients) Snapshotters() map[string]snapshots.Snapshotter {
	all := map[string]snapshots.Snapshotter{}
	for name, l := range c.store.Files.Layers {
		if l.Broken == nil && l.Snapshotter != nil {
			all[name] = l
		}
	}
	return all
}

// ContentRoot is the directory of the content.
func (c *Clients) ContentRoot() string { return c.store.Files.Path("content") }

// SnapshotterRoot is the directory of a snapshotter's layers; empty for proxied snapshotters.
func (c *Clients) SnapshotterRoot(name string) string {
	if l := c.store.Files.Layers[name]; l == nil || l.Proxied != nil {
		return ""
	}
	return c.store.Files.Path(disk.SnapshotsDir, name)
}

// collectDelay delays the collection of content that clients release, because clients release
// content often.
const collectDelay = 5 * time.Second

// collectSoon schedules a collection.
func (c *Clients) collectSoon() {
	if c.due.Swap(true) {
		return
	}
	time.AfterFunc(collectDelay, func() {
		c.due.Store(false)
		c.store.Collector.Kick()
	})
}

// Collect removes unreferenced content, and returns when that is done or ctx ends.
func (c *Clients) Collect(ctx context.Context) error {
	select {
	case <-c.store.Collector.Request():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
