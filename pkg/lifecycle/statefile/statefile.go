// Package statefile keeps small state as JSON in files that survive a power cut.
package statefile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/berth-cri/berth/pkg/atomicfile"
	"github.com/berth-cri/berth/pkg/record"
)

// Decision is what was decided about a handler.
type Decision interface {
	// Known reports whether it is of a kind that this berth has.
	Known() bool
}

// ByHandler is a file with a decision about each of some handlers. One goroutine at a time
// may use it.
type ByHandler[D Decision] struct {
	Path string
	// Unusable is the error of a file that cannot be used, with what to do about it.
	Unusable string
}

const byHandlerFormat = 1

type byHandler[D Decision] struct {
	Handlers map[string]D `json:"handlers"`
}

// Read returns the decisions of an earlier daemon by the handlers' names. A file that cannot
// be used is an error, and no decisions.
func (f ByHandler[D]) Read() (map[string]D, error) {
	var s byHandler[D]
	if err := Read(f.Path, byHandlerFormat, &s); err != nil {
		return map[string]D{}, fmt.Errorf("%s: %w", f.Unusable, err)
	}
	known := map[string]D{}
	for name, d := range s.Handlers {
		if d.Known() {
			known[name] = d
		}
	}
	return known, nil
}

// Write replaces the file by one that survives a power cut.
func (f ByHandler[D]) Write(decisions map[string]D) error {
	return Write(f.Path, byHandlerFormat, byHandler[D]{decisions})
}

// Read fills v from a file. One that does not exist leaves v as it is.
func Read(path string, format int, v any) error {
	err := record.Read(path, format, v)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Write replaces a file by one that holds v. The directory is made if it is missing.
func Write(path string, format int, v any) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o711); err != nil {
		return err
	}
	return record.Write(path, format, v, atomicfile.Durable)
}
