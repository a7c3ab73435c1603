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

// mark begins each file written by this package. The package changes and removes only such files.
const mark = "Written by berth's management API"

// dropIns are the files of registered handlers, one for each.
type dropIns struct{ dir, vendor string }

// file returns the path of a handler's drop-in.
func (d dropIns) file(name string) string { return filepath.Join(d.dir, base(name)) }

func base(name string) string { return "50-" + name + ".toml" }

// owns reports whether this package wrote the file of a handler. origin is the handler's file:line.
func (d dropIns) owns(name, origin string) bool {
	file := d.file(name)
	if !strings.HasPrefix(origin, file+":") {
		return false
	}
	_, err := d.read(name)
	return err == nil
}

// read returns the text of a handler's drop-in. The error is of the class ErrFailedPrecondition if
// another program wrote the file, and ErrNotFound if it does not exist.
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

// settings returns the keys in a handler's file.
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

// checkFree returns an error if the new file, or a vendor's file of the same name, exists.
func (d dropIns) checkFree(name string) error {
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

// text returns the content of a drop-in, with the user and the current time in its header.
func (d dropIns) text(name string, uid uint32, settings []dropin.Setting) ([]byte, error) {
	header := fmt.Sprintf("%s for user %d, %s.\nChange it by \"berth handler edit %s\", remove it by \"berth handler rm %s\".",
		mark, uid, time.Now().UTC().Format(time.RFC3339), name, name)
	return dropin.Write(header, name, settings)
}

// write creates or replaces a file atomically; nil text removes it durably. The loader ignores the
// temporary file, because its name begins with a dot.
func (d dropIns) write(name string, text []byte) error {
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
