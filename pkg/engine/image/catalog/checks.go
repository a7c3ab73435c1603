package catalog

import (
	"fmt"

	"github.com/containerd/errdefs"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berth-cri/berth/pkg/engine/image/bounds"
)

// Real images stay far below these limits.
const (
	// maxIndexDepth bounds the indexes above a manifest.
	maxIndexDepth = 4
	// MaxElements bounds the JSON elements of a manifest or a configuration. In memory, each takes
	// many times the size of its text.
	MaxElements = 1 << 15
	// MaxName bounds the fields of a configuration that lists of images show.
	MaxName = 1024
	// MaxMediaType bounds the name of a layer's type.
	MaxMediaType = 255
	// MaxURLs and maxURLLength bound the URLs that a manifest gives for a layer.
	MaxURLs, maxURLLength = 4, 2048
	// maxAttached bounds, in bytes, the URLs and kept annotations of all layers, or all file names.
	maxAttached = 1 << 20
)

// CheckDocument checks the size of a document before it is read into memory.
func CheckDocument(l bounds.Limits, what string, desc imagespec.Descriptor) error {
	if desc.Size > l.MaxManifestSize {
		return bounds.Beyond("%s %s has %d bytes, more than %d", what, desc.Digest, desc.Size, l.MaxManifestSize)
	}
	if desc.Size < 0 {
		return fmt.Errorf("%s %s has an invalid size, %d: %w", what, desc.Digest, desc.Size, errdefs.ErrInvalidArgument)
	}
	return nil
}

// CheckDigest checks a digest before it is used in a request.
func CheckDigest(of string, d imagespec.Descriptor) error {
	if err := d.Digest.Validate(); err != nil {
		return fmt.Errorf("digest %.100q of %s: %v: %w", string(d.Digest), of, err, errdefs.ErrInvalidArgument)
	}
	return nil
}

// checkParts checks what a manifest refers to, before any of it is downloaded.
func checkParts(l bounds.Limits, m imagespec.Manifest) error {
	if err := CheckManifest(m); err != nil {
		return err
	}
	if err := CheckDocument(l, "configuration", m.Config); err != nil {
		return err
	}
	if err := CheckDigest("the configuration", m.Config); err != nil {
		return err
	}
	if len(m.Layers) > l.MaxLayers {
		return bounds.Beyond("image has %d layers, more than %d", len(m.Layers), l.MaxLayers)
	}
	for _, layer := range m.Layers {
		if len(layer.MediaType) > MaxMediaType {
			return bounds.Beyond("layer %s has a media type of %d bytes; the limit is %d", layer.Digest, len(layer.MediaType), MaxMediaType)
		}
		if err := checkURLs(layer); err != nil {
			return err
		}
		if err := CheckDigest("a layer", layer); err != nil {
			return err
		}
	}
	if n := attached(m); n > maxAttached {
		return bounds.Beyond("layers have URLs and wrapped keys of %d bytes; the limit is %d", n, maxAttached)
	}
	return nil
}

func checkURLs(layer imagespec.Descriptor) error {
	if len(layer.URLs) > MaxURLs {
		return bounds.Beyond("layer %s has %d URLs; the limit is %d", layer.Digest, len(layer.URLs), MaxURLs)
	}
	for _, u := range layer.URLs {
		if len(u) > maxURLLength {
			return bounds.Beyond("layer %s has a URL of %d bytes; the limit is %d", layer.Digest, len(u), maxURLLength)
		}
	}
	return nil
}

// elements checks the number of JSON elements in text without decoding it.
func elements(text []byte) error {
	_, err := new(ElementCount).Write(text)
	return err
}

// ElementCount checks the same as elements, for a text in several writes.
type ElementCount struct {
	n               int
	quoted, escaped bool
}

func (e *ElementCount) Write(text []byte) (int, error) {
	for _, c := range text {
		switch {
		case e.escaped:
			e.escaped = false
		case e.quoted && c == '\\':
			e.escaped = true
		case c == '"':
			e.quoted = !e.quoted
		case !e.quoted && (c == ',' || c == '{' || c == '['):
			e.n++
		}
	}
	if e.n > MaxElements {
		return 0, bounds.Beyond("document has %d elements or more; the limit is %d", e.n, MaxElements)
	}
	return len(text), nil
}
