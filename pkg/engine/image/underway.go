package image

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Underway is a pull that has not ended.
type Underway struct {
	// Name is the image's, normalised.
	Name        string
	Snapshotter string
	Began       time.Time
	// Layers are in the order of the image. None before its manifest is there.
	Layers []LayerProgress
}

// LayerProgress is how far a layer has come.
type LayerProgress struct {
	Digest digest.Digest
	// Size and Fetched are in bytes, as the registry sends the layer.
	Size, Fetched int64
	Stage         LayerStage
}

// LayerStage is what is done to a layer.
type LayerStage string

// The stages, in their order. One that was there before may skip some.
const (
	LayerWaiting   LayerStage = "waiting"
	LayerFetching  LayerStage = "fetching"
	LayerFetched   LayerStage = "fetched"
	LayerUnpacking LayerStage = "unpacking"
	LayerUnpacked  LayerStage = "unpacked"
)

// underway are the pulls that have not ended.
type underway struct {
	// fetched are the bytes that came from registries.
	fetched atomic.Int64

	mu    sync.Mutex
	pulls map[*watchedPull]bool
}

// watchedPull is one of them, for who works on it. A nil one takes everything in.
type watchedPull struct {
	name, snapshotter string
	began             time.Time

	mu     sync.Mutex
	layers []imagespec.Descriptor
	stages map[digest.Digest]LayerStage
}

// begin adds a pull until end is called.
func (u *underway) begin(name, snapshotter string) (w *watchedPull, end func()) {
	w = &watchedPull{name: name, snapshotter: snapshotter, began: time.Now(), stages: map[digest.Digest]LayerStage{}}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.pulls == nil {
		u.pulls = map[*watchedPull]bool{}
	}
	u.pulls[w] = true
	return w, func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		delete(u.pulls, w)
	}
}

// all are the pulls, the oldest first.
func (u *underway) all() []*watchedPull {
	u.mu.Lock()
	defer u.mu.Unlock()
	out := make([]*watchedPull, 0, len(u.pulls))
	for w := range u.pulls {
		out = append(out, w)
	}
	slices.SortFunc(out, func(a, b *watchedPull) int { return cmp.Or(a.began.Compare(b.began), cmp.Compare(a.name, b.name)) })
	return out
}

func (w *watchedPull) expect(layers []imagespec.Descriptor) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.layers = layers
}

// at says what is done to a layer now.
func (w *watchedPull) at(layer digest.Digest, stage LayerStage) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stages[layer] = stage
}

// Fetched is how many bytes registries have sent since Open.
func (s *Store) Fetched() int64 { return s.underway.fetched.Load() }

// Running is how many pulls and imports have not ended.
func (s *Store) Running() int { return len(s.underway.all()) }

// Underway are the pulls that have not ended, the oldest first.
func (s *Store) Underway(ctx context.Context) []Underway {
	ctx = inNamespace(ctx)
	var out []Underway
	for _, w := range s.underway.all() {
		u := Underway{Name: w.name, Snapshotter: w.snapshotter, Began: w.began}
		w.mu.Lock()
		layers := w.layers
		for _, l := range layers {
			u.Layers = append(u.Layers, LayerProgress{Digest: l.Digest, Size: l.Size, Stage: cmp.Or(w.stages[l.Digest], LayerWaiting)})
		}
		w.mu.Unlock()
		for i := range u.Layers {
			s.files.progress(ctx, &u.Layers[i], layers[i])
		}
		out = append(out, u)
	}
	return out
}

// progress finds out how much of a layer is there.
func (f *files) progress(ctx context.Context, l *LayerProgress, desc imagespec.Descriptor) {
	if l.Stage != LayerWaiting { // it is being unpacked, or was
		l.Fetched = l.Size
		return
	}
	if _, err := f.content.Info(ctx, l.Digest); err == nil {
		l.Fetched, l.Stage = l.Size, LayerFetched
	} else if st, err := f.content.Status(ctx, remotes.MakeRefKey(ctx, desc)); err == nil {
		l.Fetched, l.Stage = min(st.Offset, l.Size), LayerFetching
	}
}

// underwayKey is under which the context of a pull has its *watchedPull.
type underwayKey struct{}

func underwayBy(ctx context.Context, w *watchedPull) context.Context {
	return context.WithValue(ctx, underwayKey{}, w)
}

// underwayOf is the pull that ctx belongs to, nil if it is none.
func underwayOf(ctx context.Context) *watchedPull {
	w, _ := ctx.Value(underwayKey{}).(*watchedPull)
	return w
}
