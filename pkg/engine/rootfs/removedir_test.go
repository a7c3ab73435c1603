package rootfs

import (
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/berth-cri/berth/internal/test"
)

// Writers create their files again while the directory is removed, but stop after a while.
func TestRemoveDirWithAStraggler(t *testing.T) {
	for range 4 {
		dir := filepath.Join(t.TempDir(), "bundle")
		test.Must(t, os.Mkdir(dir, 0o700))
		for i := range 1000 { // reading the directory takes a while
			test.Must(t, os.WriteFile(filepath.Join(dir, strconv.Itoa(i)), nil, 0o600))
		}
		var writing sync.WaitGroup
		for i := range 4 {
			writing.Go(func() {
				file := filepath.Join(dir, "log"+strconv.Itoa(i))
				for begin := time.Now(); time.Since(begin) < 100*time.Millisecond; {
					if f, err := os.Create(file); err == nil {
						_ = f.Close()
					}
				}
			})
		}
		test.Check(t, removeDir(dir))
		writing.Wait()
		test.ErrorIs(t, test.Err(os.Stat(dir)), os.ErrNotExist, "the directory is left")
	}
}
