package image

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/berth-cri/berth/pkg/engine/image/bounds"
	"github.com/berth-cri/berth/pkg/engine/image/registry"
)

// ranges notes the ranges of blobs that are asked for, and how many at the same time.
type ranges struct {
	mu        sync.Mutex
	asked     []string
	open, max int
}

func (r *ranges) begin(asked string) (end func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = append(r.asked, asked)
	r.open++
	r.max = max(r.max, r.open)
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.open--
	}
}

func TestLargeLayersComeInParts(t *testing.T) {
	const size = 4*registry.PartSize + registry.PartSize/2
	for name, c := range map[string]struct {
		// answer is what the registry makes of a request for a part of the large layer;
		// true if that was all.
		answer func(n int, w http.ResponseWriter, r *http.Request, serve http.HandlerFunc) bool
		parts  bool
		fails  bool
		// most is how many requests there are at most, if it is not 0.
		most int
	}{
		"with parts": {parts: true},
		"that ignores them": {answer: func(_ int, w http.ResponseWriter, r *http.Request, serve http.HandlerFunc) bool {
			r.Header.Del("Range")
			serve(w, r)
			return true
		}, most: 1},
		// Two were under way by then, and one is for the rest.
		"that forgets that it knows them": {most: 4, answer: func(n int, w http.ResponseWriter, r *http.Request, serve http.HandlerFunc) bool {
			if n > 1 {
				r.Header.Del("Range")
			}
			serve(w, r)
			return true
		}},
		"that sends shorter ones": {parts: true, answer: func(_ int, w http.ResponseWriter, r *http.Request, serve http.HandlerFunc) bool {
			var begin, end int
			if _, err := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &begin, &end); err != nil {
				return false
			}
			r.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", begin, min(end, begin+registry.PartSize/3)))
			serve(w, r)
			return true
		}},
		"that breaks off in one": {parts: true, answer: func(n int, w http.ResponseWriter, r *http.Request, serve http.HandlerFunc) bool {
			if n != 2 {
				return false
			}
			answer := httptest.NewRecorder()
			serve(answer, r)
			for key, values := range answer.Header() {
				w.Header()[key] = values
			}
			w.WriteHeader(answer.Code)
			_, _ = w.Write(answer.Body.Bytes()[:1000]) // fewer than it has said
			return true
		}},
		"that sends another part": {parts: true, fails: true, answer: func(n int, w http.ResponseWriter, r *http.Request, serve http.HandlerFunc) bool {
			if n == 2 {
				r.Header.Set("Range", fmt.Sprintf("bytes=0-%d", registry.PartSize-1))
			}
			serve(w, r)
			return true
		}},
	} {
		t.Run(name, func(t *testing.T) {
			reg := newTestRegistry(t)
			seen := &ranges{}
			built := build(t, v1.Config{}, layer(t, file{name: "small"}), bulk(t, size))
			reg.push(t, "app:1", built)
			layers, err := built.Layers()
			must(t, err)
			large, err := layers[1].Digest()
			must(t, err)
			both := make(chan struct{})
			reg.setGuard(func(w http.ResponseWriter, r *http.Request) bool {
				if r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, "/blobs/"+large.String()) {
					return false
				}
				end := seen.begin(r.Header.Get("Range"))
				defer end()
				seen.mu.Lock()
				n := len(seen.asked)
				seen.mu.Unlock()
				if c.parts && !c.fails {
					// The second and the third come while each other goes on.
					switch n {
					case 2:
						<-both
					case 3:
						close(both)
					}
				}
				serve := func(w http.ResponseWriter, r *http.Request) { passOn(t, reg, w, r) }
				if c.answer != nil && c.answer(n, w, r, serve) {
					return true
				}
				serve(w, r)
				return true
			})
			s := openStore(t, Config{HostsDir: reg.hosts(t)})
			_, err = s.Pull(t.Context(), PullRequest{Ref: domain + "/app:1"})
			if c.fails {
				if err == nil {
					t.Error("the wrong bytes were believed")
				}
			} else {
				must(t, err)
			}
			if c.most > 0 && len(seen.asked) > c.most || c.parts && len(seen.asked) < 4 || c.parts && !c.fails && seen.max < 2 {
				t.Errorf("asked for were %v, %d at the same time", seen.asked, seen.max)
			}
			if !s.ahead.TryAcquire(maxAhead) {
				t.Error("memory of parts was not given back")
			}
		})
	}
}

// A registry that breaks off again and again makes progress each time, and is slow all
// the same.
func TestPartsThatBreakOffAreSlow(t *testing.T) {
	for name, before := range map[string]bool{"the answer waits": true, "the bytes wait": false} {
		t.Run(name, func(t *testing.T) {
			reg := newTestRegistry(t)
			reg.push(t, "app:1", build(t, v1.Config{}, bulk(t, 5*registry.PartSize)))
			reg.setGuard(func(w http.ResponseWriter, r *http.Request) bool {
				if r.Method != http.MethodGet || r.Header.Get("Range") == "" {
					return false
				}
				if before {
					time.Sleep(50 * time.Millisecond)
				}
				answer := httptest.NewRecorder()
				passOn(t, reg, answer, r)
				for key, values := range answer.Header() {
					w.Header()[key] = values
				}
				w.WriteHeader(answer.Code)
				_, _ = w.Write(answer.Body.Bytes()[:1000])
				w.(http.Flusher).Flush()
				if !before {
					time.Sleep(50 * time.Millisecond)
				}
				panic(http.ErrAbortHandler)
			})
			s := openStore(t, Config{HostsDir: reg.hosts(t), PullProgressTimeout: 2 * time.Second, Limits: bounds.Limits{MinDownloadRate: 1 << 20}})
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			_, err := s.Pull(ctx, PullRequest{Ref: domain + "/app:1"})
			if err == nil || !strings.Contains(err.Error(), "min_download_rate") {
				t.Errorf("a pull that drips: %v", err)
			}
		})
	}
}

// passOn lets the registry behind the guard answer.
func passOn(t *testing.T, reg *testRegistry, w http.ResponseWriter, r *http.Request) {
	t.Helper()
	again, err := http.NewRequestWithContext(r.Context(), r.Method, reg.back.URL+r.URL.Path, nil)
	must(t, err)
	again.Header = r.Header.Clone()
	resp, err := http.DefaultTransport.RoundTrip(again)
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	defer resp.Body.Close()
	for key, values := range resp.Header {
		w.Header()[key] = values
	}
	w.WriteHeader(resp.StatusCode)
	_, _ = io.Copy(w, resp.Body) // the client may have gone
}
