// Package bounds limits what an image and its registry may cost the node during a pull.
//
// MaxStored limits stored images. Everything is safe for concurrent use.
package bounds

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
)

// Limits apply to every pull. A field that is 0 has its default.
type Limits struct {
	// MaxManifestSize bounds, in bytes, an index, a manifest, a configuration and every other
	// answer of a registry except layers. 0 is 4 MiB, the maximum is 64 MiB.
	MaxManifestSize int64
	// MaxLayers bounds the layers of an image. 0 is 500, as many as overlayfs
	// can stack.
	MaxLayers int
	// AnswerTimeout bounds the time, over a whole pull, that the registry takes for answers other
	// than layers. 0 is 5 minutes.
	AnswerTimeout time.Duration
	// MinDownloadRate is the minimum rate of a layer's download, in bytes per second, averaged over
	// PullProgressTimeout. 0 is 1024.
	MinDownloadRate int64
	// MaxUnpackMemory bounds, in bytes, the memory of a process that unpacks a layer.
	// 0 is 512 MiB.
	MaxUnpackMemory int64
	// MaxImageEntries bounds the files, directories, links and whiteouts of all
	// layers of an image. 0 is 5,000,000.
	MaxImageEntries int64
}

const (
	defaultMaxManifestSize = 4 << 20
	defaultMaxLayers       = 500
	defaultAnswerTimeout   = 5 * time.Minute
	defaultMinDownloadRate = 1 << 10
	defaultMaxUnpackMemory = 512 << 20
	defaultMaxImageEntries = 5_000_000
)

// MaxStored bounds, in bytes, a document of a stored image. It is the maximum of MaxManifestSize: a
// lower MaxManifestSize does not hide stored images.
const MaxStored = 64 << 20

// Complete fills in the defaults.
func (l Limits) Complete() Limits {
	l.MaxManifestSize = min(cmp.Or(l.MaxManifestSize, defaultMaxManifestSize), MaxStored)
	l.MaxLayers = cmp.Or(l.MaxLayers, defaultMaxLayers)
	l.AnswerTimeout = cmp.Or(l.AnswerTimeout, defaultAnswerTimeout)
	l.MinDownloadRate = cmp.Or(l.MinDownloadRate, defaultMinDownloadRate)
	l.MaxUnpackMemory = cmp.Or(l.MaxUnpackMemory, defaultMaxUnpackMemory)
	l.MaxImageEntries = cmp.Or(l.MaxImageEntries, defaultMaxImageEntries)
	return l
}

// exceeded is the error of Beyond.
type exceeded struct{ text string }

func (e *exceeded) Error() string { return e.text }
func (e *exceeded) Unwrap() error { return errdefs.ErrInvalidArgument }

// Beyond returns the error of an image, or of an answer, that exceeds a limit. Its class is
// ErrInvalidArgument.
func Beyond(format string, args ...any) error { return &exceeded{fmt.Sprintf(format, args...)} }

// IsBeyond reports whether err is an error of Beyond.
func IsBeyond(err error) bool {
	_, ok := errors.AsType[*exceeded](err)
	return ok
}
