package archive

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/image/bounds"
	"github.com/berth-cri/berth/pkg/engine/image/catalog"
)

// archiveOf returns an archive with a file for each of sizes, followed by symbolic links.
func archiveOf(t testing.TB, links int, sizes ...int) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i, size := range sizes {
		test.Must(t, w.WriteHeader(&tar.Header{Name: fmt.Sprint("file", i), Size: int64(size), Mode: 0o600, Format: tar.FormatPAX, PAXRecords: map[string]string{"BERTH.x": "y"}}))
		test.Must(t, test.Err(w.Write(make([]byte, size))))
	}
	for i := range links {
		test.Must(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: fmt.Sprint("l", i), Linkname: "x"}))
	}
	test.Must(t, w.Close())
	return b.Bytes()
}

var usual = bounds.Limits{}.Complete()

// Documents that are decoded while an archive is read have the same bounds as documents from
// registries.
func TestDocumentsOfArchives(t *testing.T) {
	document := func(name, text string) []byte {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		test.Must(t, w.WriteHeader(&tar.Header{Name: name, Size: int64(len(text)), Mode: 0o600}))
		_, err := io.WriteString(w, text)
		test.Must(t, errors.Join(err, w.Close()))
		return b.Bytes()
	}
	long := strings.Repeat("n", 1<<19)
	var names bytes.Buffer
	w := tar.NewWriter(&names)
	for range 40 {
		test.Must(t, w.WriteHeader(&tar.Header{Name: long, Mode: 0o600, Format: tar.FormatPAX}))
	}
	for name, c := range map[string]struct {
		text   []byte
		beyond bool
	}{
		"usual":                           {document("manifest.json", `[{"Config":"a","RepoTags":["b,\",["],"Layers":["c"]}]`), false},
		"too many elements":               {document("./manifest.json", "["+strings.Repeat(`"",`, 2*catalog.MaxElements)+`""]`), true},
		"too many elements in the layout": {document("oci-layout", "["+strings.Repeat("0,", 2*catalog.MaxElements)+"0]"), true},
		"too many bytes":                  {document("manifest.json", strings.Repeat(" ", int(usual.MaxManifestSize)+1)), true},
		"commas in another file":          {document("layer.tar", strings.Repeat(",", 2*catalog.MaxElements)), false},
		"commas in a string":              {document("manifest.json", `"`+strings.Repeat(`,\"`, catalog.MaxElements)+`"`), false},
		"too many bytes of names":         {names.Bytes(), true},
	} {
		for how, from := range map[string]io.Reader{"at once": bytes.NewReader(c.text), "in halves": iotest.HalfReader(bytes.NewReader(c.text))} {
			if _, err := io.Copy(io.Discard, newTarEntries(t.Context(), from, usual)); bounds.IsBeyond(err) != c.beyond {
				t.Errorf("%s, %s: the error is %v; want an error of a limit: %v", name, how, err, c.beyond)
			}
		}
	}
}

func TestTarEntries(t *testing.T) {
	text := archiveOf(t, 3, 0, 1, 511, 512, 513, 5000)
	for name, from := range map[string]io.Reader{
		"at once": bytes.NewReader(text), "byte by byte": iotest.OneByteReader(bytes.NewReader(text)), "in halves": iotest.HalfReader(bytes.NewReader(text)),
		"with zeros at the end": io.MultiReader(bytes.NewReader(text), bytes.NewReader(make([]byte, 100_000))),
	} {
		got, err := io.ReadAll(newTarEntries(t.Context(), from, usual))
		if err != nil || !bytes.HasPrefix(got, text) {
			t.Errorf("%s: %d of %d bytes, %v", name, len(got), len(text), err)
		}
	}
	if _, err := io.Copy(io.Discard, newTarEntries(t.Context(), bytes.NewReader(archiveOf(t, maxArchiveEntries+1)), usual)); !bounds.IsBeyond(err) {
		t.Errorf("an archive of too many links: %v", err)
	}
	nonsense := bytes.Repeat([]byte("nonsense"), 100_000)
	if got, err := io.ReadAll(newTarEntries(t.Context(), bytes.NewReader(nonsense), usual)); err != nil || !bytes.Equal(got, nonsense) {
		t.Errorf("data that is not an archive: read %d bytes, %v", len(got), err)
	}
}

// A file of more than 8 GiB has its size in a PAX record; the size in its own header is 0. Its content
// must not be read as entries.
func TestTarEntriesOfLargeFiles(t *testing.T) {
	content := archiveOf(t, maxArchiveEntries+1)
	for size, fails := range map[int64]bool{0: true, 9 << 30: false} {
		var head bytes.Buffer
		test.Must(t, tar.NewWriter(&head).WriteHeader(&tar.Header{Name: "large", Size: size, Mode: 0o600, Format: tar.FormatPAX}))
		if _, err := io.Copy(io.Discard, newTarEntries(t.Context(), io.MultiReader(&head, bytes.NewReader(content)), usual)); bounds.IsBeyond(err) != fails || err != nil && !fails {
			t.Errorf("an archive in a file of %d bytes: the error is %v; want an error of a limit: %v", size, err, fails)
		}
	}
}

type panickingReader struct{}

func (panickingReader) Read([]byte) (int, error) { panic("while it is read") }

func TestTarEntriesThatPanic(t *testing.T) {
	test.Is(t, countEntries(t.Context(), panickingReader{}, usual), errdefs.IsInternal, "count entries of a reader that panics")
}
