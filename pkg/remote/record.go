package remote

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/berth-cri/berth/pkg/atomicfile"
)

// recordSuffix ends the names of files that hold a record.
const recordSuffix = ".json"

// record says whose pods a daemon has, so that they are found again by a berth
// whose configuration no longer names it.
type record struct {
	Endpoint string    `json:"endpoint"`
	Handlers []Handler `json:"handlers"`
}

// writeRecord replaces a record whole.
func writeRecord(path string, r record) error {
	content, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return atomicfile.Write(path, content, 0o600, atomicfile.Relaxed)
}

// readRecords returns all records of a directory. What cannot be read is an
// error beside the others.
func readRecords(dir string) ([]record, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, ignoreMissing(err)
	}
	var all []record
	var failed []error
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), recordSuffix) {
			continue
		}
		path := filepath.Join(dir, e.Name())
		content, err := os.ReadFile(path)
		var r record
		if err == nil {
			err = json.Unmarshal(content, &r)
		}
		if err == nil && !filepath.IsAbs(r.Endpoint) {
			err = fmt.Errorf("endpoint %q is not a path", r.Endpoint)
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("read %s: %w", path, err))
			continue
		}
		all = append(all, r)
	}
	return all, errors.Join(failed...)
}
