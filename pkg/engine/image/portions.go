package image

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/pkg/archive"
	continuity "github.com/containerd/continuity/fs"
	"github.com/containerd/errdefs"
	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/image/bounds"
)

const (
	// defaultPortion leaves room for the garbage beside what is remembered.
	defaultPortion = 4 << 20
	// maxHeaders bounds what one entry has before its content: a name, a link and
	// attributes, each of which Go reads up to 1 MiB of.
	maxHeaders = 8 << 20
	// rememberedEntry is what containerd remembers of an entry, beside its path,
	// and rememberedDir what of a directory.
	rememberedEntry, rememberedDir = 64, 512
	// largeFile is from where on it is looked whether there is room for a file.
	largeFile = 64 << 20
)

// errPortion ends a portion before an entry, which the next one begins with.
var errPortion = errors.New("portion is full")

// errBelow does so before an entry whose directory may be one of the layers below: it
// takes its owner, mode and attributes from there.
var errBelow = errors.New("the layers below are needed")

// portions unpacks an archive in parts, each of which is an archive of its own to
// containerd. What it forgets between them are directories, whose times it would
// set last, and which paths opaque directories do not hide.
type portions struct {
	tape  *tape
	limit *entryLimit
	size  int64
	// shared is what portions of all layers have beside basePortion each, and taken
	// is what this one has of it. Nil is no bound.
	shared        *semaphore.Weighted
	taken         int64
	scratch, root string
	overlay       bool
	// below waits for the layers below, if they were not there at the beginning, and
	// returns their directories. Nil if they are known.
	below func(context.Context) ([]string, error)
	// parent is the directory of the last entry, which is there.
	parent string

	// empty says that nothing was below root.
	empty bool
	// number counts the portions before this one.
	number int
	// remembered is what containerd remembers of this portion, and filled that it may
	// not remember more.
	remembered int64
	filled     bool
	// dirs are those of this portion, with earlier ones in the file.
	dirs    []dirTimes
	earlier *os.File
	encoder *gob.Encoder
	// begin is where the last entry's content begins, and last its length.
	begin, last int64
}

// dirTimes are the times that a directory has in the archive, in nanoseconds.
type dirTimes struct {
	Name            string
	Access, Changed int64
}

func (p *portions) apply(ctx context.Context, opts ...archive.ApplyOpt) (err error) {
	below, err := os.ReadDir(p.root)
	if err != nil {
		return err
	}
	p.empty = len(below) == 0
	defer func() { err = errors.Join(err, p.close()) }()
	opts = append(opts, archive.WithFilter(p.filter))
	for {
		if p.below != nil {
			p.tape.record(0)
		}
		_, err := archive.Apply(ctx, p.root, p.tape, opts...)
		switch {
		case errors.Is(err, errPortion):
		case errors.Is(err, errBelow):
			lower, err := p.below(ctx)
			if err != nil {
				return err
			}
			p.below = nil
			opts = append(opts, archive.WithParents(lower))
		default:
			if err == nil && p.number > 0 {
				err = p.setTimes()
			}
			return err
		}
		if err := p.next(); err != nil {
			return err
		}
	}
}

// filter is asked about each entry when its headers are read, before it is unpacked.
func (p *portions) filter(h *tar.Header) (bool, error) {
	headers := p.tape.read - p.begin - p.last
	if p.tape.recording {
		if p.filled {
			return false, errPortion
		}
		if err := p.checkBelow(h); err != nil {
			return false, err
		}
		p.tape.unrecord()
	}
	if err := p.limit.count(); err != nil {
		return false, err
	}
	content, known := contentOf(h)
	p.begin, p.last = p.tape.read, content
	if err := p.checkRoom(h); err != nil {
		return false, err
	}
	if p.remembered == 0 && headers <= longHeaders {
		p.tape.short()
	}
	// Unpacking makes a path of each directory on the way there.
	p.tape.parsed += int64(len(p.root)+len(h.Name)) * int64(strings.Count(h.Name, "/")+1)
	p.remember(h, headers)
	p.tape.content(padded(content), known)
	p.filled = p.full(headers)
	switch {
	case p.filled:
		if known {
			p.tape.record(padded(content))
		} else if p.remembered > 4*p.size {
			return false, bounds.Beyond("layer has too many consecutive sparse files")
		}
	case p.below != nil:
		p.tape.record(padded(content))
	}
	return p.wanted(h)
}

// checkBelow is errBelow if the directory of an entry is not in this layer, or if
// nobody could go back to the next entry.
func (p *portions) checkBelow(h *tar.Header) error {
	if _, known := contentOf(h); !known {
		return errBelow
	}
	parent, _ := filepath.Split(filepath.Clean(h.Name))
	if parent == p.parent {
		return nil
	}
	path, err := continuity.RootPath(p.root, parent)
	if err != nil {
		return err
	}
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return errBelow
	}
	p.parent = strings.Clone(parent)
	return nil
}

// full says that the portion may remember no more. Nothing is waited for: where others
// remember much, portions are small. Where opaque directories count, portions do
// what one archive would not, and are as large as they may be.
func (p *portions) full(headers int64) bool {
	if p.remembered > p.size {
		return true
	}
	if p.shared == nil || !p.overlay && !p.empty {
		return false
	}
	if headers > longHeaders {
		return true
	}
	for p.remembered > basePortion+p.taken {
		if !p.shared.TryAcquire(portionStep) {
			return true
		}
		p.taken += portionStep
	}
	return false
}

// release gives back what the portion has taken.
func (p *portions) release() {
	if p.taken > 0 {
		p.shared.Release(p.taken)
		p.taken = 0
	}
}

// wanted tells whether an entry is unpacked.
func (p *portions) wanted(h *tar.Header) (bool, error) {
	if p.overlay || filepath.Base(h.Name) != ".wh..wh..opq" {
		return true, nil
	}
	if p.empty {
		return false, nil // there is nothing to hide
	}
	if p.number > 0 {
		return false, fmt.Errorf("layer deletes %.300q of a lower layer too late in its archive for this snapshotter; only snapshotter %s can unpack it: %w", filepath.Dir(h.Name), Overlayfs, errdefs.ErrFailedPrecondition)
	}
	return true, nil
}

// checkRoom refuses a file that cannot fit, before the disk is full of it.
func (p *portions) checkRoom(h *tar.Header) error {
	if h.Size < largeFile {
		return nil
	}
	var st unix.Statfs_t
	if err := unix.Statfs(p.root, &st); err != nil {
		return fmt.Errorf("check free space in %s: %w", p.root, err)
	}
	if room := st.Bavail * uint64(st.Bsize); uint64(h.Size) > room { //nolint:gosec // neither is negative
		return fmt.Errorf("layer has a file of %d bytes, but only %d bytes are free: %w", h.Size, room, unix.ENOSPC)
	}
	return nil
}

func (p *portions) remember(h *tar.Header, headers int64) {
	p.remembered += int64(len(p.root)+len(h.Name)) + rememberedEntry
	if h.Typeflag != tar.TypeDir {
		return
	}
	p.remembered += max(headers, 0) + rememberedDir + int64(len(h.PAXRecords))*rememberedEntry
	access := h.ModTime
	if h.AccessTime.After(access) {
		access = h.AccessTime
	}
	// The name may be a part of a much longer text.
	p.dirs = append(p.dirs, dirTimes{strings.Clone(h.Name), bound(access), bound(h.ModTime)})
}

// bound is a time as containerd sets it: one that a file cannot have is 1970.
func bound(t time.Time) int64 {
	if t.Before(time.Unix(0, 0)) || t.After(time.Unix(0, math.MaxInt64)) {
		return 0
	}
	return t.UnixNano()
}

// contentOf is how many bytes follow the headers of an entry, if they say.
func contentOf(h *tar.Header) (n int64, known bool) {
	switch h.Typeflag {
	case tar.TypeLink, tar.TypeSymlink, tar.TypeChar, tar.TypeBlock, tar.TypeDir, tar.TypeFifo:
		return 0, true
	case tar.TypeGNUSparse, tar.TypeXGlobalHeader:
		return 0, false
	}
	for name := range h.PAXRecords {
		if strings.HasPrefix(name, "GNU.sparse.") {
			return 0, false
		}
	}
	return h.Size, true
}

// padded is the length of a content in the archive.
func padded(n int64) int64 { return (n + 511) &^ 511 }

// next begins a portion with the entry that ended the last one.
func (p *portions) next() (err error) {
	if p.earlier == nil {
		if p.earlier, err = os.CreateTemp(p.scratch, "directories-"); err != nil {
			return err
		}
		if err := os.Remove(p.earlier.Name()); err != nil {
			return err
		}
		p.encoder = gob.NewEncoder(p.earlier)
	}
	if err := p.encoder.Encode(p.dirs); err != nil {
		return fmt.Errorf("restore the times of directories: %w", err)
	}
	p.tape.rewind()
	p.number++
	p.begin, p.last = p.tape.read, 0
	p.dirs, p.remembered, p.filled = nil, 0, false
	p.release()
	return nil
}

// setTimes gives directories the times that they have in the archive: later
// portions have written into them.
func (p *portions) setTimes() error {
	if _, err := p.earlier.Seek(0, io.SeekStart); err != nil {
		return err
	}
	decoder := gob.NewDecoder(bufio.NewReader(p.earlier))
	for {
		var dirs []dirTimes
		err := decoder.Decode(&dirs)
		if errors.Is(err, io.EOF) {
			return p.setTimesOf(p.dirs)
		}
		if err == nil {
			err = p.setTimesOf(dirs)
		}
		if err != nil {
			return err
		}
	}
}

func (p *portions) setTimesOf(dirs []dirTimes) error {
	for _, d := range dirs {
		path, err := continuity.RootPath(p.root, d.Name)
		if err != nil {
			return err
		}
		times := []unix.Timespec{unix.NsecToTimespec(d.Access), unix.NsecToTimespec(d.Changed)}
		// A later entry may have taken its place.
		if err := unix.UtimesNanoAt(unix.AT_FDCWD, path, times, unix.AT_SYMLINK_NOFOLLOW); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("set times of %s: %w", path, err)
		}
	}
	return nil
}

func (p *portions) close() error {
	p.release()
	if p.earlier == nil {
		return nil
	}
	return p.earlier.Close()
}

// tape is an archive that can be read again from before the headers of an entry.
type tape struct {
	ctx  context.Context
	from io.Reader
	// budget is that of all layers; nil is no bound. Its headers are held while those
	// of an entry are long, and until what is remembered of it is forgotten.
	budget *budget
	held   bool
	// headers is how many bytes were read since the content of the last entry, of
	// which so many are left.
	headers, left int64
	// parsed is how many bytes of headers the budget does not know of yet.
	parsed int64
	// n is what came of it, and read that with what was read again.
	n, read int64
	// again is what is read before from.
	again *bytes.Reader
	// recording begins after skip bytes.
	recording bool
	skip      int64
	recorded  []byte
}

// record keeps what is read when skip more bytes are.
func (t *tape) record(skip int64) { t.recording, t.skip = true, skip }

// unrecord forgets what was recorded.
func (t *tape) unrecord() { t.recording, t.recorded = false, t.recorded[:0] }

// rewind lets what was recorded be read once more.
func (t *tape) rewind() {
	t.again = bytes.NewReader(t.recorded)
	t.recording, t.recorded = false, nil
	t.content(0, true)
}

// content says how many bytes follow before the next headers. If nobody knows, none of
// what follows is counted as headers.
func (t *tape) content(n int64, known bool) {
	if t.headers, t.left = 0, n; !known {
		t.left = math.MaxInt64
	}
}

// count waits for its turn when headers are long.
func (t *tape) count(n int64) error {
	skipped := min(t.left, n)
	t.left -= skipped
	t.headers += n - skipped
	t.parsed += n - skipped
	if t.budget == nil {
		return nil
	}
	if t.parsed > longHeaders {
		t.budget.pace(t.parsed)
		t.parsed = 0
	}
	if t.headers <= longHeaders || t.held {
		return nil
	}
	if err := t.budget.headers.Acquire(t.ctx, 1); err != nil {
		return err
	}
	t.held = true
	return nil
}

// short lets another layer have long headers.
func (t *tape) short() {
	if t.held {
		t.budget.headers.Release(1)
		t.held = false
	}
}

func (t *tape) Read(b []byte) (n int, err error) {
	// An archive without an end is not looked at elsewhere.
	if err := t.ctx.Err(); err != nil {
		return 0, err
	}
	if t.again != nil && t.again.Len() > 0 {
		n, err = t.again.Read(b)
	} else {
		t.again = nil
		n, err = t.from.Read(b)
		t.n += int64(n)
	}
	t.read += int64(n)
	if err := t.count(int64(n)); err != nil {
		return 0, err
	}
	if t.recording {
		skipped := min(t.skip, int64(n))
		t.skip -= skipped
		t.recorded = append(t.recorded, b[skipped:n]...)
		if len(t.recorded) > maxHeaders {
			return 0, bounds.Beyond("layer has an entry with more than %d bytes of headers", maxHeaders)
		}
	}
	return n, err
}
