package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// maxFile bounds what is read of any file, in bytes.
const maxFile = 4 << 20

// at is where a path of the node is.
func (n Node) at(path string) string { return filepath.Join(n.Root, path) }

// read returns a file's text; a missing one is ErrNotExist.
func (n Node) read(path string) (string, error) {
	info, err := os.Stat(n.at(path))
	switch {
	case err != nil:
		return "", err
	case !info.Mode().IsRegular():
		return "", fmt.Errorf("%s is not a regular file", path)
	case info.Size() > maxFile:
		return "", fmt.Errorf("%s has %d bytes", path, info.Size())
	}
	data, err := os.ReadFile(n.at(path))
	return string(data), err
}

// value is the text of a small file without space around it; "" if there is none.
func (n Node) value(path string) string {
	text, err := n.read(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(text)
}

func (n Node) exists(path string) bool {
	_, err := os.Stat(n.at(path))
	return err == nil
}

func (n Node) isSocket(path string) bool {
	info, err := os.Stat(n.at(path))
	return err == nil && info.Mode().Type() == fs.ModeSocket
}

// executable says why a path cannot be run, or nothing.
func (n Node) executable(path string) string {
	info, err := os.Stat(n.at(path))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "does not exist"
	case err != nil:
		return "cannot be read: " + err.Error()
	case !info.Mode().IsRegular():
		return "is not a regular file"
	case info.Mode()&0o111 == 0:
		return "is not executable"
	}
	return ""
}

// list returns the names in a directory, sorted; none if there is no directory.
func (n Node) list(dir string) []string {
	entries, err := os.ReadDir(n.at(dir))
	if err != nil {
		return nil
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names
}
