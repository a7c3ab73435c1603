package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"fmt"
	"hash"
	"io"
	"math"
	"math/rand/v2"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/berth-cri/berth/integration/testbed"
)

// blob is a layer that is already compressed.
type blob struct {
	kind         types.MediaType
	digest, diff v1.Hash
	compressed   []byte
}

var _ v1.Layer = (*blob)(nil)

func (b *blob) Digest() (v1.Hash, error)            { return b.digest, nil }
func (b *blob) DiffID() (v1.Hash, error)            { return b.diff, nil }
func (b *blob) Size() (int64, error)                { return int64(len(b.compressed)), nil }
func (b *blob) MediaType() (types.MediaType, error) { return b.kind, nil }
func (b *blob) Compressed() (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(b.compressed)), nil
}
func (b *blob) Uncompressed() (io.ReadCloser, error) { return nil, fmt.Errorf("not available") }

// shares are the layers' shares of an image's size: a distribution, a language, its packages, an
// application, and the part of it that changes often.
var shares = []float64{0.16, 0.34, 0.28, 0.18, 0.04}

// largeImage makes an image with five layers above busybox, which have size bytes unpacked.
func largeImage(t testbed.T, kind types.MediaType, size int, seed uint64) v1.Image {
	t.Helper()
	image := testbed.Busybox(t)
	for n, share := range shares {
		image = withLayer(t, image, kind, int(share*float64(size)), seed*100+uint64(n))
	}
	return image
}

// manyLayers makes an image with many small layers above busybox.
func manyLayers(t testbed.T, layers, size int, seed uint64) v1.Image {
	t.Helper()
	image := testbed.Busybox(t)
	for n := range layers {
		image = withLayer(t, image, types.OCILayer, size, seed*1000+uint64(n))
	}
	return image
}

func withLayer(t testbed.T, image v1.Image, kind types.MediaType, size int, seed uint64) v1.Image {
	t.Helper()
	layer, err := makeLayer(kind, size, seed)
	if err == nil {
		image, err = mutate.AppendLayers(image, layer)
	}
	testbed.Mustf(t, err, "make a layer")
	return image
}

// makeLayer makes a layer of files. As in real images, most of them are small and a few are large.
func makeLayer(kind types.MediaType, size int, seed uint64) (*blob, error) {
	var out bytes.Buffer
	compressed, plain := sha256.New(), sha256.New()
	to := io.MultiWriter(&out, compressed)
	var compressor io.WriteCloser = gzip.NewWriter(to)
	if kind == types.OCILayerZStd {
		var err error
		if compressor, err = zstd.NewWriter(to); err != nil {
			return nil, err
		}
	}
	archive := tar.NewWriter(io.MultiWriter(compressor, plain))
	if err := writeFiles(archive, size, seed); err != nil {
		return nil, err
	}
	if err := archive.Close(); err != nil {
		return nil, err
	}
	if err := compressor.Close(); err != nil {
		return nil, err
	}
	return &blob{kind: kind, digest: sumOf(compressed), diff: sumOf(plain), compressed: out.Bytes()}, nil
}

func sumOf(h hash.Hash) v1.Hash {
	return v1.Hash{Algorithm: "sha256", Hex: fmt.Sprintf("%x", h.Sum(nil))}
}

const (
	medianFile, maxFile = 8 << 10, 32 << 20
	spread              = 2 // deviation of the sizes' logarithm: the mean is 7 times the median
	filesPerDir         = 40
)

func writeFiles(archive *tar.Writer, size int, seed uint64) error {
	random := rand.New(rand.NewPCG(seed, 1))
	content := newContent(random)
	modified := time.Unix(1_700_000_000, 0)
	for n := 0; size > 0; n++ {
		dir := fmt.Sprintf("opt/%d/%d", seed, n/filesPerDir)
		if n%filesPerDir == 0 {
			if err := archive.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755, ModTime: modified}); err != nil {
				return err
			}
		}
		length := min(int(medianFile*math.Exp(spread*random.NormFloat64())), maxFile, size)
		size -= length
		h := &tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprintf("%s/file%d", dir, n), Mode: 0o644, Size: int64(length), ModTime: modified}
		if err := archive.WriteHeader(h); err != nil {
			return err
		}
		if err := content.writeTo(archive, length); err != nil {
			return err
		}
	}
	return nil
}

// content generates files: words with different frequencies, and some incompressible blocks. gzip
// compresses it to 2/5.
type content struct {
	random *rand.Rand
	zipf   *rand.Zipf
	words  [][]byte
	block  []byte
}

const blockSize = 64 << 10

func newContent(random *rand.Rand) *content {
	c := &content{random: random, zipf: rand.NewZipf(random, 1.1, 8, 8191)}
	for range 8192 {
		word := make([]byte, 3+random.IntN(22)+1)
		for i := range word {
			word[i] = byte('a' + random.IntN(26))
		}
		word[len(word)-1] = ' '
		c.words = append(c.words, word)
	}
	return c
}

func (c *content) writeTo(w io.Writer, n int) error {
	for n > 0 {
		c.block = c.block[:0]
		noise := c.random.IntN(100) < 9
		for len(c.block) < min(n, blockSize) {
			if noise {
				c.block = append(c.block, byte(c.random.Uint32()))
				continue
			}
			c.block = append(c.block, c.words[c.zipf.Uint64()]...)
		}
		part := c.block[:min(len(c.block), n)]
		if _, err := w.Write(part); err != nil {
			return err
		}
		n -= len(part)
	}
	return nil
}
