package installer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/atomicfile"
	"github.com/berth-cri/berth/pkg/installer/nodefs"
)

// journalFile is of the node. Its directory has nothing else.
const journalFile = "/var/lib/berth-installer/journal.json"

// journalFormat is that of files that this program writes.
const journalFormat = 1

// The states of a step.
const (
	doing   = "doing"
	done    = "done"
	undoing = "undoing"
)

// entry is a step that was begun.
type entry struct {
	Name  string `json:"name"`
	State string `json:"state"`
	// New says that the step, or the installation that it is part of, was never done as a whole.
	New   bool   `json:"new,omitempty"`
	Input string `json:"input"`
	// Saved is what undo needs.
	Saved json.RawMessage `json:"saved,omitempty"`
}

// journal has the steps in the order in which they were begun.
type journal struct {
	Format int     `json:"format"`
	Steps  []entry `json:"steps"`

	root nodefs.Root
}

func (j *journal) entry(name string) *entry {
	n := slices.IndexFunc(j.Steps, func(e entry) bool { return e.Name == name })
	if n < 0 {
		return nil
	}
	return &j.Steps[n]
}

func (j *journal) remove(name string) {
	j.Steps = slices.DeleteFunc(j.Steps, func(e entry) bool { return e.Name == name })
}

func readJournal(root nodefs.Root) (*journal, error) {
	text, err := os.ReadFile(root.Path(journalFile))
	if errors.Is(err, fs.ErrNotExist) {
		return &journal{Format: journalFormat, root: root}, nil
	}
	if err != nil {
		return nil, err
	}
	j := &journal{root: root}
	if err := json.Unmarshal(text, j); err != nil {
		return nil, fmt.Errorf("read %s: %w; what was installed can only be removed by hand", journalFile, err)
	}
	if j.Format != journalFormat {
		return nil, fmt.Errorf("%s has format %d, this installer knows %d: use the one that wrote it", journalFile, j.Format, journalFormat)
	}
	return j, nil
}

func (j *journal) write() error {
	text, err := json.MarshalIndent(j, "", " ")
	if err != nil {
		return err
	}
	path := j.root.Path(journalFile)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	if err := atomicfile.Write(path, append(text, '\n'), 0o600, atomicfile.Durable); err != nil {
		return fmt.Errorf("write the journal: %w", err)
	}
	return atomicfile.SyncDir(filepath.Dir(filepath.Dir(path)))
}

// complete notes that the installation has come to its end. What fails later undoes none of it.
func (j *journal) complete(steps []step) error {
	changed := false
	for _, s := range steps {
		c, ok := s.(completing)
		if !ok {
			continue
		}
		e := j.entry(s.name())
		saved, err := c.completed(e.Saved)
		if err != nil {
			return err
		}
		var before bytes.Buffer // the file has it indented
		if err := json.Compact(&before, e.Saved); err != nil {
			return err
		}
		if !bytes.Equal(saved, before.Bytes()) {
			e.Saved, changed = saved, true
		}
	}
	for n := range j.Steps {
		e := &j.Steps[n]
		if e.New && e.State == done {
			e.New, changed = false, true
		}
	}
	if !changed {
		return nil
	}
	return j.write()
}

// again has a step be done anew by the next run. A full disk is no reason not to go back.
func (j *journal) again(ctx context.Context, name string) {
	e := j.entry(name)
	if e == nil {
		return
	}
	e.State = doing
	if err := j.write(); err != nil {
		log.G(ctx).WithError(err).WithField("step", name).Warn("Failed to write the journal; going back all the same")
	}
}

// removeFile is the last of an undoing.
func (j *journal) removeFile() error { return os.RemoveAll(filepath.Dir(j.root.Path(journalFile))) }
