package catalog

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// Index lists the images and their names, in memory. Open fills it from the records on disk. Later
// changes follow those of the records.
type Index struct {
	pins namePatterns
	// checkpoints match the names of images that containers may be restored from.
	checkpoints namePatterns

	mu sync.RWMutex
	// names maps each recorded name to its image.
	names map[string]named
	// images are the images with names; values are replaced, never changed.
	images map[string]*Image
}

// named is what a recorded name stands for.
type named struct {
	target digest.Digest
	// id is the image that was pulled last by the name.
	id string
	// as is the platform that the image was pulled for: NodePlatform or WasmPlatform.
	as Platform
}

// NewIndex returns an empty index. '*' in a name matches any characters.
func NewIndex(pins, checkpoints []string) *Index {
	return &Index{pins: newNamePatterns(pins), checkpoints: newNamePatterns(checkpoints), names: map[string]named{}, images: map[string]*Image{}}
}

// put makes names stand for img only. An image that loses its last name is removed.
func (x *Index) put(img *Image, as Platform, target digest.Digest, names ...string) *Image {
	x.mu.Lock()
	defer x.mu.Unlock()
	changed := map[string]bool{img.ID: true}
	for _, name := range names {
		if old, there := x.names[name]; there {
			changed[old.id] = true
		}
		x.names[name] = named{target, img.ID, as}
	}
	x.images[img.ID] = img
	for id := range changed {
		x.rename(id)
	}
	return x.images[img.ID]
}

// drop removes names. An image that loses its last name is removed.
func (x *Index) drop(names ...string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	changed := map[string]bool{}
	for _, name := range names {
		if n, there := x.names[name]; there {
			changed[n.id] = true
		}
		delete(x.names, name)
	}
	for id := range changed {
		x.rename(id)
	}
}

// rename rebuilds an image after its names changed. The caller holds mu.
func (x *Index) rename(id string) {
	names := x.namesOf(id)
	if len(names) == 0 {
		delete(x.images, id)
		return
	}
	img := *x.images[id]
	img.RepoTags, img.RepoDigests = nil, nil
	for _, name := range names {
		if strings.Contains(name, "@") {
			img.RepoDigests = append(img.RepoDigests, name)
		} else {
			img.RepoTags = append(img.RepoTags, name)
		}
	}
	img.Pinned = x.pins.match(names...)
	x.images[id] = &img
}

// namesOf returns the sorted names of an image. The caller holds mu.
func (x *Index) namesOf(id string) []string {
	var names []string
	for name, n := range x.names {
		if n.id == id {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Current returns the image of a name if the name has that target and a wanted platform, else nil.
func (x *Index) Current(name string, target digest.Digest, wanted Platform) *Image {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if n, ok := x.names[name]; ok && n.target == target && wanted.takes(n.as) {
		return x.images[n.id]
	}
	return nil
}

// NameCount is the number of names of images.
func (x *Index) NameCount() int {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return len(x.names)
}

// byTarget returns an image of a target, preferably for the node's platform, and the platform that
// it was pulled for. It returns nil if no name has the target.
func (x *Index) byTarget(target digest.Digest) (img *Image, as Platform) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for _, n := range x.names {
		if n.target == target && (img == nil || n.as == NodePlatform) {
			img, as = x.images[n.id], n.as
		}
	}
	return img, as
}

func (x *Index) pulledFor(img *Image, wanted Platform) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return slices.ContainsFunc(x.namesOf(img.ID), func(name string) bool { return wanted.takes(x.names[name].as) })
}

// Get finds an image by tag, short name, digest, tag and digest, id with or without "sha256:", or a
// unique prefix (six digits or more) of an id. It returns errdefs.ErrNotFound if it finds none, and
// ErrInvalidArgument if a prefix matches several. It reads memory only.
func (x *Index) Get(ref string) (*Image, error) { return x.Find(ref, AnyPlatform) }

// Find is Get for a wanted platform. An id finds its image whatever that platform is.
func (x *Index) Find(ref string, wanted Platform) (*Image, error) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if img, ok := x.images[ref]; ok {
		return img, nil
	}
	if img, ok := x.images["sha256:"+ref]; ok {
		return img, nil
	}
	if name, err := ParseName(ref); err == nil {
		if n, ok := x.names[name.String()]; ok {
			if wanted.takes(n.as) {
				return x.images[n.id], nil
			}
			return nil, fmt.Errorf("image %.300q is not on this node for platform %s; pull it for that platform: %w", ref, wanted, errdefs.ErrNotFound)
		}
	}
	return x.byPrefix(ref)
}

// byPrefix finds the image with an id that begins with ref, if it is unique. The caller holds mu.
func (x *Index) byPrefix(ref string) (*Image, error) {
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

// List returns all images, sorted by ID. It reads memory only.
func (x *Index) List() []*Image {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return slices.SortedFunc(maps.Values(x.images), func(a, b *Image) int { return strings.Compare(a.ID, b.ID) })
}

// HasChain reports whether an image has this chain ID.
func (x *Index) HasChain(chain digest.Digest) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for _, img := range x.images {
		if img.ChainID == chain {
			return true
		}
	}
	return false
}

// MayRestore refuses a checkpoint image without an allowed name. Restored processes keep the
// privileges that they had before, even in a pod with fewer.
func (x *Index) MayRestore(img *Image) error {
	if x.checkpoints.match(img.RepoTags...) || x.checkpoints.match(img.RepoDigests...) {
		return nil
	}
	name := img.ID
	if names := append(append([]string{}, img.RepoTags...), img.RepoDigests...); len(names) > 0 {
		name = names[0]
	}
	return fmt.Errorf("image %s was made from a checkpoint, and registry.checkpoint_images does not allow it; "+
		"if you trust its processes with the privileges that they had, add its name there and restart berth: %w", name, errdefs.ErrPermissionDenied)
}

// ByContent finds a runnable image by its id, or by the digest in a name: both identify the
// content, whatever names are recorded. It returns errdefs.ErrInvalidArgument for a name without a
// digest, and ErrNotFound if no image has this content.
func (x *Index) ByContent(ref string, wanted Platform) (*Image, error) {
	d, err := contentDigest(ref)
	if err != nil {
		return nil, err
	}
	missing := fmt.Errorf("image %.300q is not on this node: %w", ref, errdefs.ErrNotFound)
	for _, img := range x.List() {
		if !img.consistsOf(d) {
			continue
		}
		run, err := x.ToRun(img.ID, wanted)
		if err == nil {
			return run, nil
		}
		missing = err
	}
	return nil, missing
}

// contentDigest returns the digest that an id is, or that a name ends with.
func contentDigest(ref string) (digest.Digest, error) {
	_, text, named := strings.Cut(ref, "@")
	if !named {
		text = "sha256:" + strings.TrimPrefix(ref, "sha256:")
	}
	d, err := digest.Parse(text)
	if err != nil {
		return "", fmt.Errorf("%.300q is neither an image ID nor a name with a digest: %w", ref, errdefs.ErrInvalidArgument)
	}
	return d, nil
}

// ToRun finds the image for a container of a handler with the wanted platform. It returns
// errdefs.ErrFailedPrecondition if the image was pulled for another platform or cannot be run.
func (x *Index) ToRun(ref string, wanted Platform) (*Image, error) {
	img, err := x.Get(ref)
	if err != nil {
		return nil, err
	}
	if !x.pulledFor(img, wanted) {
		has := &PlatformError{wanted: wanted}
		if img.Platform.OS != "" {
			has.has = []string{img.Platform.OS + "/" + img.Platform.Architecture}
		}
		return nil, fmt.Errorf("image %s: %s; if the registry has it for that platform too, pull it for this handler, with imagePullPolicy: Always: %w", img.ID, has.Advice(), errdefs.ErrFailedPrecondition)
	}
	if img.ArtifactType != "" && (!IsWasm(img.Platform) || wanted == NodePlatform) {
		return nil, img.notRunnable()
	}
	return img, nil
}
