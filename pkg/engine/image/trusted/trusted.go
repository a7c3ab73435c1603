// Package trusted refuses files that a pull would go by and that others than root can
// change: configurations of registries, verifiers and decryption keys.
//
// What is missing or cannot be read is no error here: who reads it tells. Everything may
// be called at any time.
package trusted

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/berth-cri/berth/pkg/config/registryhosts"
	"github.com/berth-cri/berth/pkg/trust"
)

// Error is a pull that would go by files that others can change.
type Error struct{ error }

// Unwrap returns what is wrong with them, a *trust.Refused.
func (e *Error) Unwrap() error { return e.error }

// untrusted keeps of errors those about files that others can change. Others, as of a
// file that is missing, are for who reads it to tell.
func untrusted(what string, errs ...error) error {
	for _, err := range errs {
		if refused, is := errors.AsType[*trust.Refused](err); is {
			return &Error{fmt.Errorf("%s: %w", what, refused)}
		}
	}
	return nil
}

// Hosts refuses the configuration of a registry that others can change, with
// the certificates and keys that it names: it says who is asked for an image, and who
// is given the node's credentials. The library reads it right after that.
func Hosts(dir string) error {
	errs := []error{trust.CheckDir(dir, trust.Configuration)}
	entries, _ := os.ReadDir(dir) // the reader tells why it cannot
	for _, e := range entries {
		if e.IsDir() {
			continue
		}
		switch filepath.Ext(e.Name()) {
		case ".toml", ".crt", ".cert", ".key":
			errs = append(errs, trust.Check(filepath.Join(dir, e.Name()), trust.Configuration))
		}
	}
	if text, err := trust.ReadFile(filepath.Join(dir, "hosts.toml"), trust.Configuration); err == nil {
		for _, file := range registryhosts.Files(dir, text) {
			errs = append(errs, trust.Check(file, trust.Configuration))
		}
	}
	return untrusted("registry configuration", errs...)
}

// Verifiers refuses the programs of a directory if others can change them: they are run
// as root, and decide what may be pulled. So is a directory that others could put away.
func Verifiers(dir string) error {
	errs := []error{trust.CheckDir(dir, trust.Program)}
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		errs = append(errs, trust.Check(filepath.Join(dir, e.Name()), trust.Program))
	}
	return untrusted("image verifier", errs...)
}

// Keys refuses keys that others can change.
func Keys(dir string, files []string) error {
	errs := []error{trust.CheckDir(dir, trust.Configuration)}
	for _, file := range files {
		errs = append(errs, trust.Check(file, trust.Configuration))
	}
	return untrusted("decryption keys", errs...)
}
