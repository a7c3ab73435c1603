package image

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// index answers, from memory, which images there are and what they are called.
// It is filled from the records on disk at Open, and changed after them.
type index struct {
	pins pinPatterns

	mu sync.RWMutex
	// names leads from each recorded name to its images.
	names map[string]named
	// contents are the images as they were loaded, without names.
	contents map[string]*Image
	// images are contents with their names; each value is replaced, never changed.
	images map[string]*Image
}

// named is one record: what a name stands for. A value is replaced, never changed.
type named struct {
	target digest.Digest
	// ids are the images of the target that were pulled: for NodePlatform and WasmPlatform
	// one each.
	ids map[Platform]string
}

// has says whether the name stands for an image.
func (n named) has(id string) bool {
	for _, own := range n.ids {
		if own == id {
			return true
		}
	}
	return false
}

// of is the image that is wanted; empty is none.
func (n named) of(wanted Platform) string {
	for _, p := range wanted.accepts() {
		if id, ok := n.ids[p]; ok {
			return id
		}
	}
	return ""
}

// without leaves images out.
func (n named) without(ids map[string]bool) named {
	left := named{target: n.target, ids: map[Platform]string{}}
	for p, id := range n.ids {
		if !ids[id] {
			left.ids[p] = id
		}
	}
	return left
}

func newIndex(pins pinPatterns) *index {
	return &index{pins: pins, names: map[string]named{}, contents: map[string]*Image{}, images: map[string]*Image{}}
}

// put lets names stand for img where its platform is wanted. For others they go on standing
// for what they did, if that is of the same target. An image that loses its last name by it
// is gone.
func (x *index) put(img *Image, as Platform, target digest.Digest, names ...string) *Image {
	x.mu.Lock()
	defer x.mu.Unlock()
	changed := map[string]bool{img.ID: true}
	for _, name := range names {
		now := named{target: target, ids: map[Platform]string{}}
		old := x.names[name]
		for p, id := range old.ids {
			changed[id] = true
			if old.target == target {
				now.ids[p] = id
			}
		}
		now.ids[as] = img.ID
		x.names[name] = now
	}
	x.contents[img.ID] = img
	for id := range changed {
		x.rename(id)
	}
	return x.images[img.ID]
}

// drop forgets names. An image that loses its last name by it is gone.
func (x *index) drop(names ...string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	changed := map[string]bool{}
	for _, name := range names {
		for _, id := range x.names[name].ids {
			changed[id] = true
		}
		delete(x.names, name)
	}
	for id := range changed {
		x.rename(id)
	}
}

// strip forgets images, and names that stand for no other.
func (x *index) strip(ids map[string]bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for name, n := range x.names {
		if left := n.without(ids); len(left.ids) == 0 {
			delete(x.names, name)
		} else if len(left.ids) != len(n.ids) {
			x.names[name] = left
		}
	}
	for id := range ids {
		x.rename(id)
	}
}

// rename rebuilds an image after its names changed. The caller holds mu.
func (x *index) rename(id string) {
	names := x.namesOf(id)
	if len(names) == 0 {
		delete(x.contents, id)
		delete(x.images, id)
		return
	}
	img := *x.contents[id]
	img.RepoTags, img.RepoDigests = nil, nil
	for _, name := range names {
		if isDigestName(name) {
			img.RepoDigests = append(img.RepoDigests, name)
		} else {
			img.RepoTags = append(img.RepoTags, name)
		}
	}
	img.Pinned = x.pins.match(names...)
	x.images[id] = &img
}

// namesOf returns the sorted names of an image. The caller holds mu.
func (x *index) namesOf(id string) []string {
	var names []string
	for name, n := range x.names {
		if n.has(id) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// current returns the image that name stands for, if that is of target.
func (x *index) current(name string, target digest.Digest, wanted Platform) *Image {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if n, ok := x.names[name]; ok && n.target == target {
		return x.images[n.of(wanted)]
	}
	return nil
}

// nameCount is how many names there are.
func (x *index) nameCount() int {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return len(x.names)
}

// byTarget returns the images that have a name for that target.
func (x *index) byTarget(target digest.Digest) map[Platform]*Image {
	x.mu.RLock()
	defer x.mu.RUnlock()
	found := map[Platform]*Image{}
	for _, n := range x.names {
		if n.target != target {
			continue
		}
		for p, id := range n.ids {
			found[p] = x.images[id]
		}
	}
	return found
}

// alike is img if that was pulled for what is wanted, else the image that was, under the
// very name by which the pod asks: other names of img may be anybody's. Nil is none.
func (x *index) alike(img *Image, asked string, wanted Platform) *Image {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for _, name := range x.namesOf(img.ID) {
		for _, p := range wanted.accepts() {
			if x.names[name].ids[p] == img.ID {
				return img
			}
		}
	}
	name, err := parseName(asked)
	if err != nil {
		return nil
	}
	n := x.names[name.String()]
	if !n.has(img.ID) {
		return nil
	}
	return x.images[n.of(wanted)]
}

// meant are all images that a caller may call so: those of every platform if it is a name.
func (x *index) meant(ref string) ([]*Image, error) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	img, err := x.find(ref, AnyPlatform)
	if err != nil || img.ID == ref || img.ID == "sha256:"+ref {
		return []*Image{img}, err
	}
	all := []*Image{img}
	if name, err := parseName(ref); err == nil {
		for _, id := range x.names[name.String()].ids {
			if id != img.ID {
				all = append(all, x.images[id])
			}
		}
	}
	return all, nil
}

// records are what the names of images stand for beside those.
func (x *index) records(ids map[string]bool) map[string]named {
	x.mu.RLock()
	defer x.mu.RUnlock()
	found := map[string]named{}
	for name, n := range x.names {
		if left := n.without(ids); len(left.ids) != len(n.ids) {
			found[name] = left
		}
	}
	return found
}

// platforms are what was pulled of the target that a name stands for.
func (x *index) platforms(name string, target digest.Digest) []Platform {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if n := x.names[name]; n.target == target {
		return slices.Collect(maps.Keys(n.ids))
	}
	return nil
}

// get resolves what a caller may call an image; see Store.Find.
func (x *index) get(ref string, wanted Platform) (*Image, error) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.find(ref, wanted)
}

// find is get. The caller holds mu.
func (x *index) find(ref string, wanted Platform) (*Image, error) {
	if img, ok := x.images[ref]; ok {
		return img, nil
	}
	if img, ok := x.images["sha256:"+ref]; ok {
		return img, nil
	}
	if name, err := parseName(ref); err == nil {
		if n, ok := x.names[name.String()]; ok {
			if img := x.images[n.of(wanted)]; img != nil {
				return img, nil
			}
			return nil, fmt.Errorf("image %.300q is not on this node for %s; pull it for that: %w", ref, wanted, errdefs.ErrNotFound)
		}
	}
	return x.byPrefix(ref)
}

// byPrefix finds the one image whose id begins with ref. The caller holds mu.
func (x *index) byPrefix(ref string) (*Image, error) {
	missing := fmt.Errorf("image %.300q is not on this node; pull it first: %w", ref, errdefs.ErrNotFound)
	hex, ok := idPrefix(ref)
	if !ok {
		return nil, missing
	}
	var found []string
	for id := range x.images {
		if strings.HasPrefix(id, "sha256:"+hex) {
			found = append(found, id)
		}
	}
	switch len(found) {
	case 0:
		return nil, missing
	case 1:
		return x.images[found[0]], nil
	}
	slices.Sort(found)
	return nil, fmt.Errorf("image ID %q matches %d images; give more digits: %s: %w",
		ref, len(found), strings.Join(found[:min(len(found), 5)], ", "), errdefs.ErrInvalidArgument)
}

// list returns all images, sorted by id.
func (x *index) list() []*Image {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return slices.SortedFunc(maps.Values(x.images), func(a, b *Image) int { return strings.Compare(a.ID, b.ID) })
}

// hasChain says whether an image consists of these layers.
func (x *index) hasChain(chain digest.Digest) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for _, img := range x.images {
		if img.ChainID == chain {
			return true
		}
	}
	return false
}
