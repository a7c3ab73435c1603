package image

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/berth-cri/berth/pkg/config/registryhosts"
	"github.com/berth-cri/berth/pkg/trust"
)

// untrustedError is a pull that would go by files that others can change.
type untrustedError struct{ error }

func (e *untrustedError) Unwrap() error { return e.error }

func isUntrusted(err error) bool {
	_, ok := errors.AsType[*untrustedError](err)
	return ok
}

// untrusted keeps of errors those about files that others can change. Others, as of a
// file that is missing, are for who reads it to tell.
func untrusted(what string, errs ...error) error {
	for _, err := range errs {
		if refused, is := errors.AsType[*trust.Refused](err); is {
			return &untrustedError{fmt.Errorf("%s: %w", what, refused)}
		}
	}
	return nil
}

// trustedHosts refuses the configuration of a registry that others can change, with
// the certificates and keys that it names: it says who is asked for an image, and who
// is given the node's credentials. The library reads it right after that.
func trustedHosts(dir string) error {
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

// trustedVerifiers refuses verifiers that others can change: they are run as root, and
// decide what may be pulled. So is a directory that others could put away.
func trustedVerifiers(v Verifiers) error {
	errs := []error{trust.CheckDir(v.BinDir, trust.Program)}
	entries, _ := os.ReadDir(v.BinDir)
	for i, e := range entries {
		if v.Max >= 0 && i >= v.Max {
			break
		}
		errs = append(errs, trust.Check(filepath.Join(v.BinDir, e.Name()), trust.Program))
	}
	return untrusted("image verifier", errs...)
}

// trustedKeys refuses keys that others can change.
func trustedKeys(dir string, files []string) error {
	errs := []error{trust.CheckDir(dir, trust.Configuration)}
	for _, file := range files {
		errs = append(errs, trust.Check(file, trust.Configuration))
	}
	return untrusted("decryption keys", errs...)
}
