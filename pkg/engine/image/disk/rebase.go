package disk

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/pkg/engine/failpoint"
)

// ParentLabel is the label by which containerd's unpacker passes the layer below to a snapshotter.
const ParentLabel = "containerd.io/snapshot/parent-chain-id"

// rebases tracks layers that are unpacked before the layers below them exist. They get their parent
// at the commit.
type rebases struct {
	mu sync.Mutex
	// active are the layers being unpacked, by key.
	active map[string]rebase
	// changed is closed at the next change.
	changed chan struct{}
}

// rebase is a layer being unpacked: its chain and its parent after the commit, and its directory
// until the commit.
type rebase struct{ chain, dir, parent string }

func newRebases() *rebases {
	return &rebases{active: map[string]rebase{}, changed: make(chan struct{})}
}

func (r *rebases) begin(key string, labels map[string]string, mounts []mount.Mount) {
	to, err := UnpackTarget(mounts)
	chain := labels[snapshots.LabelSnapshotRef]
	if chain == "" || err != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.active[key] = rebase{chain: chain, dir: to.Root, parent: labels[ParentLabel]}
}

func (r *rebases) end(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.active[key]; !ok {
		return
	}
	delete(r.active, key)
	close(r.changed)
	r.changed = make(chan struct{})
}

// ParentOf returns the future parent of a directory's layer, or "" if the layer has its parent.
func (r *rebases) ParentOf(dir string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, layer := range r.active {
		if layer.dir == dir {
			return layer.parent
		}
	}
	return ""
}

// coming reports whether a layer is being unpacked; changed is closed when r changes next.
func (r *rebases) coming(chain string) (is bool, changed <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, layer := range r.active {
		if layer.chain == chain {
			return true, r.changed
		}
	}
	return false, r.changed
}

// Prepare implements snapshots.Snapshotter; a layer may be prepared before those below it.
func (l *Layers) Prepare(ctx context.Context, key, parent string, opts ...snapshots.Opt) ([]mount.Mount, error) {
	mounts, err := l.Snapshotter.Prepare(ctx, key, parent, opts...)
	if err != nil || parent != "" {
		return mounts, err
	}
	var info snapshots.Info
	for _, opt := range opts {
		if err := opt(&info); err != nil {
			return nil, err
		}
	}
	l.Rebases.begin(key, info.Labels, mounts)
	return mounts, nil
}

// Commit implements snapshots.Snapshotter.
func (l *Layers) Commit(ctx context.Context, name, key string, opts ...snapshots.Opt) error {
	err := l.Snapshotter.Commit(ctx, name, key, opts...)
	if err == nil {
		failpoint.Hit(failpoint.ImageCommitted)
		l.Rebases.end(key)
	}
	return err
}

// Remove implements snapshots.Snapshotter.
func (l *Layers) Remove(ctx context.Context, key string) error {
	defer l.Rebases.end(key)
	return l.Snapshotter.Remove(ctx, key)
}

// Wait waits until a layer is not being unpacked, and fails if the layer does not exist then.
func (l *Layers) Wait(ctx context.Context, chain string) error {
	for {
		coming, changed := l.Rebases.coming(chain)
		if !coming {
			_, err := l.Stat(ctx, chain)
			if errdefs.IsNotFound(err) {
				return errors.New("the layer below was not unpacked") // without a class: the error of that layer has one
			}
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// belowPrefix begins the names of StackOf's temporary views.
const belowPrefix = "berth-below-"

// StackOf returns the directories of a layer and of those below it, topmost first.
func (l *Layers) StackOf(ctx context.Context, chain string) (_ []string, err error) {
	key := belowPrefix + rand.Text()
	mounts, err := l.View(ctx, key, chain)
	if err != nil {
		return nil, err
	}
	defer func() {
		if removeErr := l.Remove(context.WithoutCancel(ctx), key); err == nil {
			err = removeErr
		}
	}()
	st, ok := ReadStack(mounts)
	if !ok {
		return nil, fmt.Errorf("layer %s has mounts of an unexpected kind: %w", chain, errdefs.ErrInternal)
	}
	return st.Lower, nil
}
