package layerproc

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/pkg/archive"
	"github.com/containerd/errdefs"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
)

const usualMemory = 512 << 20

// all is a Count function that allows any number of entries.
func all(int64) error { return nil }

func start(t *testing.T, memory int64) *Process {
	t.Helper()
	p := test.Value(Start(memory))(t)
	t.Cleanup(p.Close)
	return p
}

// blobOf returns an open file with that content, at its start.
func blobOf(t *testing.T, content []byte) *os.File {
	t.Helper()
	f := test.Value(os.CreateTemp(t.TempDir(), "layer"))(t)
	t.Cleanup(func() { f.Close() })
	test.Must(t, test.Err(f.Write(content)))
	test.Must(t, test.Err(f.Seek(0, io.SeekStart)))
	return f
}

// TestUnpacksAsContainerd unpacks random layers both in a child and by containerd in this process,
// and compares the trees. The rebased layers must fail before the layers below exist.
func TestUnpacksAsContainerd(t *testing.T) {
	lower := []string{t.TempDir(), t.TempDir()}
	for n, dir := range []string{lower[0] + "/d0", lower[1] + "/d0/d1", lower[1] + "/d1/d2", lower[1] + "/d3"} {
		test.Must(t, os.MkdirAll(dir, 0o700))
		test.Must(t, os.Chmod(dir, fs.FileMode(0o710+n)))
		test.Must(t, os.Chown(dir, 1000+n, 2000+n))
		test.Must(t, unix.Setxattr(dir, "user.a", []byte("lower"), 0))
		test.Must(t, os.Chtimes(dir, time.Unix(1e9, 0), time.Unix(1e9, 0)))
	}
	convert := archive.WithConvertWhiteout(archive.OverlayConvertWhiteout)
	p := start(t, usualMemory)
	for seed := range uint64(6) {
		layer := randomLayer(t, rand.New(rand.NewPCG(seed, 1)))
		for name, c := range map[string]struct {
			known []archive.ApplyOpt
			layer Layer
		}{
			"overlay": {[]archive.ApplyOpt{convert}, Layer{Overlay: true}},
			"base":    {nil, Layer{}},
			"rebased": {[]archive.ApplyOpt{convert, archive.WithParents(lower)}, Layer{Overlay: true, BelowPending: true}},
		} {
			whole := t.TempDir()
			test.Must(t, test.Err(archive.Apply(t.Context(), whole, bytes.NewReader(layer), c.known...)))
			entries := int64(0)
			c.layer.Root, c.layer.Count = t.TempDir(), func(n int64) error {
				entries += n
				return nil
			}
			got, err := p.Unpack(t.Context(), c.layer, blobOf(t, layer))
			if c.layer.BelowPending {
				if left, _ := os.ReadDir(c.layer.Root); !errors.Is(err, ErrBelow) || len(left) > 0 {
					t.Errorf("without the layers below: error %v, want ErrBelow; left are %v", err, left)
				}
				c.layer.BelowPending, c.layer.Below = false, lower
				got, err = p.Unpack(t.Context(), c.layer, blobOf(t, layer))
			}
			test.Must(t, err)
			if want := (Result{digest.FromBytes(layer), int64(len(layer)), 120}); got != want || entries != want.Entries {
				t.Errorf("seed %d, %s: %v with %d entries counted, want %v", seed, name, got, entries, want)
			}
			if got, want := treeOf(t, c.layer.Root), treeOf(t, whole); got != want {
				t.Errorf("seed %d, %s:\n%s\nwant\n%s", seed, name, got, want)
			}
		}
	}
}

// randomLayer returns an archive with most kinds of entries, in a random order.
func randomLayer(t *testing.T, r *rand.Rand) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	var files []string
	dir := func() string { return fmt.Sprintf("d%d/d%d/", r.IntN(4), r.IntN(4)) }
	for i := range 120 {
		h := &tar.Header{Name: fmt.Sprint(dir(), "f", i), Mode: int64(0o600 + r.IntN(0o100)), Uid: r.IntN(3), Gid: r.IntN(3), ModTime: time.Unix(int64(1e9+r.IntN(1e6)), 0)}
		body := ""
		switch kind := r.IntN(10); {
		case kind == 0:
			h.Typeflag, h.Name, h.Mode = tar.TypeDir, dir(), int64(0o700+r.IntN(0o100))
			h.PAXRecords = map[string]string{"SCHILY.xattr.user.a": strings.Repeat("x", r.IntN(2000))}
		case kind == 1:
			h.Typeflag, h.Linkname = tar.TypeSymlink, dir()
		case kind == 2 && len(files) > 0:
			h.Typeflag, h.Linkname = tar.TypeLink, files[r.IntN(len(files))]
		case kind == 3:
			h.Typeflag, h.Name = tar.TypeDir, strings.TrimSuffix(dir(), "/")
		case kind == 4:
			h.Typeflag, h.Name = tar.TypeReg, fmt.Sprint(dir(), ".wh.gone", i)
		case kind == 5:
			h.Typeflag, h.Name = tar.TypeFifo, fmt.Sprint(strings.Repeat("l", 120), "/", strings.Repeat("m", 130), i)
		default:
			h.Typeflag = tar.TypeReg
			body = strings.Repeat("b", []int{0, 1, 511, 512, 513, 9000}[r.IntN(6)])
			h.Size = int64(len(body))
			files = append(files, h.Name)
		}
		test.Must(t, w.WriteHeader(h))
		test.Must(t, test.Err(io.WriteString(w, body)))
	}
	test.Must(t, w.Close())
	return append(b.Bytes(), make([]byte, 3000)...)
}

// treeOf describes all files below a directory. It omits times within the last hour, which the
// unpacking itself gives to directories without an entry in the layer.
func treeOf(t *testing.T, root string) string {
	t.Helper()
	var b strings.Builder
	test.Must(t, filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		changed := st.Mtim.Nano()
		if time.Since(time.Unix(0, changed)) < time.Hour {
			changed = 0
		}
		value := make([]byte, 4096)
		n, _ := unix.Lgetxattr(path, "user.a", value)
		link, _ := os.Readlink(path)
		fmt.Fprintln(&b, strings.TrimPrefix(path, root), st.Mode, st.Uid, st.Gid, st.Nlink*map[bool]uint64{true: 0, false: 1}[st.Mode&unix.S_IFMT == unix.S_IFDIR], st.Rdev, changed, n, link)
		return nil
	}))
	return b.String()
}

// packed returns a layer with one file of that size, plain, gzipped and zstd-compressed. The bytes
// compress little.
func packed(t *testing.T, size int) (plain, gzipped, zstded []byte) {
	t.Helper()
	random := rand.New(rand.NewPCG(1, 2))
	body := make([]byte, size)
	for i := range body {
		body[i] = byte(random.IntN(200))
	}
	plain = archiveOf(t, "file", body)
	var g, z bytes.Buffer
	gw := gzip.NewWriter(&g)
	zw := test.Value(zstd.NewWriter(&z))(t)
	for _, w := range []io.WriteCloser{gw, zw} {
		_, err := w.Write(plain)
		test.Must(t, errors.Join(err, w.Close()))
	}
	return plain, g.Bytes(), z.Bytes()
}

func archiveOf(t *testing.T, name string, body []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	test.Must(t, w.WriteHeader(&tar.Header{Name: name, Size: int64(len(body)), Mode: 0o600}))
	_, err := w.Write(body)
	test.Must(t, errors.Join(err, w.Close()))
	return b.Bytes()
}

// The layer's size and the programs on the node select what decompresses the layer. The result
// is the same, and a broken layer is always an invalid argument.
func TestCompressions(t *testing.T) {
	for _, size := range []int{1 << 20, 2 * worthProcess} {
		plain, gzipped, zstded := packed(t, size)
		damaged := bytes.Clone(gzipped)
		damaged[len(damaged)/2] ^= 0xff
		for name, c := range map[string]struct {
			blob  []byte
			whole bool
		}{
			"plain": {plain, true}, "gzip": {gzipped, true}, "zstd": {zstded, true},
			"gzip of two members": {append([]byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0}, gzipped...), true},
			"damaged gzip":        {damaged, false}, "gzip without its end": {gzipped[:len(gzipped)-5], false}, "half of gzip": {gzipped[:len(gzipped)/2], false},
			"half of zstd": {zstded[:len(zstded)/2], false}, "half of plain": {plain[:len(plain)/2], false}, "not an archive": {bytes.Repeat([]byte("no"), size), false},
		} {
			for where, path := range map[string]string{"this node": os.Getenv("PATH"), "a node without programs": t.TempDir()} {
				t.Setenv("PATH", path)
				p := start(t, usualMemory)
				got, err := p.Unpack(t.Context(), Layer{Root: t.TempDir(), Count: all}, blobOf(t, c.blob))
				if c.whole && (err != nil || got.Digest != digest.FromBytes(plain)) || !c.whole && !errdefs.IsInvalidArgument(err) {
					t.Errorf("%s of %d bytes on %s: %v, %v", name, size, where, got, err)
				}
				if !p.Usable() {
					t.Errorf("%s of %d bytes on %s made the child unusable", name, size, where)
				}
			}
		}
	}
}

// TestFirstError unpacks a layer with a file below a file and with a wrong checksum. The error is
// that of the files, although the checksum is read earlier.
func TestFirstError(t *testing.T) {
	var b, g bytes.Buffer
	w, gw := tar.NewWriter(&b), gzip.NewWriter(&g)
	for _, name := range []string{"file", "file/below"} {
		test.Must(t, w.WriteHeader(&tar.Header{Name: name, Mode: 0o600}))
	}
	_, err := gw.Write(b.Bytes())
	test.Must(t, errors.Join(err, w.Close(), gw.Close()))
	damaged := g.Bytes()
	damaged[len(damaged)-8] ^= 0xff
	_, err = start(t, usualMemory).Unpack(t.Context(), Layer{Root: t.TempDir(), Count: all}, blobOf(t, damaged))
	test.ErrorIs(t, err, unix.ENOTDIR, "unpack a file below a file")
}

// The unpacking of a layer with too many entries stops long before the layer's end.
func TestTooManyEntries(t *testing.T) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := range 3 * countEach {
		test.Must(t, w.WriteHeader(&tar.Header{Name: fmt.Sprint(i), Mode: 0o600}))
	}
	test.Must(t, w.Close())
	root, p := t.TempDir(), start(t, usualMemory)
	want := errors.New("too many")
	_, err := p.Unpack(t.Context(), Layer{Root: root, Count: func(int64) error { return want }}, blobOf(t, b.Bytes()))
	if left, _ := os.ReadDir(root); !errors.Is(err, want) || p.Usable() || len(left) < countEach-1 || len(left) > 2*countEach {
		t.Errorf("the unpacking stopped with %v after %d files, want %v", err, len(left), want)
	}
}

// An opaque whiteout in the lowest layer keeps the layer's own files, and is not unpacked as a
// file.
func TestOpaqueInTheLowestLayer(t *testing.T) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	test.Must(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "a", Mode: 0o755}))
	test.Must(t, w.WriteHeader(&tar.Header{Name: "a/b/own", Mode: 0o644}))
	test.Must(t, w.WriteHeader(&tar.Header{Name: "a/" + opaque, Mode: 0o644}))
	test.Must(t, w.Close())
	root := t.TempDir()
	test.Must(t, test.Err(start(t, usualMemory).Unpack(t.Context(), Layer{Root: root, Count: all}, blobOf(t, b.Bytes()))))
	for file, want := range map[string]bool{"a/b/own": true, "a/" + opaque: false} {
		if _, err := os.Lstat(filepath.Join(root, file)); (err == nil) != want {
			t.Errorf("%s: %v; want it to exist: %v", file, err, want)
		}
	}
}

func TestFileWithoutRoom(t *testing.T) {
	var b bytes.Buffer
	test.Must(t, tar.NewWriter(&b).WriteHeader(&tar.Header{Name: "large", Size: math.MaxInt64 >> 3, Mode: 0o600}))
	_, err := start(t, usualMemory).Unpack(t.Context(), Layer{Root: t.TempDir(), Count: all}, blobOf(t, b.Bytes()))
	if !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "bytes are free") {
		t.Error(err)
	}
}
