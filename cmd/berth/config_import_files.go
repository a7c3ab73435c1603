package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/berth-cri/berth/pkg/atomicfile"
	"github.com/berth-cri/berth/pkg/config"
)

// importTargets are where files about registries go; empty is stdout.
type importTargets struct{ hostsDir, verifyPolicy string }

// importedFile is one of them.
type importedFile struct {
	path string
	text []byte
}

// split tells what is to be written from what is to be listed. Of files with a mistake
// neither is done: the rest could let pass what they hold back.
func (o importTargets) split(t *config.Translation) (write, list []importedFile) {
	if t.OfRegistries > 0 {
		return nil, nil
	}
	for _, h := range t.Hosts {
		f := importedFile{filepath.Join(h.Registry, "hosts.toml"), h.Text}
		if o.hostsDir == "" {
			list = append(list, f)
			continue
		}
		f.path = filepath.Join(o.hostsDir, f.path)
		write = append(write, f)
	}
	if t.VerifyPolicy != nil {
		if o.verifyPolicy == "" {
			return write, append(list, importedFile{"verify.toml", t.VerifyPolicy})
		}
		write = append(write, importedFile{o.verifyPolicy, t.VerifyPolicy})
	}
	return write, list
}

// checkTargets returns the files that are not there yet, or all that is in their way.
func checkTargets(files []importedFile) (missing []importedFile, err error) {
	var all []error
	for _, f := range files {
		there, err := os.ReadFile(f.path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			missing = append(missing, f)
		case err != nil:
			all = append(all, err)
		case !bytes.Equal(there, f.text):
			all = append(all, fmt.Errorf("%s exists with other content; compare it with what is printed without --hosts-dir and --verify-policy, and move it away", f.path))
		}
	}
	return missing, errors.Join(all...)
}

func writeTargets(files []importedFile, stderr io.Writer) error {
	for _, f := range files {
		if err := os.MkdirAll(filepath.Dir(f.path), 0o755); err != nil {
			return err
		}
		if err := atomicfile.Write(f.path, f.text, 0o644, atomicfile.Durable); err != nil {
			return fmt.Errorf("write %s: %w", f.path, err)
		}
		fmt.Fprintln(stderr, "wrote", f.path)
	}
	return nil
}

func listTargets(files []importedFile, w io.Writer) error {
	for i, f := range files {
		if i > 0 {
			fmt.Fprintln(w)
		}
		if _, err := fmt.Fprintf(w, "# %s\n%s", f.path, f.text); err != nil {
			return err
		}
	}
	return nil
}
