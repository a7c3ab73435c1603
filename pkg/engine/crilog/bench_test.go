package crilog_test

import (
	"bytes"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/berth-cri/berth/pkg/engine/crilog"
)

// BenchmarkWrite is what output costs, by the length of its lines and of what
// is read at once.
func BenchmarkWrite(b *testing.B) {
	for _, lineSize := range []int{20, 100, 1000, 100_000} {
		for _, chunkSize := range []int{100, 32 * 1024} {
			b.Run("line="+strconv.Itoa(lineSize)+"/chunk="+strconv.Itoa(chunkSize), func(b *testing.B) {
				l, err := crilog.Open(filepath.Join(b.TempDir(), "0.log"), crilog.Options{})
				if err != nil {
					b.Fatal(err)
				}
				defer func() {
					if err := l.Close(); err != nil {
						b.Error(err)
					}
				}()
				s := l.Stream(crilog.Stdout)
				line := append(bytes.Repeat([]byte{'x'}, lineSize-1), '\n')
				input := bytes.Repeat(line, 1+2*chunkSize/lineSize)
				b.SetBytes(int64(chunkSize))
				b.ReportAllocs()
				at := 0
				for b.Loop() {
					if at+chunkSize > len(input) {
						at = 0
					}
					if _, err := s.Write(input[at : at+chunkSize]); err != nil {
						b.Fatal(err)
					}
					at += chunkSize
				}
			})
		}
	}
}
