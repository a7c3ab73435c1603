package image

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/image/bounds"
	"github.com/berth-cri/berth/pkg/engine/image/pull"
	"github.com/berth-cri/berth/pkg/engine/image/registry"
)

// ranges records the requested ranges of blobs, and the largest number of concurrent requests.
type ranges struct {
	mu        sync.Mutex
	asked     []string
	open, max int
}

func (r *ranges) begin(asked string) (n int, end func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = append(r.asked, asked)
	r.open++
	r.max = max(r.max, r.open)
	return len(r.asked), func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.open--
	}
}

func TestLargeLayersComeInParts(t *testing.T) {
	const size = 4*registry.PartSize + registry.PartSize/2
	large := bulk(t, size)
	for name, c := range map[string]struct {
		// change modifies the n-th request for the large layer.
		change func(n int, r *http.Request)
		breaks bool // the second request breaks off
		parts  bool // the layer is fetched in parts
		fails  bool
		// most is the largest allowed number of requests; 0 is no limit.
		most int
	}{
		"registry with ranges":    {parts: true},
		"registry without ranges": {change: func(_ int, r *http.Request) { r.Header.Del("Range") }, most: 1},
		// One request succeeds, two are under way when ranges stop, and one fetches the rest.
		"registry stops supporting ranges": {most: 4, change: func(n int, r *http.Request) {
			if n > 1 {
				r.Header.Del("Range")
			}
		}},
		"shorter ranges than requested": {parts: true, change: func(_ int, r *http.Request) {
			var begin, end int
			if _, err := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &begin, &end); err == nil {
				r.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", begin, min(end, begin+registry.PartSize/3)))
			}
		}},
		"connection breaks off": {parts: true, breaks: true},
		"wrong range": {parts: true, fails: true, change: func(n int, r *http.Request) {
			if n == 2 {
				r.Header.Set("Range", fmt.Sprintf("bytes=0-%d", registry.PartSize-1))
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			seen := &ranges{}
			reg, s := serve(t, Config{}, build(t, v1.Config{}, layer(t, file{name: "small"}), large))
			both := make(chan struct{})
			reg.setGuard(func(w http.ResponseWriter, r *http.Request) bool {
				if r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, "/blobs/"+digestOf(t, large)) {
					return false
				}
				n, end := seen.begin(r.Header.Get("Range"))
				defer end()
				if c.parts && !c.fails {
					// The second request waits for the third, so that the two are concurrent.
					switch n {
					case 2:
						<-both
					case 3:
						close(both)
					}
				}
				if c.breaks && n == 2 {
					breakOff(reg, w, r, 0)
				}
				if c.change != nil {
					c.change(n, r)
				}
				reg.serveBlob(w, r)
				return true
			})
			if _, err := s.Pull(t.Context(), pull.Request{Ref: app}); (err != nil) != c.fails {
				t.Errorf("the pull returned %v; want an error: %v", err, c.fails)
			}
			if c.most > 0 && len(seen.asked) > c.most || c.parts && len(seen.asked) < 4 || c.parts && !c.fails && seen.max < 2 {
				t.Errorf("the requested ranges were %v, at most %d at the same time", seen.asked, seen.max)
			}
			if !s.puller.Ahead.TryAcquire((16 << 20) / registry.PartSize) {
				t.Error("the pull did not release the memory of its parts")
			}
		})
	}
}

// A registry that breaks off each answer after a few bytes is too slow, although each request
// makes progress.
func TestPartsThatBreakOffAreSlow(t *testing.T) {
	const pause = 50 * time.Millisecond
	for name, after := range map[string]time.Duration{"pause before the answer": 0, "pause after the bytes": pause} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reg, s := serve(t, Config{PullProgressTimeout: 6 * time.Second, Limits: bounds.Limits{MinDownloadRate: 1 << 20}}, build(t, v1.Config{}, bulk(t, 5*registry.PartSize)))
			reg.setGuard(func(w http.ResponseWriter, r *http.Request) bool {
				if r.Method != http.MethodGet || r.Header.Get("Range") == "" {
					return false
				}
				time.Sleep(pause - after) // a slow registry, over TCP
				breakOff(reg, w, r, after)
				return true
			})
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			test.Says(t, test.Err(s.Pull(ctx, pull.Request{Ref: app})), "too slowly")
		})
	}
}

// breakOff sends the header and the first 1000 bytes of a longer answer, and closes the connection.
func breakOff(reg *testRegistry, w http.ResponseWriter, r *http.Request, pause time.Duration) {
	answer := httptest.NewRecorder()
	reg.serveBlob(answer, r)
	maps.Copy(w.Header(), answer.Header())
	w.WriteHeader(answer.Code)
	_, _ = w.Write(answer.Body.Bytes()[:1000])
	w.(http.Flusher).Flush()
	time.Sleep(pause) // a slow registry, over TCP
	panic(http.ErrAbortHandler)
}
