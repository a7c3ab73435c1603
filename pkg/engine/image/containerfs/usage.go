package containerfs

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/continuity/fs"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/engine/image/disk"
	"github.com/berth-cri/berth/pkg/engine/image/unpack"
)

// Usage is disk usage.
type Usage struct {
	// Bytes that are allocated, and inodes.
	Bytes, Inodes uint64
}

// Add returns the sum.
func (u Usage) Add(v Usage) Usage {
	return Usage{Bytes: u.Bytes + v.Bytes, Inodes: u.Inodes + v.Inodes}
}

type written struct {
	// below is the usage in Files.Writable. withLayers is the usage in a snapshotter that keeps
	// writable layers beside the layers of images.
	below, withLayers Usage
}

// Meter measures the disk usage of images and writable layers. It counts writable layers one at a
// time, and only on request.
type Meter struct {
	files  *disk.Files
	worker *disk.Worker

	mu     sync.Mutex
	stored Usage // of content and unpacked layers
	known  map[measureKey]measured
	wanted map[measureKey]bool
}

// NewMeter returns a meter, which Run keeps up to date.
func NewMeter(f *disk.Files) *Meter {
	return &Meter{files: f, worker: disk.NewWorker(), known: map[measureKey]measured{}, wanted: map[measureKey]bool{}}
}

// Run counts writable layers until ctx ends.
func (m *Meter) Run(ctx context.Context) { m.worker.Run(ctx, m.countWanted) }

// Usage returns the usage of images and of writable layers, from figures in memory. MeasureStored
// updates the figures of images, and WritableUsage the figure of a writable layer. Writable layers
// that a snapshotter keeps with those of images count as images.
func (m *Meter) Usage() (images, writable Usage) {
	m.mu.Lock()
	defer m.mu.Unlock()
	images = m.stored
	for _, k := range m.known {
		images, writable = images.Add(k.withLayers), writable.Add(k.below)
	}
	return images, writable
}

// MeasureStored sums the sizes of content and layers in the metadata. It walks no tree: a layer was
// measured when it was unpacked.
func (m *Meter) MeasureStored(ctx context.Context) error {
	var sum Usage
	named := map[string]bool{} // snapshots that existing manifests refer to
	err := m.files.Content.Walk(ctx, func(info content.Info) error {
		sum = sum.Add(Usage{Bytes: uint64(info.Size), Inodes: 1})
		for label, value := range info.Labels {
			if name, ok := strings.CutPrefix(label, unpack.SnapshotRef); ok {
				named[name+"/"+value] = true
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("content: %w", err)
	}
	for name, l := range m.files.Layers {
		if l.Unusable() != nil {
			continue
		}
		err := l.WalkQuickly(ctx, func(ctx context.Context, info snapshots.Info) error {
			if info.Kind != snapshots.KindCommitted {
				return nil
			}
			u, err := l.Usage(ctx, info.Name)
			if errdefs.IsNotFound(err) {
				return nil
			}
			if named[name+"/"+info.Name] { // otherwise only a volume keeps the files on disk
				linked, _ := strconv.ParseInt(info.Labels[unpack.LinkedLabel], 10, 64) // counted as content
				u.Size = max(0, u.Size-linked)
			}
			sum = sum.Add(Usage{Bytes: uint64(u.Size), Inodes: uint64(u.Inodes)})
			return err
		})
		if err = l.TolerateProxied(ctx, err); err != nil {
			return fmt.Errorf("snapshotter %s: %w", name, err)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stored = sum
	return nil
}

// WritableUsage returns what a container wrote to its root filesystem and its own volumes, and a
// path on the filesystem that holds it. The figures may be some ten seconds old (more if counting
// takes long), since trees are walked in the background. It returns errdefs.ErrUnavailable before
// the first figure, ErrNotFound without a root filesystem.
func (m *Meter) WritableUsage(ctx context.Context, containerID, snapshotter string) (bytes, inodes uint64, path string, err error) {
	l, err := m.files.LayersFor(containerID, snapshotter)
	if err != nil {
		return 0, 0, "", err
	}
	path = m.files.RootfsPath(l.Name, containerID)
	if _, err := os.Lstat(path); err != nil {
		if _, err := l.Stat(disk.InNamespace(ctx), disk.RootfsPrefix+containerID); err != nil {
			return 0, 0, "", fmt.Errorf("container %s has no root filesystem: %w", containerID, errdefs.ErrNotFound)
		}
		path = m.files.Path(disk.SnapshotsDir, l.Name)
	}
	u, ok := m.get(ctx, measureKey{snapshotter: l.Name, container: containerID})
	if !ok {
		return 0, 0, "", fmt.Errorf("usage of container %s is not measured yet: %w", containerID, errdefs.ErrUnavailable)
	}
	sum := u.below.Add(u.withLayers)
	return sum.Bytes, sum.Inodes, path, nil
}

// usageOf walks the writable layer and the own volumes of a container.
func (m *Meter) usageOf(ctx context.Context, k measureKey) (w written, err error) {
	upper := filepath.Join(m.files.RootfsPath(k.snapshotter, k.container), "fs")
	if _, err := os.Lstat(upper); err == nil {
		if w.below, err = usageBelow(ctx, upper); err != nil {
			return written{}, err
		}
	} else {
		du, err := m.files.Layers[k.snapshotter].Usage(ctx, disk.RootfsPrefix+k.container)
		if err != nil {
			return written{}, err
		}
		w.withLayers = Usage{Bytes: uint64(du.Size), Inodes: uint64(du.Inodes)}
	}
	volumes := m.files.VolumesPath(k.snapshotter, k.container)
	if _, err := os.Lstat(volumes); err != nil {
		return w, nil
	}
	more, err := usageBelow(ctx, volumes)
	w.below = w.below.Add(more)
	return w, err
}

func usageBelow(ctx context.Context, dir string) (Usage, error) {
	du, err := fs.DiskUsage(ctx, dir)
	return Usage{Bytes: uint64(du.Size), Inodes: uint64(du.Inodes)}, err
}

const (
	// minMeasureAge is how old a figure may be before it is counted again.
	minMeasureAge = 10 * time.Second
	// measureShare keeps the share of time spent counting below 1/measureShare.
	measureShare = 50
	// firstMeasureWait is how long a caller waits for a first figure. New layers are small and
	// counted in this time.
	firstMeasureWait = 5 * time.Millisecond
)

type measureKey struct{ snapshotter, container string }

type measured struct {
	written
	at   time.Time
	cost time.Duration
}

func (m measured) stale(now time.Time) bool {
	return now.Sub(m.at) > max(minMeasureAge, measureShare*m.cost)
}

// get returns the last figure, and requests a new one if it is old.
func (m *Meter) get(ctx context.Context, k measureKey) (written, bool) {
	m.mu.Lock()
	last, ok := m.known[k]
	if ok && !last.stale(time.Now()) {
		m.mu.Unlock()
		return last.written, true
	}
	m.wanted[k] = true
	m.mu.Unlock()
	counted := m.worker.Request()
	if ok {
		return last.written, true
	}
	wait := time.NewTimer(firstMeasureWait)
	defer wait.Stop()
	select {
	case <-counted:
	case <-wait.C:
	case <-ctx.Done():
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	last, ok = m.known[k]
	return last.written, ok
}

func (m *Meter) forget(snapshotter, container string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	k := measureKey{snapshotter: snapshotter, container: container}
	delete(m.known, k)
	delete(m.wanted, k)
}

func (m *Meter) countWanted(ctx context.Context) {
	m.mu.Lock()
	wanted := slices.Collect(maps.Keys(m.wanted))
	m.mu.Unlock()
	for _, k := range wanted {
		if ctx.Err() != nil {
			return
		}
		start := time.Now()
		w, err := m.usageOf(ctx, k)
		if err != nil {
			// Usually the container was removed during the measurement.
			log.G(ctx).WithError(err).WithField("container", k.container).Debug("Failed to measure writable layer")
		}
		m.keep(k, measured{written: w, at: time.Now(), cost: time.Since(start)}, err)
	}
}

// keep stores a figure, unless the layer was forgotten while it was counted.
func (m *Meter) keep(k measureKey, got measured, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.wanted[k] && err == nil {
		m.known[k] = got
	}
	delete(m.wanted, k)
}
