package image

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/pkg/archive"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/image/bounds"
)

// TestPortionsUnpackAsOne unpacks layers in portions of every size, and compares
// with what containerd makes of them at once; and layers whose parents come later with
// what it makes of them where they are there.
func TestPortionsUnpackAsOne(t *testing.T) {
	lower := []string{t.TempDir(), t.TempDir()}
	for n, dir := range []string{lower[0] + "/d0", lower[1] + "/d0/d1", lower[1] + "/d1/d2", lower[1] + "/d3"} {
		must(t, os.MkdirAll(dir, 0o700))
		must(t, os.Chmod(dir, fs.FileMode(0o710+n)))
		must(t, os.Chown(dir, 1000+n, 2000+n))
		must(t, unix.Setxattr(dir, "user.a", []byte("lower"), 0))
		must(t, os.Chtimes(dir, time.Unix(1e9, 0), time.Unix(1e9, 0)))
	}
	convert := archive.WithConvertWhiteout(archive.OverlayConvertWhiteout)
	for seed := range uint64(6) {
		layer := randomLayer(t, rand.New(rand.NewPCG(seed, 1)))
		for name, c := range map[string]struct {
			known, options []archive.ApplyOpt // of containerd, and of portions
			below          bool
		}{
			"overlay": {known: []archive.ApplyOpt{convert}, options: []archive.ApplyOpt{convert}},
			"base":    {},
			"rebased": {known: []archive.ApplyOpt{convert, archive.WithParents(lower)}, options: []archive.ApplyOpt{convert}, below: true},
		} {
			whole := t.TempDir()
			if _, err := archive.Apply(t.Context(), whole, bytes.NewReader(layer), c.known...); err != nil {
				t.Fatal(err)
			}
			want := treeOf(t, whole)
			for _, size := range []int64{1, 500, 5000, 1 << 30} {
				root := t.TempDir()
				p := &portions{tape: &tape{ctx: t.Context(), from: bytes.NewReader(layer)}, size: size, scratch: t.TempDir(), root: root, overlay: c.options != nil}
				asked := 0
				if c.below {
					p.below = func(context.Context) ([]string, error) { asked++; return lower, nil }
				}
				if err := p.apply(t.Context(), c.options...); err != nil {
					t.Fatalf("seed %d, %s, portions of %d: %v", seed, name, size, err)
				}
				if several := p.number-asked > 0; several != (size < 1<<30) {
					t.Errorf("portions of %d: %d and one", size, p.number)
				}
				if c.below && asked != 1 {
					t.Errorf("the layers below were asked for %d times", asked)
				}
				if got := treeOf(t, root); got != want {
					t.Fatalf("seed %d, %s, portions of %d:\n%s\nwant\n%s", seed, name, size, got, want)
				}
				if left, _ := os.ReadDir(p.scratch); len(left) > 0 {
					t.Errorf("%v is left", left)
				}
				rest, err := io.ReadAll(p.tape)
				if err != nil || p.tape.n != int64(len(layer)) {
					t.Errorf("%d bytes and %d behind them were read of %d: %v", p.tape.n, len(rest), len(layer), err)
				}
			}
		}
	}
}

// randomLayer has whatever a layer may have, in an order that none has.
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
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return append(b.Bytes(), make([]byte, 3000)...)
}

// treeOf is all that can be seen of what is below a directory, but the times of
// directories that the layer does not name, which are those of the moment.
func treeOf(t *testing.T, root string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
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
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func layerOf(t *testing.T, headers ...*tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func applyPortions(t *testing.T, p *portions, layer []byte) error {
	t.Helper()
	p.tape, p.scratch = &tape{ctx: t.Context(), from: bytes.NewReader(layer)}, t.TempDir()
	if p.root == "" {
		p.root = t.TempDir()
	}
	return p.apply(context.WithoutCancel(t.Context()))
}

func TestEntriesAreCountedOverLayers(t *testing.T) {
	layer := layerOf(t, &tar.Header{Typeflag: tar.TypeDir, Name: "a"}, &tar.Header{Typeflag: tar.TypeDir, Name: "b"})
	limit := &entryLimit{max: 4}
	for range 2 {
		// A small portion counts none twice.
		if err := applyPortions(t, &portions{size: 1, limit: limit}, layer); err != nil {
			t.Fatal(err)
		}
	}
	if err := applyPortions(t, &portions{size: 1, limit: limit}, layer); !bounds.IsBeyond(err) {
		t.Errorf("a fifth entry: %v", err)
	}
}

// TestOpaqueDirectoryOfLaterPortion hides layers below where nobody knows any more
// what the layer itself has put there.
func TestOpaqueDirectoryOfLaterPortion(t *testing.T) {
	layer := layerOf(t, &tar.Header{Typeflag: tar.TypeReg, Name: "d/own"}, &tar.Header{Typeflag: tar.TypeReg, Name: "other"}, &tar.Header{Typeflag: tar.TypeReg, Name: "d/.wh..wh..opq"})
	base := t.TempDir()
	if err := applyPortions(t, &portions{size: 1, root: base}, layer); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(filepath.Join(base, "d/own")); err != nil {
		t.Errorf("what the layer has is hidden by itself: %v", err)
	}
	if err := applyPortions(t, &portions{size: 1, root: base}, layer); err == nil || !strings.Contains(err.Error(), Overlayfs) {
		t.Errorf("above another layer: %v", err)
	}
	if err := applyPortions(t, &portions{size: 1 << 20, root: base}, layer); err != nil {
		t.Errorf("in one portion: %v", err)
	}
}

func TestFileWithoutRoom(t *testing.T) {
	root := t.TempDir()
	err := (&portions{root: root}).checkRoom(&tar.Header{Name: "large", Size: 1 << 60})
	if !errors.Is(err, unix.ENOSPC) {
		t.Errorf("%v", err)
	}
	if err := (&portions{root: root}).checkRoom(&tar.Header{Name: "small", Size: 1 << 10}); err != nil {
		t.Error(err)
	}
}

func TestEndlessHeaders(t *testing.T) {
	attributes := map[string]string{"BERTH.a": strings.Repeat("a", 1_000_000)}
	one := layerOf(t, &tar.Header{Typeflag: tar.TypeDir, Name: "a", PAXRecords: attributes})
	extended := one[:len(one)-1024-512]
	first := layerOf(t, &tar.Header{Typeflag: tar.TypeDir, Name: "first"})[:512]
	layer := slices.Concat(first, bytes.Repeat(extended, 20), one[len(extended):])
	if err := applyPortions(t, &portions{size: 1}, layer); !bounds.IsBeyond(err) {
		t.Errorf("20 MB of headers: %v", err)
	}
}

// TestPortionsShareABudget unpacks where others remember much already, and where none do.
func TestPortionsShareABudget(t *testing.T) {
	var headers []*tar.Header
	for i := range 3000 {
		headers = append(headers, &tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprint(strings.Repeat("n", 90), i)})
	}
	layer := layerOf(t, headers...)
	for name, c := range map[string]struct {
		others  int64
		overlay bool
		several bool
	}{
		"free":                {0, true, false},
		"taken":               {portionBudget, true, true},
		"taken, native, base": {portionBudget, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			shared := newBudget()
			must(t, shared.portions.Acquire(t.Context(), c.others))
			p := &portions{size: defaultPortion, shared: shared.portions, overlay: c.overlay}
			must(t, applyPortions(t, p, layer))
			if several := p.number > 0; several != c.several {
				t.Errorf("%d portions and one", p.number)
			}
			if !shared.portions.TryAcquire(portionBudget - c.others) {
				t.Error("some of the budget is not given back")
			}
		})
	}
}

// TestLongHeadersOneAfterTheOther waits for a layer that has long headers, and not with
// short ones.
func TestLongHeadersOneAfterTheOther(t *testing.T) {
	shared := newBudget()
	must(t, shared.headers.Acquire(t.Context(), 1))
	unpack := func(attribute int) error {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		layer := layerOf(t, &tar.Header{Typeflag: tar.TypeDir, Name: "d", PAXRecords: map[string]string{"BERTH.long": strings.Repeat("a", attribute)}},
			&tar.Header{Typeflag: tar.TypeReg, Name: "d/f"})
		in := &tape{ctx: ctx, from: bytes.NewReader(layer), budget: shared}
		defer in.short()
		return (&portions{tape: in, size: defaultPortion, shared: shared.portions, root: t.TempDir(), scratch: t.TempDir(), overlay: true}).apply(ctx)
	}
	must(t, unpack(longHeaders/2))
	if err := unpack(2 * longHeaders); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("long headers beside others: %v", err)
	}
	shared.headers.Release(1)
	for range 2 { // it is given back
		must(t, unpack(2*longHeaders))
	}
}

// endlessReader is what a small compressed layer can become.
type endlessReader struct{}

func (endlessReader) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

// TestEndlessLayerEndsWithItsCaller reads what is behind an archive no longer than
// somebody waits for it.
func TestEndlessLayerEndsWithItsCaller(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, &tape{ctx: ctx, from: endlessReader{}})
		ended <- err
	}()
	select {
	case err := <-ended:
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("it ended with %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("it goes on")
	}
}
