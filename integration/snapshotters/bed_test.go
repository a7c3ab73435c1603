// Package snapshotters runs pods on all snapshotters at once, with the real programs of those that
// are not berth's, and kills and stops these programs.
package snapshotters

import (
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-cri/berth/integration/testbed"
)

// patience is much longer than any step here takes on an idle machine.
const patience = 60 * time.Second

// bed is a berth with a handler for each snapshotter, and a registry that counts sent bytes.
type bed struct {
	*testbed.Berth
	registry *testbed.Registry
	// sent is how many bytes of blobs the registry has sent.
	sent   *atomic.Int64
	stargz *testbed.StargzSnapshotter
}

// kinds are the handlers, each named after its snapshotter.
var kinds = []string{"overlayfs", "erofs", "stargz"}

func newBed(t *testing.T) *bed {
	t.Helper()
	needErofs(t)
	b := &bed{sent: &atomic.Int64{}}
	b.registry = testbed.NewRegistry(t, testbed.RegistryOptions{Wrap: func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.Contains(r.URL.Path, "/blobs/") && r.Method == http.MethodGet {
				w = counted{w, b.sent}
			}
			next.ServeHTTP(w, r)
		})
	}})
	b.stargz = testbed.StartStargz(t)
	var config strings.Builder
	fmt.Fprintf(&config, "[snapshotters.stargz]\naddress = %q\n", b.stargz.Socket)
	for _, kind := range kinds {
		fmt.Fprintf(&config, "[runtimes.%s]\nruntime_path = %q\nsnapshotter = %q\n", kind, testbed.Part(t, testbed.Runc), kind)
	}
	b.Berth = testbed.StartBerth(t, testbed.Options{
		CNI: testbed.NewCNI(t), Registries: []*testbed.Registry{b.registry}, Config: config.String(), DefaultRuntime: "overlayfs",
	})
	return b
}

func needErofs(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("mkfs.erofs"); err != nil {
		testbed.Missing(t, "mkfs.erofs: install erofs-utils")
	}
}

type counted struct {
	http.ResponseWriter
	sent *atomic.Int64
}

func (c counted) Write(b []byte) (int, error) {
	n, err := c.ResponseWriter.Write(b)
	c.sent.Add(int64(n))
	return n, err
}
