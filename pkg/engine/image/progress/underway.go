// Package progress tracks the running pulls and the stage of each layer.
package progress

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berth-cri/berth/pkg/step"
)

// Underway describes a running pull.
type Underway struct {
	// Name is the normalised name of the image.
	Name        string
	Snapshotter string
	Began       time.Time
	// Layers are in the order of the image; empty before its manifest was read.
	Layers []LayerProgress
}

// LayerProgress is the progress of a layer.
type LayerProgress struct {
	Digest digest.Digest
	// Size and Fetched are in bytes of the layer as the registry sends it.
	Size, Fetched int64
	Stage         LayerStage
}

// LayerStage is the stage of a layer.
type LayerStage string

// The stages, in order. A layer that is already in the store may skip some.
const (
	LayerWaiting   LayerStage = "waiting"
	LayerFetching  LayerStage = "fetching"
	LayerFetched   LayerStage = "fetched"
	LayerUnpacking LayerStage = "unpacking"
	LayerUnpacked  LayerStage = "unpacked"
)

// Pulls are the running pulls.
type Pulls struct {
	// Fetched counts the bytes from registries.
	Fetched atomic.Int64

	mu    sync.Mutex
	pulls map[*Pull]bool
}

// Pull tracks one running pull. A nil Pull ignores all calls.
type Pull struct {
	name, snapshotter string
	began             time.Time

	mu     sync.Mutex
	layers []imagespec.Descriptor
	stages map[digest.Digest]LayerStage
}

// Begin adds a pull, and end removes it.
func (u *Pulls) Begin(name, snapshotter string) (w *Pull, end func()) {
	w = &Pull{name: name, snapshotter: snapshotter, began: time.Now(), stages: map[digest.Digest]LayerStage{}}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.pulls == nil {
		u.pulls = map[*Pull]bool{}
	}
	u.pulls[w] = true
	return w, func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		delete(u.pulls, w)
	}
}

// Running is the number of running pulls.
func (u *Pulls) Running() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.pulls)
}

// List describes the running pulls, the oldest first. Store has the content of their layers.
func (u *Pulls) List(ctx context.Context, store content.Store) []Underway {
	u.mu.Lock()
	pulls := slices.Collect(maps.Keys(u.pulls))
	u.mu.Unlock()
	out := make([]Underway, 0, len(pulls))
	for _, w := range pulls {
		out = append(out, w.describe(ctx, store))
	}
	slices.SortFunc(out, func(a, b Underway) int { return cmp.Or(a.Began.Compare(b.Began), cmp.Compare(a.Name, b.Name)) })
	return out
}

func (w *Pull) describe(ctx context.Context, store content.Store) Underway {
	w.mu.Lock()
	layers, stages := w.layers, maps.Clone(w.stages)
	w.mu.Unlock()
	u := Underway{Name: w.name, Snapshotter: w.snapshotter, Began: w.began}
	for _, desc := range layers {
		l := LayerProgress{Digest: desc.Digest, Size: desc.Size, Fetched: desc.Size, Stage: stages[desc.Digest]}
		if l.Stage == "" { // neither being unpacked nor unpacked
			l.Fetched, l.Stage = fetched(ctx, store, desc)
		}
		u.Layers = append(u.Layers, l)
	}
	return u
}

// fetched returns how much of a layer is in the store.
func fetched(ctx context.Context, store content.Store, desc imagespec.Descriptor) (int64, LayerStage) {
	if _, err := store.Info(ctx, desc.Digest); err == nil {
		return desc.Size, LayerFetched
	}
	if st, err := store.Status(ctx, remotes.MakeRefKey(ctx, desc)); err == nil {
		return min(st.Offset, desc.Size), LayerFetching
	}
	return 0, LayerWaiting
}

// Expect sets the layers of the image.
func (w *Pull) Expect(layers []imagespec.Descriptor) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.layers = layers
}

// At sets the stage of a layer.
func (w *Pull) At(layer digest.Digest, stage LayerStage) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stages[layer] = stage
}

// underwayKey is the key of a *Pull in a context.
type underwayKey struct{}

// With returns a context with a pull.
func With(ctx context.Context, w *Pull) context.Context {
	return context.WithValue(ctx, underwayKey{}, w)
}

// From returns the pull of ctx, or nil.
func From(ctx context.Context) *Pull {
	w, _ := ctx.Value(underwayKey{}).(*Pull)
	return w
}

// Step is a step of concurrent tasks: it lasts from the first Enter to the last leave.
type Step struct {
	Name string

	mu   sync.Mutex
	open int
	end  func(error)
}

// Enter begins the step for one task, and leave ends it.
func (p *Step) Enter(ctx context.Context) (leave func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open++; p.open == 1 {
		_, p.end = step.Begin(ctx, p.Name)
	}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.open--; p.open == 0 {
			p.end(nil)
		}
	}
}
