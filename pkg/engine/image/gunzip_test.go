package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"testing/iotest"

	"github.com/klauspost/compress/gzip"

	"github.com/berth-cri/berth/pkg/engine/procfs"
)

// gzipped is some data, in members of different sizes.
func gzipped(t *testing.T, size int) (plain, packed []byte) {
	t.Helper()
	random := rand.New(rand.NewPCG(1, 2))
	for len(plain) < size {
		part := make([]byte, random.IntN(1<<20))
		for i := range part {
			part[i] = byte(random.IntN(1 + random.IntN(255)))
		}
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		_, err := w.Write(part)
		must(t, errors.Join(err, w.Close()))
		plain, packed = append(plain, part...), append(packed, b.Bytes()...)
	}
	return plain, packed
}

// Whatever decompresses a layer, the same comes out, and what is broken is no layer.
func TestDecompressorsAgree(t *testing.T) {
	path, err := exec.LookPath(igzip)
	if err != nil {
		if os.Getenv("BERTH_TEST_REQUIRE") != "" {
			t.Fatal("igzip is not installed: apt-get install isal")
		}
		t.Skip("igzip is not installed: apt-get install isal")
	}
	plain, packed := gzipped(t, 12<<20)
	damaged := bytes.Clone(packed)
	damaged[len(damaged)/2] ^= 0xff
	for name, c := range map[string]struct {
		from  io.Reader
		whole bool
	}{
		"whole":        {bytes.NewReader(packed), true},
		"in bits":      {iotest.HalfReader(bytes.NewReader(packed)), true},
		"empty member": {bytes.NewReader(append([]byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0}, packed...)), true},
		"damaged":      {bytes.NewReader(damaged), false},
		"cut":          {bytes.NewReader(packed[:len(packed)-5]), false},
		"no gzip":      {bytes.NewReader(plain), false},
		"nothing":      {bytes.NewReader(nil), false},
		"read error":   {io.MultiReader(bytes.NewReader(packed[:1<<20]), iotest.ErrReader(errors.New("disk broken"))), false},
		"panic":        {io.MultiReader(bytes.NewReader(packed[:1<<20]), panics{}), false},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := gunzipBy(t.Context(), path, c.from)
			must(t, err)
			ahead := readAhead(t.Context(), r)
			got, err := io.ReadAll(ahead)
			ahead.close()
			must(t, r.Close())
			if same := sha256.Sum256(got) == sha256.Sum256(plain); c.whole != (err == nil && same) || !c.whole && err == nil {
				t.Errorf("%d of %d bytes, the same: %v, %v", len(got), len(plain), same, err)
			}
		})
	}
}

type panics struct{}

func (panics) Read([]byte) (int, error) { panic("a library") }

// A program that was started and is not needed ends, and nobody waits for ever.
func TestDecompressorIsEnded(t *testing.T) {
	forever := filepath.Join(t.TempDir(), igzip)
	must(t, os.WriteFile(forever, []byte("#!/bin/sh\nexec sleep 1000\n"), 0o755))
	for _, dir := range []string{filepath.Dir(forever), filepath.Dir(filepath.Dir(forever))} {
		must(t, os.Chmod(dir, 0o755)) // nobody runs it
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, packed := gzipped(t, 1<<20)
	r, err := gunzipBy(ctx, forever, bytes.NewReader(packed))
	must(t, err)
	pid := r.(*gunzipped).cmd.Process.Pid
	ahead := readAhead(ctx, r)
	cancel()
	if _, err := io.ReadAll(ahead); err == nil {
		t.Error("it has an end")
	}
	ahead.close()
	must(t, r.Close())
	if _, err := os.Stat(procfs.Path(pid, "stat")); err == nil {
		t.Errorf("process %d is left", pid)
	}
}

// Without the program, and with one that cannot be started, Go's is taken.
func TestDecompressorOfTheNode(t *testing.T) {
	plain, packed := gzipped(t, 5<<20)
	for name, install := range map[string]func(t *testing.T, path string){
		"none":              func(*testing.T, string) {},
		"not executable":    func(t *testing.T, path string) { must(t, os.WriteFile(path, nil, 0o600)) },
		"of another system": func(t *testing.T, path string) { must(t, os.WriteFile(path, []byte("MZ"), 0o755)) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			t.Setenv("PATH", dir)
			install(t, filepath.Join(dir, igzip))
			r, err := gunzip(t.Context(), bytes.NewReader(packed), int64(len(packed)))
			must(t, err)
			got, err := io.ReadAll(r)
			if err != nil || !bytes.Equal(got, plain) {
				t.Errorf("%d of %d bytes, %v", len(got), len(plain), err)
			}
			must(t, r.Close())
		})
	}
}

func TestReadAheadPanics(t *testing.T) {
	a := readAhead(t.Context(), panics{})
	if _, err := a.Read(make([]byte, 1)); err == nil {
		t.Error("no error")
	}
	a.close()
	// One that is closed early does not wait for a source that goes on.
	endless := readAhead(t.Context(), zeros{})
	endless.close()
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }
