package image

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/continuity/fs"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
)

// Usage is space on disk.
type Usage struct {
	// Bytes that are allocated, and inodes.
	Bytes, Inodes uint64
}

func (u Usage) add(v Usage) Usage {
	return Usage{Bytes: u.Bytes + v.Bytes, Inodes: u.Inodes + v.Inodes}
}

// written is what a container wrote.
type written struct {
	// below is where writable layers are, withLayers in a snapshotter that keeps it with
	// the layers of images.
	below, withLayers Usage
}

// meter knows what images and writable layers take on disk. It counts writable layers one
// at a time, and only after a question for them.
type meter struct {
	files  *files
	worker *worker

	mu     sync.Mutex
	stored Usage // of content and unpacked layers
	known  map[measureKey]measured
	wanted map[measureKey]bool
}

func newMeter(f *files) *meter {
	return &meter{files: f, worker: newWorker(), known: map[measureKey]measured{}, wanted: map[measureKey]bool{}}
}

// run counts writable layers until ctx ends.
func (m *meter) run(ctx context.Context) { m.worker.run(ctx, m.countWanted) }

// Usage returns what images take, and what containers wrote, from figures in memory:
// those of images are exact, those of containers as old as the last question for them.
// What a snapshotter keeps with the layers of images counts as theirs.
func (m *meter) Usage() (images, writable Usage) {
	m.mu.Lock()
	defer m.mu.Unlock()
	images = m.stored
	for _, k := range m.known {
		images, writable = images.add(k.withLayers), writable.add(k.below)
	}
	return images, writable
}

// measureStored sums up what the metadata says about content and layers. It
// reads no tree: a layer was measured when it was unpacked.
func (m *meter) measureStored(ctx context.Context) error {
	var sum Usage
	named := map[string]bool{} // snapshots of the manifests that there are
	err := m.files.content.Walk(ctx, func(info content.Info) error {
		sum = sum.add(Usage{Bytes: uint64(info.Size), Inodes: 1})
		for label, value := range info.Labels {
			if name, ok := strings.CutPrefix(label, snapshotRef); ok {
				named[name+"/"+value] = true
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("content: %w", err)
	}
	for name, l := range m.files.layers {
		if l.unusable() != nil {
			continue
		}
		err := l.walkQuickly(ctx, func(ctx context.Context, info snapshots.Info) error {
			if info.Kind != snapshots.KindCommitted {
				return nil
			}
			u, err := l.Usage(ctx, info.Name)
			if errdefs.IsNotFound(err) {
				return nil
			}
			if named[name+"/"+info.Name] { // else a volume in use has its files for itself
				linked, _ := strconv.ParseInt(info.Labels[linkedLabel], 10, 64) // counted as content
				u.Size = max(0, u.Size-linked)
			}
			sum = sum.add(Usage{Bytes: uint64(u.Size), Inodes: uint64(u.Inodes)})
			return err
		})
		if err = l.excused(ctx, err); err != nil {
			return fmt.Errorf("snapshotter %s: %w", name, err)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stored = sum
	return nil
}

// WritableUsage returns what a container wrote to its root filesystem and the volumes
// of its own, and a path on the filesystem that holds it. The answer may be as old as some ten
// seconds (longer where counting takes long): trees are walked in the
// background. errdefs.ErrUnavailable before the first answer is there,
// ErrNotFound without a root filesystem.
func (m *meter) WritableUsage(ctx context.Context, containerID, snapshotter string) (bytes, inodes uint64, path string, err error) {
	l, name, err := m.files.layersFor(containerID, snapshotter)
	if err != nil {
		return 0, 0, "", err
	}
	path = m.files.rootfsPath(name, containerID)
	if _, err := os.Lstat(path); err != nil {
		if _, err := l.Stat(inNamespace(ctx), rootfsPrefix+containerID); err != nil {
			return 0, 0, "", fmt.Errorf("container %s has no root filesystem: %w", containerID, errdefs.ErrNotFound)
		}
		path = m.files.path(snapshotsDir, name)
	}
	u, ok := m.get(ctx, measureKey{snapshotter: name, container: containerID})
	if !ok {
		return 0, 0, "", fmt.Errorf("usage of container %s is not measured yet: %w", containerID, errdefs.ErrUnavailable)
	}
	sum := u.below.add(u.withLayers)
	return sum.Bytes, sum.Inodes, path, nil
}

// usageOf walks the writable layer of a container, and the volumes of its own.
func (m *meter) usageOf(ctx context.Context, k measureKey) (w written, err error) {
	upper := filepath.Join(m.files.rootfsPath(k.snapshotter, k.container), "fs")
	if _, err := os.Lstat(upper); err == nil {
		if w.below, err = usageBelow(ctx, upper); err != nil {
			return written{}, err
		}
	} else {
		du, err := m.files.layers[k.snapshotter].Usage(ctx, rootfsPrefix+k.container)
		if err != nil {
			return written{}, err
		}
		w.withLayers = Usage{Bytes: uint64(du.Size), Inodes: uint64(du.Inodes)}
	}
	volumes := m.files.volumesPath(k.snapshotter, k.container)
	if _, err := os.Lstat(volumes); err != nil {
		return w, nil
	}
	more, err := usageBelow(ctx, volumes)
	w.below = w.below.add(more)
	return w, err
}

func usageBelow(ctx context.Context, dir string) (Usage, error) {
	du, err := fs.DiskUsage(ctx, dir)
	return Usage{Bytes: uint64(du.Size), Inodes: uint64(du.Inodes)}, err
}

const (
	// minMeasureAge is how old a figure may be before it is counted again.
	minMeasureAge = 10 * time.Second
	// measureShare keeps the time of counting below one in so many.
	measureShare = 50
	// firstMeasureWait is how long a caller waits for a first figure. New
	// layers are small and are counted in this time.
	firstMeasureWait = 5 * time.Millisecond
)

type measureKey struct{ snapshotter, container string }

type measured struct {
	written
	at   time.Time
	cost time.Duration
}

// stale says whether a figure should be counted again.
func (m measured) stale(now time.Time) bool {
	return now.Sub(m.at) > max(minMeasureAge, measureShare*m.cost)
}

// get returns the last figure and has it counted again if it is old.
func (m *meter) get(ctx context.Context, k measureKey) (written, bool) {
	m.mu.Lock()
	last, ok := m.known[k]
	if ok && !last.stale(time.Now()) {
		m.mu.Unlock()
		return last.written, true
	}
	m.wanted[k] = true
	m.mu.Unlock()
	counted := m.worker.request()
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

// forget drops what is known of the writable layer of a container.
func (m *meter) forget(snapshotter, container string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	k := measureKey{snapshotter: snapshotter, container: container}
	delete(m.known, k)
	delete(m.wanted, k)
}

// countWanted counts everything that was asked for.
func (m *meter) countWanted(ctx context.Context) {
	for {
		k, ok := m.next()
		if !ok || ctx.Err() != nil {
			return
		}
		start := time.Now()
		w, err := m.usageOf(ctx, k)
		if err != nil {
			// A container that is removed meanwhile is the usual reason.
			log.G(ctx).WithError(err).WithField("container", k.container).Debug("Failed to measure writable layer")
		}
		m.keep(k, measured{written: w, at: time.Now(), cost: time.Since(start)}, err)
	}
}

func (m *meter) next() (measureKey, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for k := range m.wanted {
		return k, true
	}
	return measureKey{}, false
}

// keep stores a figure, unless the layer was forgotten while it was counted.
func (m *meter) keep(k measureKey, got measured, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.wanted[k] && err == nil {
		m.known[k] = got
	}
	delete(m.wanted, k)
}
