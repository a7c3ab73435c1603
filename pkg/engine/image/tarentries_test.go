package image

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"testing"
	"testing/iotest"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/pkg/engine/image/bounds"
)

// archiveOf is an archive with that many links, and files of several sizes between them.
func archiveOf(t testing.TB, links int, sizes ...int) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i, size := range sizes {
		must(t, w.WriteHeader(&tar.Header{Name: fmt.Sprint("file", i), Size: int64(size), Mode: 0o600, Format: tar.FormatPAX, PAXRecords: map[string]string{"BERTH.x": "y"}}))
		_, err := w.Write(make([]byte, size))
		must(t, err)
	}
	for i := range links {
		must(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: fmt.Sprint("l", i), Linkname: "x"}))
	}
	must(t, w.Close())
	return b.Bytes()
}

func TestTarEntries(t *testing.T) {
	text := archiveOf(t, 3, 0, 1, 511, 512, 513, 5000)
	for name, from := range map[string]io.Reader{
		"at once": bytes.NewReader(text), "byte by byte": iotest.OneByteReader(bytes.NewReader(text)), "in halves": iotest.HalfReader(bytes.NewReader(text)),
		"with more behind": io.MultiReader(bytes.NewReader(text), bytes.NewReader(make([]byte, 100_000))),
	} {
		got, err := io.ReadAll(newTarEntries(t.Context(), from))
		if err != nil || !bytes.HasPrefix(got, text) {
			t.Errorf("%s: %d of %d bytes, %v", name, len(got), len(text), err)
		}
	}
	if _, err := io.Copy(io.Discard, newTarEntries(t.Context(), bytes.NewReader(archiveOf(t, maxArchiveEntries+1)))); !bounds.IsBeyond(err) {
		t.Errorf("an archive of links: %v", err)
	}
	nonsense := bytes.Repeat([]byte("nonsense"), 100_000)
	if got, err := io.ReadAll(newTarEntries(t.Context(), bytes.NewReader(nonsense))); err != nil || !bytes.Equal(got, nonsense) {
		t.Errorf("what is no archive: %d bytes, %v", len(got), err)
	}
}

// A file of more than 8 GiB says its size before its header, and 0 in that.
func TestTarEntriesOfLargeFiles(t *testing.T) {
	const size = 9 << 30
	var head, end bytes.Buffer
	must(t, tar.NewWriter(&head).WriteHeader(&tar.Header{Name: "large", Size: size, Mode: 0o600, Format: tar.FormatPAX}))
	must(t, tar.NewWriter(&end).Close())
	n, err := io.Copy(io.Discard, newTarEntries(t.Context(), io.MultiReader(&head, io.LimitReader(zeros{}, size>>5), &end)))
	if err != nil || n < size>>5 {
		t.Errorf("%d bytes, %v", n, err)
	}
}

// panickingReader is a reader that panics.
type panickingReader struct{}

func (panickingReader) Read([]byte) (int, error) { panic("while it is read") }

func TestTarEntriesThatPanic(t *testing.T) {
	if err := countEntries(t.Context(), panickingReader{}); !errdefs.IsInternal(err) {
		t.Errorf("got %v", err)
	}
}
