package archive

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"path"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berth-cri/berth/pkg/engine/image/bounds"
	"github.com/berth-cri/berth/pkg/engine/image/catalog"
	"github.com/berth-cri/berth/pkg/engine/image/disk"
)

const (
	// maxArchiveEntries is far more than an archive of images has.
	maxArchiveEntries = 100_000
	// maxArchiveNames bounds the names and links of all entries, which importing keeps in memory.
	maxArchiveNames = 16 << 20
	// archiveChunk bounds what the import may read before it is counted.
	archiveChunk = 32 << 10
)

// tarEntries reads an archive. It fails if the archive has too many entries, or a document that
// takes too much memory to decode.
type tarEntries struct {
	from io.Reader
	// seen receives a copy of the archive for countEntries.
	seen *io.PipeWriter
}

// newTarEntries starts counting. The caller reads to the end or calls end.
func newTarEntries(ctx context.Context, from io.Reader, l bounds.Limits) *tarEntries {
	counted, seen := io.Pipe()
	go func() { _ = counted.CloseWithError(countEntries(ctx, counted, l)) }()
	return &tarEntries{from: from, seen: seen}
}

// countEntries reads to the end. It ignores data that is not an archive: the import rejects it.
func countEntries(ctx context.Context, r io.Reader, l bounds.Limits) (err error) {
	defer disk.Caught(ctx, &err)
	archive, names := tar.NewReader(r), 0
	for n := 0; n <= maxArchiveEntries; n++ {
		h, err := archive.Next()
		if err != nil {
			_, err = io.Copy(io.Discard, r)
			return err
		}
		if names += len(h.Name) + len(h.Linkname); names > maxArchiveNames {
			return bounds.Beyond("the archive has names of more than %d bytes", maxArchiveNames)
		}
		// These documents are decoded while the archive is read, others later.
		switch name := path.Clean(h.Name); name {
		case "manifest.json", imagespec.ImageLayoutFile:
			if h.Size > l.MaxManifestSize {
				return bounds.Beyond("%s has %d bytes, more than %d", name, h.Size, l.MaxManifestSize)
			}
			if _, err := io.Copy(new(catalog.ElementCount), archive); err != nil {
				return err
			}
		}
	}
	return bounds.Beyond("the archive has more than %d entries", maxArchiveEntries)
}

func (t *tarEntries) Read(p []byte) (int, error) {
	n, err := t.from.Read(p[:min(len(p), archiveChunk)])
	if _, bounded := t.seen.Write(p[:n]); bounded != nil && !errors.Is(bounded, io.ErrClosedPipe) {
		return 0, bounded
	}
	if err != nil {
		t.end()
	}
	return n, err
}

// end lets countEntries return.
func (t *tarEntries) end() { _ = t.seen.Close() }
