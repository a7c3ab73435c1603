package image

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/atomicfile"
	"github.com/berth-cri/berth/pkg/engine/failpoint"
	"github.com/berth-cri/berth/pkg/engine/procfs"
)

// unpackLabel is on layers; its value is the unpacking that made them.
const unpackLabel = "berth.dev/unpacking"

// flusher has layers written to disk after they were unpacked: no pod waits for the
// disk, and many layers cost one flush. A power cut before it leaves layers that are in
// the metadata and not whole. So each unpacking has a mark on disk, from before its first
// layer until the flush after its last, with the boot that it belongs to: what a mark of
// an earlier boot names is unpacked again. The compressed layers are on disk before an
// image has a record.
type flusher struct {
	// root is on the filesystem that is flushed.
	root, marks, boot string
	work              *worker

	mu    sync.Mutex
	ended []string
}

func newFlusher(root, marks string) (*flusher, error) {
	boot, err := procfs.BootID()
	return &flusher{root: root, marks: marks, boot: boot, work: newWorker()}, err
}

// begin marks an unpacking, whose layers get the options.
func (f *flusher) begin() (id string, opts []snapshots.Opt, err error) {
	id = rand.Text()
	if err := atomicfile.Write(filepath.Join(f.marks, id), []byte(f.boot), 0o600, atomicfile.Durable); err != nil {
		return "", nil, fmt.Errorf("mark what is unpacked: %w", err)
	}
	return id, []snapshots.Opt{snapshots.WithLabels(map[string]string{unpackLabel: id})}, nil
}

// end says that no more layers of an unpacking come. Those of one that failed may be
// others' by now.
func (f *flusher) end(id string) {
	f.mu.Lock()
	f.ended = append(f.ended, id)
	f.mu.Unlock()
	f.work.kick()
}

// flush writes the layers of all unpackings that have ended, and takes their marks away.
func (f *flusher) flush(ctx context.Context) {
	f.mu.Lock()
	ended := f.ended
	f.ended = nil
	f.mu.Unlock()
	if len(ended) == 0 {
		return
	}
	failpoint.Hit(failpoint.ImageFlush)
	if err := syncFilesystem(f.root); err != nil {
		// The kernel tells once of what it could not write.
		log.G(ctx).WithError(err).Error("Failed to flush unpacked layers; they will be unpacked again after the next boot")
		return
	}
	for _, id := range ended {
		if err := atomicfile.Remove(filepath.Join(f.marks, id)); err != nil {
			log.G(ctx).WithError(err).Warn("Failed to remove the mark of unpacked layers; they will be unpacked again after the next boot")
		}
	}
}

// recover returns the unpackings of earlier boots, whose layers may not be whole. Those
// of this boot are: what ended their daemon left the page cache alone.
func (f *flusher) recover() (lost map[string]bool, err error) {
	entries, err := os.ReadDir(f.marks)
	if err != nil {
		return nil, fmt.Errorf("read the marks of unpacked layers: %w", err)
	}
	lost = map[string]bool{}
	for _, e := range entries {
		boot, err := os.ReadFile(filepath.Join(f.marks, e.Name()))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("read the mark of unpacked layers: %w", err)
		}
		if string(boot) == f.boot {
			f.end(e.Name())
		} else {
			lost[e.Name()] = true
		}
	}
	return lost, nil
}

// forget takes away the marks of what was lost, once it is gone.
func (f *flusher) forget(lost map[string]bool) error {
	for id := range lost {
		if err := atomicfile.Remove(filepath.Join(f.marks, id)); err != nil {
			return fmt.Errorf("remove the mark of unpacked layers: %w", err)
		}
	}
	return nil
}

// dropLost removes the layers of earlier boots that may not be whole, with what is
// built on them.
func (f *files) dropLost(ctx context.Context) error {
	lost, err := f.flusher.recover()
	if err != nil || len(lost) == 0 {
		return err
	}
	removed := 0
	for name, l := range f.layers {
		if l.unusable() != nil {
			continue
		}
		n, err := l.dropUnpackedBy(ctx, lost)
		if err = l.excused(ctx, err); err != nil {
			return fmt.Errorf("snapshotter %s: remove layers that were not flushed: %w", name, err)
		}
		removed += n
	}
	if removed > 0 {
		log.G(ctx).WithField("layers", removed).Warn("Removed unpacked layers that were not on disk at the last power cut; they will be unpacked again when they are needed")
	}
	if _, err := f.db.GarbageCollect(ctx); err != nil {
		return fmt.Errorf("remove layers that were not flushed: %w", err)
	}
	return f.flusher.forget(lost)
}

func (l *layers) dropUnpackedBy(ctx context.Context, lost map[string]bool) (removed int, err error) {
	children := map[string][]string{}
	var first []string
	err = l.Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		children[info.Parent] = append(children[info.Parent], info.Name)
		if lost[info.Labels[unpackLabel]] {
			first = append(first, info.Name)
		}
		return nil
	})
	gone := map[string]bool{}
	var drop func(name string) error
	drop = func(name string) error {
		if gone[name] {
			return nil
		}
		for _, child := range children[name] {
			if err := drop(child); err != nil {
				return err
			}
		}
		gone[name] = true
		return l.Remove(ctx, name)
	}
	for _, name := range first {
		if err == nil {
			err = drop(name)
		}
	}
	return len(gone), err
}
