package rollout

import (
	"fmt"
	"path/filepath"

	"github.com/berth-cri/berth/pkg/lifecycle/statefile"
)

// File is where Decisions are kept. One goroutine at a time may use it.
type File struct{ path string }

// NewFile is that of a directory which survives a reboot.
func NewFile(dir string) File { return File{filepath.Join(dir, "rollouts.json")} }

// fileFormat is that of stored. A file of another one is not used.
const fileFormat = 1

// stored is the form on disk.
type stored struct {
	Handlers map[string]*Decision `json:"handlers"`
}

// Read returns the Decisions of an earlier daemon. A file that cannot be used is an
// error, and no Decisions.
func (f File) Read() (map[string]*Decision, error) {
	var s stored
	if err := statefile.Read(f.path, fileFormat, &s); err != nil {
		return map[string]*Decision{}, fmt.Errorf("read rollout decisions; "+
			"remove the file, and remove candidate from handlers whose rollout was aborted: %w", err)
	}
	kept := map[string]*Decision{}
	for name, d := range s.Handlers {
		if d != nil && (d.State == Aborted || d.State == Promoted) {
			kept[name] = d
		}
	}
	return kept, nil
}

// Write replaces the file by one that survives a power cut.
func (f File) Write(decisions map[string]*Decision) error {
	return statefile.Write(f.path, fileFormat, stored{decisions})
}
