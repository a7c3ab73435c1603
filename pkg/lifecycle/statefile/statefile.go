// Package statefile stores small state as JSON in files that survive a power cut.
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

// Decision is a stored decision about a handler.
type Decision interface {
	// Known reports whether this version of berth supports its kind.
	Known() bool
}

// ByHandler is a file with decisions, by handler. Only one goroutine at a time may use it.
type ByHandler[D Decision] struct {
	Path string
	// Unusable is the error for an unreadable file, with the action for the operator.
	Unusable string
}

const byHandlerFormat = 1

type byHandler[D Decision] struct {
	Handlers map[string]D `json:"handlers"`
}

// Read returns the stored decisions by handler name. If the file is unreadable, it returns an error
// and an empty map.
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

// Write replaces the file durably.
func (f ByHandler[D]) Write(decisions map[string]D) error {
	return Write(f.Path, byHandlerFormat, byHandler[D]{decisions})
}

// Read fills v from a file. If the file does not exist, v is unchanged.
func Read(path string, format int, v any) error {
	err := record.Read(path, format, v)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Write replaces a file durably with v, and creates the directory if it is missing.
func Write(path string, format int, v any) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o711); err != nil {
		return err
	}
	return record.Write(path, format, v, atomicfile.Durable)
}
