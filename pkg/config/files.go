package config

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// maxFileSize bounds a configuration file, in bytes.
const maxFileSize = 1 << 20

// readAll reads the main file and the drop-ins, in the order in which later
// ones win. What cannot be read is a document that only has problems.
func readAll(o Options) []*document {
	var docs []*document
	main := o.File
	if main == "" {
		main = DefaultFile
	}
	if d := read(main); o.File != "" || !d.absent {
		d.main = true
		docs = append(docs, d)
	}
	dropIns := o.DropInDir
	if dropIns == "" {
		dropIns = filepath.Join(filepath.Dir(main), "conf.d")
	}
	vendor := o.VendorDir
	if vendor == "" {
		vendor = DefaultVendorDir
	}
	files, unreadable := dropInFiles(vendor, dropIns)
	docs = append(docs, unreadable...)
	for _, f := range files {
		docs = append(docs, read(f))
	}
	return docs
}

// dropInFiles lists *.toml of the directories in lexical order of their names.
// Of two files of one name that of the later directory counts. Names that
// begin with a dot are editors' and package managers' leftovers.
func dropInFiles(dirs ...string) (files []string, unreadable []*document) {
	byName := map[string]string{}
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			unreadable = append(unreadable, unread(dir, fmt.Sprintf("cannot be listed: %v", pathless(err))))
		}
		for _, e := range entries {
			name := e.Name()
			if strings.HasSuffix(name, ".toml") && !strings.HasPrefix(name, ".") && !e.IsDir() {
				byName[name] = filepath.Join(dir, name)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		files = append(files, byName[name])
	}
	return files, unreadable
}

func unread(file, message string) *document {
	return &document{file: file, problems: Problems{{File: file, Message: message}}}
}

// read parses one file. /dev/null is an empty one, so that a link to it takes
// a vendor's drop-in away.
func read(file string) *document {
	info, err := os.Stat(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		d := unread(file, "the file does not exist")
		d.absent = true
		return d
	case err != nil:
		return unread(file, fmt.Sprintf("cannot be looked at: %v", pathless(err)))
	case isDevNull(info):
		return parse(file, nil)
	case !info.Mode().IsRegular():
		return unread(file, "is no file but "+kindOf(info.Mode()))
	case info.Size() > maxFileSize:
		return unread(file, fmt.Sprintf("has %d bytes; a configuration file may have %d", info.Size(), maxFileSize))
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return unread(file, fmt.Sprintf("cannot be read: %v", pathless(err)))
	}
	return parse(file, data)
}

func isDevNull(info fs.FileInfo) bool {
	null, err := os.Stat(os.DevNull)
	return err == nil && os.SameFile(info, null)
}
