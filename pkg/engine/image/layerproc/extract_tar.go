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
	// largeFile is from where on it is looked whether there is room for a file.
	largeFile = 64 << 20
	// windowShare is the part of the memory that a window of zstd may take: its decoder
	// needs twice as much.
	windowShare = 4
	// countEach is after how many entries the daemon counts them.
	countEach = 4096
	// aheadBlock is how much is decompressed while files are written.
	aheadBlock = 256 << 10
	// opaque is the whiteout of what the layers below have in a directory.
	opaque = ".wh..wh..opq"
)

// unpacker unpacks layers in a child.
type unpacker struct {
	maxWindow uint64
	answers   *json.Encoder
}

// unpack is containerd's way to unpack a layer.
func (u *unpacker) unpack(l Layer, blob *os.File) (r Result, err error) {
	below, err := os.ReadDir(l.Root)
	if err != nil {
		return r, err
	}
	packed := &source{from: blob}
	plain, err := u.decompress(packed)
	if err != nil {
		return r, packed.blame(undecompressed(err))
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
		// What is behind the archive belongs to the digest.
		_, err = io.Copy(io.Discard, in)
	}
	if err == nil {
		// What is behind the compressed archive may say whether the rest is authentic.
		_, err = io.Copy(io.Discard, packed)
	}
	in.stop() // the reader of the layer has ended, and its results may be read
	r = Result{Digest: sum.Digest(), Size: layer.n, Entries: f.entries}
	if in.failed {
		err = packed.blame(undecompressed(in.err))
	}
	return r, err
}

// ahead reads blocks from a source while earlier ones are worked on.
type ahead struct {
	blocks chan []byte
	stop   func()
	err    error // why there are no more blocks
	failed bool  // err is not EOF, and Read has returned it: what is ahead of that concerns no file yet
	block  []byte
	rest   []byte // of block
}

// spare has blocks to fill again: new memory costs time.
var spare = sync.Pool{New: func() any { return new([aheadBlock]byte) }}

// readAhead begins to read. Stop ends it after the read that is under way.
func readAhead(from io.Reader) *ahead {
	a := &ahead{blocks: make(chan []byte, 3)}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	a.stop = func() { cancel(); <-done }
	go func() {
		defer close(done)
		defer close(a.blocks)
		for a.err == nil && ctx.Err() == nil {
			block, n := spare.Get().(*[aheadBlock]byte)[:], 0
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
			spare.Put((*[aheadBlock]byte)(a.block[:aheadBlock]))
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
		// A second decoder at work costs more than it brings: layers are unpacked at the same time.
		z, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(u.maxWindow))
		if err != nil {
			return nil, err
		}
		return z.IOReadCloser(), nil
	}
	return io.NopCloser(in), nil
}

// undecompressed is the error of a layer that is not what its compression makes.
func undecompressed(err error) error {
	if errors.Is(err, zstd.ErrWindowSizeExceeded) || errors.Is(err, zstd.ErrDecoderSizeExceeded) {
		return bounds.Beyond("layer is compressed by zstd with a window of more than a quarter of registry.max_unpack_memory; raise that if you trust the image")
	}
	return fmt.Errorf("layer cannot be decompressed: %w: %w", err, errdefs.ErrInvalidArgument)
}

// source counts what is read, and knows why reading failed.
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

// blame is the source's error, if it has one: err follows from it.
func (s *source) blame(err error) error {
	if s.err != nil {
		return s.err
	}
	return err
}

// Empty removes what is in a directory.
func Empty(dir string) error {
	files, err := os.ReadDir(dir)
	for _, f := range files {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, f.Name())))
	}
	return err
}

// filter looks at each entry before it is unpacked.
type filter struct {
	Layer
	// lowest says that no layer is below.
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
		return false, nil // containerd would take files of this layer for those below
	}
	return true, f.checkRoom(h.Size)
}

// checkParent is ErrBelow if the directory of an entry is not in this layer.
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

// checkRoom refuses a file that cannot fit, before the disk is full of it.
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
