package image

import (
	"bytes"
	"io"
	"strconv"
	"strings"

	"github.com/berth-cri/berth/pkg/engine/image/bounds"
)

// maxArchiveEntries is far more than an archive of images has. Who reads one remembers
// its links.
const maxArchiveEntries = 100_000

// tarEntries passes an archive on, and ends it when it has too many entries. It reads no
// more of the headers than their size.
type tarEntries struct {
	from io.Reader
	// left is how much of the present entry is yet to come, padding included.
	left    int64
	header  []byte // the part of the next header that has come
	entries int
}

const tarBlock = 512

func newTarEntries(from io.Reader) *tarEntries {
	return &tarEntries{from: from, header: make([]byte, 0, tarBlock)}
}

// Read implements io.Reader.
func (t *tarEntries) Read(p []byte) (int, error) {
	n, err := t.from.Read(p)
	for b := p[:n]; len(b) > 0; {
		if t.left > 0 {
			skip := min(int64(len(b)), t.left)
			t.left -= skip
			b = b[skip:]
			continue
		}
		take := min(len(b), tarBlock-len(t.header))
		t.header, b = append(t.header, b[:take]...), b[take:]
		if len(t.header) < tarBlock {
			break
		}
		if bounded := t.next(); bounded != nil {
			return 0, bounded
		}
	}
	return n, err
}

// next takes a whole header in.
func (t *tarEntries) next() error {
	defer func() { t.header = t.header[:0] }()
	if bytes.Count(t.header, []byte{0}) == tarBlock { // the end
		return nil
	}
	if t.entries++; t.entries > maxArchiveEntries {
		return bounds.Beyond("the archive has more than %d entries", maxArchiveEntries)
	}
	size := tarSize(t.header[124:136])
	t.left = (size + tarBlock - 1) / tarBlock * tarBlock
	return nil
}

// tarSize reads the size of an entry, in octal digits or, with the first bit set, in
// binary. One that is neither is 0: the archive is refused by who reads it. Pure.
func tarSize(field []byte) int64 {
	if field[0]&0x80 == 0 {
		size, err := strconv.ParseInt(strings.Trim(string(field), " \x00"), 8, 62)
		if err != nil || size < 0 {
			return 0
		}
		return size
	}
	var size int64
	for i, b := range field {
		if i == 0 {
			b &= 0x7f
		}
		if size > 1<<53 {
			return 0
		}
		size = size<<8 | int64(b)
	}
	return size
}
