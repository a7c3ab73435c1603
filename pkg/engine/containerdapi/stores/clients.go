// Package stores is an image store as programs of the node use it that speak containerd's
// API: by containerd's interfaces, over the same metadata, content and snapshots.
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

// Parts are what of a store agents and shims reach through containerd's API.
type Parts struct {
	Files     *disk.Files
	Catalog   *catalog.Catalog
	Archives  *archive.Archives
	Collector *disk.Worker
}

// Clients are the stores that clients get. They may add and remove images, content and
// leases. What images and pulls need stays, whatever they do; what nothing needs is
// collected. The context's namespace selects whose things are meant: disk.Namespace is the
// store's, every other is empty.
//
// All methods may be called at the same time.
type Clients struct {
	store Parts
	// due says that a collection is on its way.
	due atomic.Bool
}

// New serves the parts of a store.
func New(store Parts) *Clients { return &Clients{store: store} }

// Images are the records of images, by their whole names.
func (c *Clients) Images() images.Store { return &clientImages{c.store.Files.Images, c} }

// Content is what images are made of.
func (c *Clients) Content() content.Store { return &clientContent{c.store.Files.Content, c} }

// Leases hold content, and leave those of pulls alone.
func (c *Clients) Leases() leases.Manager { return &clientLeases{c.store.Files.Leases, c} }

// Snapshotters are those that work on this node, by their names. They must not be
// changed.
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

// SnapshotterRoot is the directory of a snapshotter's layers; empty for those of other
// programs.
func (c *Clients) SnapshotterRoot(name string) string {
	if l := c.store.Files.Layers[name]; l == nil || l.Proxied != nil {
		return ""
	}
	return c.store.Files.Path(disk.SnapshotsDir, name)
}

// collectDelay is how long what clients give up may stay: many of them do so often.
const collectDelay = 5 * time.Second

// collectSoon has what nothing needs be removed in a while.
func (c *Clients) collectSoon() {
	if c.due.Swap(true) {
		return
	}
	time.AfterFunc(collectDelay, func() {
		c.due.Store(false)
		c.store.Collector.Kick()
	})
}

// Collect removes what nothing needs, and returns when that is done or ctx ends.
func (c *Clients) Collect(ctx context.Context) error {
	select {
	case <-c.store.Collector.Request():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
