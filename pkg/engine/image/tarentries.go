package image

import (
	"archive/tar"
	"context"
	"errors"
	"io"

	"github.com/berth-cri/berth/pkg/engine/image/bounds"
)

// maxArchiveEntries is far more than an archive of images has. Who reads one remembers
// its links.
const maxArchiveEntries = 100_000

// tarEntries passes an archive on, and ends it when it has too many entries.
type tarEntries struct {
	from io.Reader
	// seen gets what is passed on, for whoever counts.
	seen *io.PipeWriter
}

// newTarEntries is for what is read until it ends, or is ended before.
func newTarEntries(ctx context.Context, from io.Reader) *tarEntries {
	counted, seen := io.Pipe()
	go func() { _ = counted.CloseWithError(countEntries(ctx, counted)) }()
	return &tarEntries{from: from, seen: seen}
}

// countEntries reads to the end. What is no archive is for others to refuse.
func countEntries(ctx context.Context, r io.Reader) (err error) {
	defer caught(ctx, &err)
	archive := tar.NewReader(r)
	for n := 0; n <= maxArchiveEntries; n++ {
		if _, err := archive.Next(); err != nil {
			_, err = io.Copy(io.Discard, r)
			return err
		}
	}
	return bounds.Beyond("the archive has more than %d entries", maxArchiveEntries)
}

// Read implements io.Reader.
func (t *tarEntries) Read(p []byte) (int, error) {
	n, err := t.from.Read(p)
	if _, bounded := t.seen.Write(p[:n]); bounded != nil && !errors.Is(bounded, io.ErrClosedPipe) {
		return 0, bounded
	}
	if err != nil {
		t.end()
	}
	return n, err
}

// end lets whoever counts go.
func (t *tarEntries) end() { _ = t.seen.Close() }
