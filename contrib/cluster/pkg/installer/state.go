package installer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/berth-cri/berth/pkg/atomicfile"
	"github.com/berth-cri/berth/pkg/nodefs"
)

// stateFile is on the node. Its directory contains nothing else.
const stateFile = "/var/lib/berth-installer/state.json"

// stateFormat is the version of the file's format.
const stateFormat = 1

// state holds facts that cannot be derived from the node.
type state struct {
	Format int `json:"format"`
	// Made are directories that did not exist before, parents first.
	Made []string `json:"made"`
	// Kubelet is the unit of a kubelet that is, or is about to be, switched to berth. Moved means
	// that the switch is complete and the node was healthy with it.
	Kubelet string `json:"kubelet,omitempty"`
	Moved   bool   `json:"moved,omitempty"`
	// Restart means that the running daemon may be older than its unit or its programs.
	Restart bool `json:"restart,omitempty"`
	// Healthy is the last healthy release. It is empty until an installation is complete.
	Healthy release `json:"healthy,omitzero"`

	root nodefs.Root
}

// release is a version of berth, its unit, and its configuration files by path.
type release struct {
	Version string            `json:"version"`
	Unit    string            `json:"unit"`
	Files   map[string]string `json:"files"`
	// Beside is the daemon that the files forward to.
	Beside Beside `json:"beside"`
}

// fresh reports whether the node has nothing of this installer.
func (s *state) fresh() bool { return s.Format == 0 }

func readState(root nodefs.Root) (*state, error) {
	s := &state{root: root}
	text, err := os.ReadFile(root.Path(stateFile))
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err == nil {
		err = json.Unmarshal(text, s)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w; what was installed can only be removed by hand", stateFile, err)
	}
	if s.Format != stateFormat {
		return nil, fmt.Errorf("%s has format %d, but this installer reads only %d: use the installer that wrote it", stateFile, s.Format, stateFormat)
	}
	return s, nil
}

// begin records in Made which directories do not exist yet.
func (s *state) begin(dirs ...string) error {
	s.Format = stateFormat
	for _, dir := range dirs {
		if !s.root.ExistsAny(dir) && !slices.Contains(s.Made, dir) {
			s.Made = append(s.Made, dir)
		}
	}
	return s.save()
}

func (s *state) save() error {
	text, err := json.MarshalIndent(s, "", " ")
	if err != nil {
		return err
	}
	path := s.root.Path(stateFile)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	if err := atomicfile.Write(path, append(text, '\n'), 0o600, atomicfile.Durable); err != nil {
		return fmt.Errorf("write the state: %w", err)
	}
	return atomicfile.SyncDir(filepath.Dir(filepath.Dir(path)))
}

// leave removes a directory of Made, unless it contains files.
func (s *state) leave(dir string) {
	if slices.Contains(s.Made, dir) {
		os.Remove(s.root.Path(dir))
	}
}

// remove removes the state file and its directory, as the last step of an uninstallation.
func (s *state) remove() error { return os.RemoveAll(filepath.Dir(s.root.Path(stateFile))) }
