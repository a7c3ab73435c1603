package image

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"testing"
	"testing/iotest"

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
	} {
		entries := newTarEntries(from)
		got, err := io.ReadAll(entries)
		if err != nil || !bytes.Equal(got, text) {
			t.Errorf("%s: %d of %d bytes, %v", name, len(got), len(text), err)
		}
		// Each file has an entry for what does not fit into its header.
		if entries.entries != 3+2*6 {
			t.Errorf("%s: %d entries", name, entries.entries)
		}
	}
	if _, err := io.Copy(io.Discard, newTarEntries(bytes.NewReader(archiveOf(t, maxArchiveEntries+1)))); !bounds.IsBeyond(err) {
		t.Errorf("an archive of links: %v", err)
	}
}

func TestTarSize(t *testing.T) {
	for _, c := range []struct {
		field string
		want  int64
	}{
		{"00000001000\x00", 512},
		{" 1000 \x00\x00\x00\x00\x00\x00", 512},
		{"\x80\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00", 512},
		{"nonsense\x00\x00\x00\x00", 0},
		{"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 0},
	} {
		if got := tarSize([]byte(c.field)); got != c.want {
			t.Errorf("%q: %d, want %d", c.field, got, c.want)
		}
	}
}
