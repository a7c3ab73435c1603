package thread

import (
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
)

// Run must not use the main thread, even if its caller runs there: the main thread would
// stay in a pod's namespace forever.
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
	test.Checkf(t, test.Err(os.Readlink("/proc/self/ns/net")), "the namespace of the main thread")
}
