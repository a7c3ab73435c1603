package image

import (
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Limits bound what an image and its registry can cost the node when it is
// pulled; what is in the store stays there. The zero value of each field is its
// default.
type Limits struct {
	// MaxManifestSize bounds, in bytes, an index, a manifest, a configuration and
	// every other answer of a registry that is not a layer. 0 is 4 MiB, the most
	// is 64 MiB.
	MaxManifestSize int64
	// MaxLayers bounds the layers of an image. 0 is 500, as many as overlayfs
	// can stack.
	MaxLayers int
	// AnswerTimeout is how long the registry may take, over a whole pull, for its
	// answers that are not layers. 0 is 5 minutes, negative is any time.
	AnswerTimeout time.Duration
	// MinDownloadRate is how many bytes per second a registry must send of a
	// layer, on average over PullProgressTimeout. 0 is 1024, negative is none.
	MinDownloadRate int64
	// MaxZstdWindow bounds, in bytes, the memory that opening a layer compressed
	// with zstd takes. 0 is 32 MiB.
	MaxZstdWindow int64
	// MaxImageEntries bounds the files, directories, links and whiteouts of all
	// layers of an image. 0 is 5,000,000.
	MaxImageEntries int64
}

const (
	defaultMaxManifestSize = 4 << 20
	defaultMaxLayers       = 500
	defaultAnswerTimeout   = 5 * time.Minute
	defaultMinDownloadRate = 1 << 10
	defaultMaxZstdWindow   = 32 << 20
	defaultMaxImageEntries = 5_000_000
)

// maxStored bounds what is read into memory of an image in the store. It is the
// most that MaxManifestSize may be, so that a lower one hides no image.
const maxStored = 64 << 20

// Of these no image has a tenth.
const (
	// maxIndexDepth is how many indexes may lie above a manifest.
	maxIndexDepth = 4
	// maxElements bounds what a manifest or a configuration consists of. Each
	// takes many times the memory that it takes as text.
	maxElements = 1 << 15
	// maxName bounds what lists of images show of a configuration.
	maxName = 1024
	// maxMediaType bounds the name of a layer's type.
	maxMediaType = 255
	// maxURLs and maxURLLength bound where else a layer may be.
	maxURLs, maxURLLength = 4, 2048
	// maxAttached bounds the urls and wrapped keys of all layers.
	maxAttached = 1 << 20
)

func (l Limits) complete() Limits {
	if l.MaxManifestSize <= 0 {
		l.MaxManifestSize = defaultMaxManifestSize
	}
	l.MaxManifestSize = min(l.MaxManifestSize, maxStored)
	if l.MaxLayers <= 0 {
		l.MaxLayers = defaultMaxLayers
	}
	if l.AnswerTimeout == 0 {
		l.AnswerTimeout = defaultAnswerTimeout
	}
	if l.MinDownloadRate == 0 {
		l.MinDownloadRate = defaultMinDownloadRate
	}
	if l.MaxZstdWindow <= 0 {
		l.MaxZstdWindow = defaultMaxZstdWindow
	}
	if l.MaxImageEntries <= 0 {
		l.MaxImageEntries = defaultMaxImageEntries
	}
	return l
}

// limitError is an image or an answer that exceeds a limit.
type limitError struct{ text string }

func (e *limitError) Error() string { return e.text }
func (e *limitError) Unwrap() error { return errdefs.ErrInvalidArgument }

func beyond(format string, args ...any) error { return &limitError{fmt.Sprintf(format, args...)} }

func isBeyond(err error) bool {
	_, ok := errors.AsType[*limitError](err)
	return ok
}

// document checks the descriptor of what is read into memory.
func (l Limits) document(what string, desc imagespec.Descriptor) error {
	if desc.Size > l.MaxManifestSize {
		return beyond("%s %s has %d bytes, more than registry.max_manifest_size (%d)", what, desc.Digest, desc.Size, l.MaxManifestSize)
	}
	if desc.Size < 0 {
		return fmt.Errorf("%s %s has an invalid size, %d: %w", what, desc.Digest, desc.Size, errdefs.ErrInvalidArgument)
	}
	return nil
}

// checkDigest looks at a digest before anything is asked for by it.
func checkDigest(of string, d imagespec.Descriptor) error {
	if err := d.Digest.Validate(); err != nil {
		return fmt.Errorf("digest %.100q of %s: %v: %w", string(d.Digest), of, err, errdefs.ErrInvalidArgument)
	}
	return nil
}

// manifest checks what a manifest leads to, before any of it is downloaded.
func (l Limits) manifest(m imagespec.Manifest) error {
	if err := checkManifest(m); err != nil {
		return err
	}
	if err := l.document("configuration", m.Config); err != nil {
		return err
	}
	if err := checkDigest("the configuration", m.Config); err != nil {
		return err
	}
	if len(m.Layers) > l.MaxLayers {
		return beyond("image has %d layers, more than registry.max_layers (%d)", len(m.Layers), l.MaxLayers)
	}
	for _, layer := range m.Layers {
		if len(layer.MediaType) > maxMediaType {
			return beyond("layer %s has a media type of %d bytes; the limit is %d", layer.Digest, len(layer.MediaType), maxMediaType)
		}
		if err := checkURLs(layer); err != nil {
			return err
		}
		if err := checkDigest("a layer", layer); err != nil {
			return err
		}
	}
	if n := attached(m); n > maxAttached {
		return beyond("layers have URLs and wrapped keys of %d bytes; the limit is %d", n, maxAttached)
	}
	return nil
}

func checkURLs(layer imagespec.Descriptor) error {
	if len(layer.URLs) > maxURLs {
		return beyond("layer %s has %d URLs; the limit is %d", layer.Digest, len(layer.URLs), maxURLs)
	}
	for _, u := range layer.URLs {
		if len(u) > maxURLLength {
			return beyond("layer %s has a URL of %d bytes; the limit is %d", layer.Digest, len(u), maxURLLength)
		}
	}
	return nil
}

// elements checks of how many parts a JSON text consists, without reading it
// into memory a second time.
func elements(text []byte) error {
	n, quoted := 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case !quoted && (c == ',' || c == '{' || c == '['):
			n++
		}
	}
	if n > maxElements {
		return beyond("document has %d elements; the limit is %d", n, maxElements)
	}
	return nil
}
