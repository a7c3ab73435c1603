package admin

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/pkg/atomicfile"
	"github.com/berth-cri/berth/pkg/config/dropin"
)

// mark is how each file begins that this package wrote. Only those are changed
// and removed by it.
const mark = "Written by berth's management API"

// dropIns are the files that handlers are registered by, one for each.
type dropIns struct{ dir, vendor string }

// file is where a handler is written to.
func (d dropIns) file(name string) string { return filepath.Join(d.dir, base(name)) }

func base(name string) string { return "50-" + name + ".toml" }

// wrote says whether the handler of that name, which comes from origin
// (file:line), is one of ours.
func (d dropIns) wrote(name, origin string) bool {
	file := d.file(name)
	if !strings.HasPrefix(origin, file+":") {
		return false
	}
	_, err := d.read(name)
	return err == nil
}

// read returns the text of a handler's file if it is ours. The class is
// ErrFailedPrecondition if it is not, and ErrNotFound if there is none.
func (d dropIns) read(name string) ([]byte, error) {
	file := d.file(name)
	text, err := os.ReadFile(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%s does not exist: %w", file, errdefs.ErrNotFound)
	case err != nil:
		return nil, err
	case !bytes.HasPrefix(text, []byte("# "+mark)):
		return nil, fmt.Errorf("%s was not written by berth; edit it by hand, then \"berth reload --wait\": %w", file, errdefs.ErrFailedPrecondition)
	}
	return text, nil
}

// settings are the keys that a handler's file has.
func (d dropIns) settings(name string) ([]dropin.Setting, error) {
	text, err := d.read(name)
	if err != nil {
		return nil, err
	}
	settings, err := dropin.Read(text, name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", d.file(name), err)
	}
	return settings, nil
}

// free says whether a new file may be made: neither it nor one of the same name
// that it would replace exists.
func (d dropIns) free(name string) error {
	for _, dir := range []string{d.dir, d.vendor} {
		if dir == "" {
			continue
		}
		file := filepath.Join(dir, base(name))
		_, err := os.Lstat(file)
		if err == nil {
			return fmt.Errorf("%s exists; edit it by hand, or remove it, then \"berth reload --wait\": %w", file, errdefs.ErrAlreadyExists)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// text is what a file has that a user writes now.
func (d dropIns) text(name string, uid uint32, settings []dropin.Setting) ([]byte, error) {
	header := fmt.Sprintf("%s for user %d, %s.\nChange it by \"berth handler edit %s\", remove it by \"berth handler rm %s\".",
		mark, uid, time.Now().UTC().Format(time.RFC3339), name, name)
	return dropin.Write(header, name, settings)
}

// place makes or replaces a file, so that it is whole or not there whatever happens; nil
// removes it for good. The loader passes over names that begin with a dot.
func (d dropIns) place(name string, text []byte) error {
	if text == nil {
		return errors.Join(atomicfile.Remove(d.file(name)), atomicfile.SyncDir(d.dir))
	}
	if err := os.MkdirAll(d.dir, 0o755); err != nil {
		return err
	}
	if err := atomicfile.Write(d.file(name), text, 0o644, atomicfile.Durable); err != nil {
		return fmt.Errorf("write %s: %w", d.file(name), err)
	}
	return nil
}
