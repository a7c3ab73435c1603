package disk

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/log"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/atomicfile"
	"github.com/berth-cri/berth/pkg/engine/failpoint"
	"github.com/berth-cri/berth/pkg/engine/procfs"
)

// unpackLabel labels each layer with the id of its unpacking.
const unpackLabel = "berth.dev/unpacking"

// Flusher flushes layers to disk after they were unpacked, so that no pod waits for the disk and
// many layers share one flush. A power cut before the flush can leave incomplete layers, although
// the metadata lists them. Therefore each unpacking has a mark on disk, from before its first layer
// until the flush after its last. The mark contains the boot ID: layers with a mark of an earlier
// boot are unpacked again. Compressed layers are on disk before their image has a record.
type Flusher struct {
	// root is on the filesystem that each flush writes; marks is the directory of the marks.
	root, marks, Boot string
	Work              *Worker
	// Flushing is held during a flush.
	Flushing sync.Mutex

	mu    sync.Mutex
	ended []string
	// others are the other filesystems that an unpacking wrote to, such as a proxy snapshotter's:
	// open directories, by unpacking and device.
	others map[string]map[uint64]*os.File
	// lost are the unpackings that were not flushed in an earlier boot. unseen are the snapshotters
	// that may still have layers of them.
	lost, unseen map[string]bool
}

func newFlusher(root, marks string) (*Flusher, error) {
	boot, err := procfs.BootID()
	return &Flusher{root: root, marks: marks, Boot: boot, Work: NewWorker(), others: map[string]map[uint64]*os.File{}}, err
}

// Begin marks a new unpacking. Its layers must be created with opts.
func (f *Flusher) Begin() (id string, opts []snapshots.Opt, err error) {
	id = rand.Text()
	if err := f.mark(id, ""); err != nil {
		return "", nil, err
	}
	return id, []snapshots.Opt{snapshots.WithLabels(map[string]string{unpackLabel: id})}, nil
}

func (f *Flusher) mark(id, state string) error {
	if err := atomicfile.Write(filepath.Join(f.marks, id), []byte(f.Boot+state), 0o600, atomicfile.Durable); err != nil {
		return fmt.Errorf("write the mark of unpacked layers: %w", err)
	}
	return nil
}

// End reports that an unpacking adds no more layers. A failed unpacking needs it too: other
// unpackings may use its layers by now.
func (f *Flusher) End(id string) {
	f.mu.Lock()
	f.ended = append(f.ended, id)
	f.mu.Unlock()
	f.Work.Kick()
}

// Wrote records the filesystem that an unpacking writes to.
func (f *Flusher) Wrote(id, dir string) error {
	var there, own unix.Stat_t
	if err := errors.Join(unix.Stat(dir, &there), unix.Stat(f.root, &own)); err != nil {
		return err
	}
	if there.Dev == own.Dev {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.others[id] == nil {
		f.others[id] = map[uint64]*os.File{}
	}
	if f.others[id][there.Dev] != nil {
		return nil
	}
	// An open file reports all write errors since it was opened.
	opened, err := os.Open(filepath.Clean(dir))
	if err == nil {
		f.others[id][there.Dev] = opened
	}
	return err
}

// unflushed follows the boot ID in the mark of an unpacking with a failed flush.
const unflushed = " unflushed"

// Flush writes the layers of all ended unpackings to disk, and removes their marks.
func (f *Flusher) Flush(ctx context.Context) {
	if err := f.Flushed(ctx); err != nil {
		log.G(ctx).WithError(err).Error("Failed to flush unpacked layers; they will be unpacked again after the next boot")
	}
}

// Flushed is Flush, but returns the error. After an error the marks stay until the next boot: the
// kernel reports a write error only once, so a later flush proves nothing. Flushed also waits for a
// running flush.
func (f *Flusher) Flushed(ctx context.Context) error {
	f.Flushing.Lock()
	defer f.Flushing.Unlock()
	f.mu.Lock()
	ended, others := f.ended, []*os.File(nil)
	f.ended = nil
	for _, id := range ended {
		others = slices.AppendSeq(others, maps.Values(f.others[id]))
		delete(f.others, id)
	}
	f.mu.Unlock()
	if len(ended) == 0 {
		return nil
	}
	failpoint.Hit(failpoint.ImageFlush)
	root, err := os.Open(f.root)
	if err == nil {
		err = errors.Join(unix.Syncfs(int(root.Fd())), root.Close())
	}
	for _, dir := range others {
		err = errors.Join(err, unix.Syncfs(int(dir.Fd())), dir.Close())
	}
	if err != nil {
		err = fmt.Errorf("flush filesystems of layers: %w", err)
		for _, id := range ended {
			err = errors.Join(err, f.mark(id, unflushed))
		}
		return err
	}
	for _, id := range ended {
		if err := atomicfile.Remove(filepath.Join(f.marks, id)); err != nil {
			log.G(ctx).WithError(err).Warn("Failed to remove the mark of unpacked layers; they will be unpacked again after the next boot")
		}
	}
	return nil
}

// Recover finds the unflushed unpackings of earlier boots, which may have left incomplete layers in
// any snapshotter. Layers of this boot are complete: the page cache outlives a daemon.
func (f *Flusher) Recover(snapshotters iter.Seq[string]) error {
	entries, err := os.ReadDir(f.marks)
	if err != nil {
		return fmt.Errorf("read the marks of unpacked layers: %w", err)
	}
	lost := map[string]bool{}
	for _, e := range entries {
		boot, err := os.ReadFile(filepath.Join(f.marks, e.Name()))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("read the mark of unpacked layers: %w", err)
		}
		switch string(boot) {
		case f.Boot:
			f.End(e.Name())
		case f.Boot + unflushed:
		default:
			lost[e.Name()] = true
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lost, f.unseen = lost, map[string]bool{}
	for name := range snapshotters {
		f.unseen[name] = true
	}
	return nil
}

// lostIn returns the unflushed unpackings of earlier boots, if a snapshotter may have their layers.
func (f *Flusher) lostIn(snapshotter string) map[string]bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.unseen[snapshotter] {
		return nil
	}
	return f.lost
}

// markClean records that a snapshotter has no more layers of earlier boots that may be incomplete.
// After the last snapshotter it removes the marks.
func (f *Flusher) markClean(snapshotter string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if delete(f.unseen, snapshotter); len(f.unseen) > 0 {
		return nil
	}
	for id := range f.lost {
		if err := atomicfile.Remove(filepath.Join(f.marks, id)); err != nil {
			return fmt.Errorf("remove the mark of unpacked layers: %w", err)
		}
		delete(f.lost, id)
	}
	return nil
}

// DropLost removes from a snapshotter the layers of earlier boots that may be incomplete, with
// everything built on them.
func (f *Files) DropLost(ctx context.Context, l *Layers) error {
	lost := f.Flusher.lostIn(l.Name)
	if len(lost) == 0 {
		return f.Flusher.markClean(l.Name)
	}
	removed, err := l.DropBuiltOn(ctx, func(info snapshots.Info) bool { return lost[info.Labels[unpackLabel]] })
	if err != nil {
		return fmt.Errorf("remove layers that were not flushed: %w", err)
	}
	if len(removed) > 0 {
		log.G(ctx).WithFields(log.Fields{"layers": len(removed), "snapshotter": l.Name}).Warn("Removed unpacked layers that were not flushed in an earlier boot; they will be unpacked again when they are needed")
		if _, err := f.DB.GarbageCollect(ctx); err != nil {
			return fmt.Errorf("remove layers that were not flushed: %w", err)
		}
	}
	return f.Flusher.markClean(l.Name)
}

// DropBuiltOn removes and returns the snapshots for which lost is true, and all built on them.
func (l *Layers) DropBuiltOn(ctx context.Context, lost func(snapshots.Info) bool) (gone map[string]bool, err error) {
	children := map[string][]string{}
	var first []string
	err = l.Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		children[info.Parent] = append(children[info.Parent], info.Name)
		if lost(info) {
			first = append(first, info.Name)
		}
		return nil
	})
	gone = map[string]bool{}
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
	return gone, err
}
