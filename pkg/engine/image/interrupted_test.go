package image

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/opencontainers/go-digest"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/image/bounds"
	"github.com/berth-cri/berth/pkg/engine/image/catalog"
	"github.com/berth-cri/berth/pkg/engine/image/disk"
	"github.com/berth-cri/berth/pkg/engine/image/pull"
)

// breaking is the guard of a registry that supports ranges, and breaks off one layer.
type breaking struct {
	t   testing.TB
	reg *testRegistry
	// path is the end of the path of the layer that breaks off.
	path string
	// small is the other layer's blob in the store. The connection breaks only once small exists.
	small string

	mu sync.Mutex
	// after is the number of bytes before the break; a negative number sends the whole layer.
	after int
	// wrong replaces the beginning of the bytes before the break.
	wrong []byte
	// ranges are the requested ranges; "" is a request without a range.
	ranges []string
}

func newBreaking(t testing.TB, reg *testRegistry, l v1.Layer, after int) *breaking {
	t.Helper()
	b := &breaking{t: t, reg: reg, path: "/blobs/" + digestOf(t, l), after: after}
	reg.setGuard(b.guard)
	return b
}

// mend makes the guard send the whole layer from now on, and clears ranges.
func (b *breaking) mend() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.after, b.ranges = -1, nil
}

func (b *breaking) asked() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ranges
}

// hold makes connections of the layer stall, instead of break, until the channel is closed.
func (b *breaking) hold() chan struct{} {
	held := make(chan struct{})
	b.reg.setGuard(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, b.path) {
			defer func() { <-held; panic(http.ErrAbortHandler) }()
			defer func() { _ = recover() }()
		}
		return b.guard(w, r)
	})
	return held
}

func (b *breaking) guard(w http.ResponseWriter, r *http.Request) bool {
	if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, b.path) {
		return false
	}
	b.mu.Lock()
	after, wrong := b.after, b.wrong
	b.ranges = append(b.ranges, r.Header.Get("Range"))
	b.mu.Unlock()
	if after < 0 {
		b.reg.serveBlob(w, r)
		return true
	}
	if b.small != "" {
		test.Eventually(b.t, "the other layer is stored", func() bool { return test.Err(os.Stat(b.small)) == nil })
	}
	body := slices.Clone(b.reg.body(r))
	copy(body, wrong)
	w.Header().Set("Content-Length", fmt.Sprint(len(body)))
	_, _ = w.Write(body[:after])
	w.(http.Flusher).Flush()
	panic(http.ErrAbortHandler)
}

// breaksOff serves an image of a small layer and of a large layer, which breaks off after that
// many bytes.
func breaksOff(t testing.TB, after int) (s *Store, g *breaking, small, big v1.Layer) {
	t.Helper()
	small, big = layer(t, file{name: "small", body: "1"}), bulk(t, 4<<20)
	reg, s := serve(t, Config{}, build(t, v1.Config{}, small, big))
	g = newBreaking(t, reg, big, after)
	g.small = blobPath(s, digest.Digest(digestOf(t, small)))
	return s, g, small, big
}

func TestInterruptedPullIsResumed(t *testing.T) {
	const sent = 3 << 20
	pulls := func(s *Store) (*catalog.Image, error) { return s.Pull(t.Context(), pull.Request{Ref: app}) }
	for name, interrupt := range map[string]func(t *testing.T, s *Store, g *breaking) *Store{
		"connection breaks": func(t *testing.T, s *Store, _ *breaking) *Store {
			if _, err := pulls(s); !errdefs.IsUnknown(err) || !strings.HasPrefix(err.Error(), "RegistryUnavailable") {
				t.Fatalf("the pull that breaks off returned %v", err)
			}
			return s
		},
		"daemon restarts": func(t *testing.T, s *Store, _ *breaking) *Store {
			if _, err := pulls(s); err == nil {
				t.Fatal("the pull that breaks off succeeded")
			}
			test.Must(t, s.Close())
			return openStore(t, s.cfg)
		},
		"daemon is killed": func(t *testing.T, s *Store, g *breaking) *Store {
			test.Must(t, s.Close())
			defer close(g.hold())
			killed(t, s.cfg, app, func(string) bool {
				blobs, _ := filepath.Glob(s.files.Path("content", "blobs", "sha256", "*"))
				found, _ := filepath.Glob(s.files.Path("content", "ingest", "*", "data"))
				if len(blobs) < 3 { // manifest, configuration and the other layer
					return false
				}
				for _, f := range found {
					if info, err := os.Stat(f); err == nil && info.Size() > sent/2 {
						return true
					}
				}
				return false
			})
			g.reg.setGuard(g.guard)
			return openStore(t, s.cfg)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, g, small, _ := breaksOff(t, sent)
			s = interrupt(t, s, g)
			if n := leasesLeft(t, s); n != 1 || len(s.List()) != 0 {
				t.Fatalf("%d leases are kept, want 1, and images %v", n, s.List())
			}
			g.mend()
			g.reg.forgetHits()
			pullImage(t, s, app)
			var from int
			if got := g.asked(); len(got) != 1 {
				t.Errorf("the second pull requested the ranges %q, want 1", got)
			} else if _, err := fmt.Sscanf(got[0], "bytes=%d-", &from); err != nil || from < sent/3 {
				t.Errorf("the second pull requested the range %q, want one from %d or later", got[0], sent/3)
			}
			if n := g.reg.count(http.MethodGet, digestOf(t, small)); n != 0 {
				t.Errorf("the complete small layer was downloaded again")
			}
			wantLeases(t, s, 0)
			wantStored(t, s, 4, 3)
		})
	}
}

// A wrong beginning of a layer, from a registry or a proxy, does not make later pulls fail: the
// layer is downloaded from its start.
func TestWrongBeginningIsNotResumed(t *testing.T) {
	s, g, _, _ := breaksOff(t, 2<<20)
	g.wrong = []byte("not what it should be")
	if _, err := s.Pull(t.Context(), pull.Request{Ref: app}); err == nil {
		t.Fatal("the pull that breaks off succeeded")
	}
	g.mend()
	pullImage(t, s, app)
	if got := g.asked(); len(got) != 2 || !strings.HasPrefix(got[0], "bytes=") || got[1] != "" {
		t.Errorf("the second pull requested the ranges %q, want a resumed and a whole one", got)
	}
	wantStored(t, s, 4, 3)
}

func TestInterruptedPullsAreGivenUp(t *testing.T) {
	for name, giveUp := range map[string]func(t *testing.T, s *Store) *Store{
		"with a removed image": func(t *testing.T, s *Store) *Store {
			pullImage(t, s, domain+"/other:1")
			test.Must(t, s.Retain(t.Context(), nil))
			test.Must(t, s.Remove(t.Context(), domain+"/other:1"))
			return s
		},
		"after a reboot": func(t *testing.T, s *Store) *Store {
			test.Must(t, s.Close())
			files := test.Value(disk.Open(t.Context(), disk.Config{Root: s.cfg.Root, WritableRoot: s.cfg.WritableRoot, Snapshotter: s.cfg.DefaultSnapshotter}))(t)
			files.Flusher.Boot = "another boot"
			later := test.Value(newStore(files, s.cfg))(t)
			test.Must(t, later.recover(s.testContext(t)))
			test.Must(t, files.Close())
			return openStore(t, s.cfg)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, g, _, _ := breaksOff(t, 2<<20)
			g.reg.push(t, "other:1", small(t))
			if _, err := s.Pull(t.Context(), pull.Request{Ref: app}); err == nil {
				t.Fatal("the pull that breaks off succeeded")
			}
			if b, _, in := stored(t, s); len(b) == 0 || len(in) != 1 {
				t.Fatalf("the interrupted pull kept the blobs %v and the ingests %v", b, in)
			}
			s = giveUp(t, s)
			wantLeases(t, s, 0)
			wantStored(t, s, 0, 0)
		})
	}
}

// An interrupted and resumed pull has the same limit of entries as a whole one. Entries of a layer
// that was lost in between do not count twice.
func TestEntriesOfInterruptedPulls(t *testing.T) {
	for name, files := range map[string][]int{"too many entries": {8, 8}, "lost layer": {4, 4, 2}} {
		t.Run(name, func(t *testing.T) {
			reg := newTestRegistry(t)
			var layers []v1.Layer
			for i, count := range files {
				var of []file
				for n := range count {
					of = append(of, file{name: fmt.Sprintf("%d-%d", i, n)})
				}
				layers = append(layers, layer(t, of...))
			}
			reg.push(t, "app:1", build(t, v1.Config{}, layers...))
			before := len(layers) - 1
			g := newBreaking(t, reg, layers[before], 10)
			s := openStore(t, Config{HostsDir: reg.hosts(t), Limits: bounds.Limits{MaxImageEntries: 12}})
			committed := func() int {
				_, snaps, _ := stored(t, s)
				return len(slices.DeleteFunc(snaps, func(name string) bool { return !isCommitted(name) }))
			}
			reg.setGuard(func(w http.ResponseWriter, r *http.Request) bool {
				if r.Method == http.MethodGet && strings.Contains(r.URL.Path, g.path) {
					test.Eventually(t, "the other layers are unpacked", func() bool { return committed() == before })
				}
				return g.guard(w, r)
			})
			if _, err := s.Pull(t.Context(), pull.Request{Ref: app}); err == nil || bounds.IsBeyond(err) {
				t.Fatalf("the interrupted pull returned %v", err)
			}
			test.Equal(t, "unpacked layers", committed(), before)
			g.mend()
			if name == "lost layer" {
				test.Must(t, os.RemoveAll(s.files.Path(disk.SnapshotsDir, disk.Overlayfs, "snapshots", "1")))
				pullImage(t, s, app)
				return
			}
			test.Refused(t, test.Err(s.Pull(t.Context(), pull.Request{Ref: app})), errdefs.IsInvalidArgument, "max_image_entries")
			wantStored(t, s, 0, 0)
		})
	}
}

// isCommitted reports whether a snapshot's name is that of an unpacked layer.
func isCommitted(name string) bool { return strings.HasPrefix(name, disk.Overlayfs+"/sha256:") }

// testContext returns the test's context in the store's namespace.
func (s *Store) testContext(t testing.TB) context.Context {
	t.Helper()
	return disk.InNamespace(t.Context())
}

// wantNothingKept drops interrupted pulls, and checks that the store is empty then.
func wantNothingKept(t testing.TB, s *Store) {
	t.Helper()
	s.puller.Interrupted.Drop(s.testContext(t))
	wantLeases(t, s, 0)
	wantStored(t, s, 0, 0)
}
