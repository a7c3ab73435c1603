package containerdapi

import (
	"context"
	"time"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/filters"
	"github.com/opencontainers/go-digest"

	"github.com/berth-cri/berth/pkg/engine/image"
	"github.com/berth-cri/berth/pkg/engine/image/containerfs"
	"github.com/berth-cri/berth/pkg/engine/pod"
)

// layers is a snapshotter that adds the root filesystems of containers. The store has no snapshots
// of their ids, so layers presents each as a read-only snapshot with the container's id.
type layers struct {
	snapshots.Snapshotter
	name   string
	pods   *pod.Registry
	images *image.Store
}

func (l *layers) root(ctx context.Context, key string) (*pod.Container, bool) {
	own, err := ours(ctx)
	if err != nil || !own {
		return nil, false
	}
	c, err := l.pods.Index.Container(key)
	return c, err == nil && c.ID() == key && c.Spec().Snapshotter == l.name
}

func (l *layers) Stat(ctx context.Context, key string) (snapshots.Info, error) {
	if c, ok := l.root(ctx, key); ok {
		return rootInfo(c), nil
	}
	return l.Snapshotter.Stat(ctx, key)
}

func rootInfo(c *pod.Container) snapshots.Info {
	created := time.Unix(0, c.Spec().CreatedAt)
	return snapshots.Info{Kind: snapshots.KindActive, Name: c.ID(), Parent: c.Spec().ImageChain, Created: created, Updated: created}
}

// Mounts implements snapshots.Snapshotter. A container's mounts contain its root filesystem as the
// container sees it, read-only.
func (l *layers) Mounts(ctx context.Context, key string) ([]mount.Mount, error) {
	if c, ok := l.root(ctx, key); ok {
		return l.images.SeenOf(containerfs.Use{Owner: c.ID(), ChainID: digest.Digest(c.Spec().ImageChain), Snapshotter: l.name})
	}
	return l.Snapshotter.Mounts(ctx, key)
}

func (l *layers) Usage(ctx context.Context, key string) (snapshots.Usage, error) {
	c, ok := l.root(ctx, key)
	if !ok {
		return l.Snapshotter.Usage(ctx, key)
	}
	bytes, inodes, _, err := l.images.Meter.WritableUsage(ctx, c.ID(), l.name)
	return snapshots.Usage{Size: int64(bytes), Inodes: int64(inodes)}, err
}

func (l *layers) Walk(ctx context.Context, f snapshots.WalkFunc, fs ...string) error {
	wants, err := filters.ParseAll(fs...)
	if err != nil {
		return err
	}
	if err := l.Snapshotter.Walk(ctx, f, fs...); err != nil {
		return err
	}
	if own, err := ours(ctx); err != nil || !own {
		return err
	}
	for _, c := range l.pods.Index.AllContainers() {
		if c.Spec().Snapshotter != l.name {
			continue
		}
		info := rootInfo(c)
		if wants.Match(adapt(map[string]string{"kind": "active", "name": info.Name, "parent": info.Parent}, nil)) {
			if err := f(ctx, info); err != nil {
				return err
			}
		}
	}
	return nil
}
