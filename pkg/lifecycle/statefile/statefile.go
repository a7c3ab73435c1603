// Package statefile keeps small state as JSON in files that survive a power cut.
package statefile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/berth-cri/berth/pkg/atomicfile"
	"github.com/berth-cri/berth/pkg/record"
)

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
