package layerproc

import (
	"archive/tar"
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/containerd/containerd/v2/pkg/archive"
	"github.com/containerd/containerd/v2/pkg/archive/compression"
	continuity "github.com/containerd/continuity/fs"
	"github.com/containerd/errdefs"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/image/bounds"
)

const (
	// largeFile is the size from which free space is checked before a file is written.
	largeFile = 64 << 20
	// windowShare limits a window of zstd to 1/windowShare of the memory limit: the decoder needs
	// twice the window.
	windowShare = 4
	// countEach is the number of entries between two reports to the daemon.
	countEach = 4096
	// aheadBlock is the size of the blocks that are decompressed ahead.
	aheadBlock = 256 << 10
	// opaque is the whiteout of a directory's content in the layers below.
	opaque = ".wh..wh..opq"
)

type unpacker struct {
	maxWindow uint64
	answers   *json.Encoder
}

// unpack unpacks a layer with containerd's package archive.
func (u *unpacker) unpack(l Layer, blob *os.File) (r Result, err error) {
	below, err := os.ReadDir(l.Root)
	if err != nil {
		return r, err
	}
	packed := &source{from: blob}
	plain, err := u.decompress(packed)
	if err != nil {
		return r, packed.causeOr(undecompressed(err))
	}
	defer plain.Close()
	layer, sum := &source{from: plain}, digest.Canonical.Digester()
	in := readAhead(io.TeeReader(layer, sum.Hash()))
	defer in.stop()
	f := &filter{Layer: l, lowest: !l.Overlay && len(below) == 0, answers: u.answers}
	options := []archive.ApplyOpt{archive.WithFilter(f.next), archive.WithParents(l.Below)}
	if l.Overlay {
		options = append(options, archive.WithConvertWhiteout(archive.OverlayConvertWhiteout))
	}
	_, err = archive.Apply(context.Background(), l.Root, in, options...)
	if errors.Is(err, ErrBelow) {
		if err := Empty(l.Root); err != nil {
			return r, fmt.Errorf("empty the directory of a layer: %w", err)
		}
		return r, ErrBelow
	}
	if err == nil {
		// The digest covers data after the archive, too.
		_, err = io.Copy(io.Discard, in)
	}
	if err == nil {
		// All data must be read: an encrypted layer is authenticated at its end.
		_, err = io.Copy(io.Discard, packed)
	}
	in.stop() // the reading goroutine has ended, so its results may be read
	r = Result{Digest: sum.Digest(), Size: layer.n, Entries: f.entries}
	if in.failed {
		err = packed.causeOr(undecompressed(in.err))
	}
	return r, err
}

// ahead reads blocks from a source while earlier ones are processed.
type ahead struct {
	blocks chan []byte
	stop   func()
	err    error // why there are no more blocks
	failed bool  // Read has returned err, which is not EOF
	block  []byte
	rest   []byte // of block
}

// blockPool has blocks for reuse: new memory costs time.
var blockPool = sync.Pool{New: func() any { return new([aheadBlock]byte) }}

// readAhead begins to read. Stop ends it after the current read.
func readAhead(from io.Reader) *ahead {
	a := &ahead{blocks: make(chan []byte, 3)}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	a.stop = func() { cancel(); <-done }
	go func() {
		defer close(done)
		defer close(a.blocks)
		for a.err == nil && ctx.Err() == nil {
			block, n := blockPool.Get().(*[aheadBlock]byte)[:], 0
			for n < len(block) && a.err == nil && ctx.Err() == nil {
				var more int
				more, a.err = from.Read(block[n:])
				n += more
			}
			select {
			case a.blocks <- block[:n]:
			case <-ctx.Done():
				return
			}
		}
	}()
	return a
}

func (a *ahead) Read(b []byte) (int, error) {
	for len(a.rest) == 0 {
		if a.block != nil {
			blockPool.Put((*[aheadBlock]byte)(a.block[:aheadBlock]))
		}
		a.block = <-a.blocks
		if a.block == nil {
			a.failed = !errors.Is(a.err, io.EOF)
			return 0, a.err
		}
		a.rest = a.block
	}
	n := copy(b, a.rest)
	a.rest = a.rest[n:]
	return n, nil
}

func (u *unpacker) decompress(packed io.Reader) (io.ReadCloser, error) {
	in := bufio.NewReaderSize(packed, 32<<10)
	head, err := in.Peek(10)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	switch compression.DetectCompression(head) {
	case compression.Gzip:
		return gzip.NewReader(in)
	case compression.Zstd:
		// Layers are unpacked in parallel: more decoders for one layer cost more than they gain.
		z, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(u.maxWindow))
		if err != nil {
			return nil, err
		}
		return z.IOReadCloser(), nil
	}
	return io.NopCloser(in), nil
}

// undecompressed returns the error of a layer that cannot be decompressed.
func undecompressed(err error) error {
	if errors.Is(err, zstd.ErrWindowSizeExceeded) || errors.Is(err, zstd.ErrDecoderSizeExceeded) {
		return bounds.Beyond("layer is compressed by zstd with a window of more than a quarter of registry.max_unpack_memory; raise that if you trust the image")
	}
	return fmt.Errorf("layer cannot be decompressed: %w: %w", err, errdefs.ErrInvalidArgument)
}

// source counts what is read, and keeps the reason for a failure.
type source struct {
	from io.Reader
	n    int64
	err  error
}

func (s *source) Read(b []byte) (int, error) {
	n, err := s.from.Read(b)
	s.n += int64(n)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	return n, err
}

// causeOr returns the source's error, if it has one: err follows from it.
func (s *source) causeOr(err error) error {
	if s.err != nil {
		return s.err
	}
	return err
}

// Empty removes the content of a directory.
func Empty(dir string) error {
	files, err := os.ReadDir(dir)
	for _, f := range files {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, f.Name())))
	}
	return err
}

// filter checks each entry before it is unpacked.
type filter struct {
	Layer
	// lowest is set if Overlay is not, and Root was empty: no layer is below.
	lowest  bool
	entries int64
	answers *json.Encoder
	// parent is the directory of the last entry, which exists.
	parent string
}

func (f *filter) next(h *tar.Header) (bool, error) {
	if f.entries++; f.entries%countEach == 0 {
		if err := f.answers.Encode(answer{Result: Result{Entries: f.entries}, More: true}); err != nil {
			return false, err
		}
	}
	if f.BelowPending {
		if err := f.checkParent(h.Name); err != nil {
			return false, err
		}
	}
	if f.lowest && filepath.Base(h.Name) == opaque {
		return false, nil // containerd would mistake files of this layer for those below
	}
	return true, f.checkRoom(h.Size)
}

// checkParent returns ErrBelow if the directory of an entry is not in this layer.
func (f *filter) checkParent(name string) error {
	parent, _ := filepath.Split(name)
	if parent == f.parent {
		return nil
	}
	path, err := continuity.RootPath(f.Root, parent)
	if err != nil {
		return err
	}
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return ErrBelow
	}
	f.parent = parent
	return nil
}

// checkRoom refuses a file that exceeds the free space, before it fills the disk.
func (f *filter) checkRoom(size int64) error {
	if size < largeFile {
		return nil
	}
	var st unix.Statfs_t
	if err := unix.Statfs(f.Root, &st); err != nil {
		return fmt.Errorf("check free space in %s: %w", f.Root, err)
	}
	if room := st.Bavail * uint64(st.Bsize); uint64(size) > room { //nolint:gosec // neither is negative
		return fmt.Errorf("layer has a file of %d bytes, but only %d bytes are free: %w", size, room, unix.ENOSPC)
	}
	return nil
}
