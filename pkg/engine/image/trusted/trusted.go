// Package trusted refuses files that a pull depends on and that users other than root can change:
// configurations of registries, verifiers and decryption keys.
//
// A missing or unreadable file is not an error here: its reader reports it. Everything is safe for
// concurrent use.
package trusted

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/berth-cri/berth/pkg/config/registryhosts"
	"github.com/berth-cri/berth/pkg/trust"
)

// Error reports that a pull depends on files that others can change.
type Error struct{ error }

// Unwrap returns the cause, a *trust.Refused.
func (e *Error) Unwrap() error { return e.error }

// check returns only errors about files that others can change. The reader of a file reports other
// errors, such as a missing file.
func check(what, dir string, as trust.Purpose, files []string) error {
	errs := []error{trust.CheckDir(dir, as)}
	for _, file := range files {
		errs = append(errs, trust.Check(file, as))
	}
	for _, err := range errs {
		if refused, is := errors.AsType[*trust.Refused](err); is {
			return &Error{fmt.Errorf("%s: %w", what, refused)}
		}
	}
	return nil
}

// Hosts refuses a registry's configuration, and certificates and keys that it names, if others can
// change them: they select the server for an image, which gets the node's credentials. containerd's
// library reads the files right after this check.
func Hosts(dir string) error {
	var files []string
	entries, _ := os.ReadDir(dir) // the reader of the files reports the error
	for _, e := range entries {
		switch filepath.Ext(e.Name()) {
		case ".toml", ".crt", ".cert", ".key":
			if !e.IsDir() {
				files = append(files, filepath.Join(dir, e.Name()))
			}
		}
	}
	if text, err := trust.ReadFile(filepath.Join(dir, "hosts.toml"), trust.Configuration); err == nil {
		files = append(files, registryhosts.Files(dir, text)...)
	}
	return check("registry configuration", dir, trust.Configuration, files)
}

// Verifiers refuses the programs of a directory if others can change them: they run as root, and
// decide what may be pulled. It also refuses a directory that others could replace.
func Verifiers(dir string) error {
	var files []string
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		files = append(files, filepath.Join(dir, e.Name()))
	}
	return check("image verifier", dir, trust.Program, files)
}

// Keys refuses keys that others can change.
func Keys(dir string, files []string) error {
	return check("decryption keys", dir, trust.Configuration, files)
}
