package thread

import (
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
)

// A goroutine on the main thread must hand over, or the main thread ends up in
// a pod's namespace for ever.
func TestRunSparesTheMainThread(t *testing.T) {
	for range 200 {
		test.Must(t, Run(func() error {
			if unix.Gettid() == unix.Getpid() {
				t.Error("the function runs on the main thread")
			}
			return nil
		}))
		runtime.Gosched()
	}
	test.Checkf(t, test.Err(os.Readlink("/proc/self/ns/net")), "the main thread is gone")
}
