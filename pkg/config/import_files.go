package config

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/berth-cri/berth/pkg/config/hostfiles"
	"github.com/berth-cri/berth/pkg/config/imports"
	"github.com/berth-cri/berth/pkg/config/tomlfile"
	"github.com/berth-cri/berth/pkg/handler"
)

type foreignFiles struct {
	docs  []*document
	notes []ImportNote
}

// foreignHeader finds handlers in unparsable files, as handlerHeader does in berth's own.
var foreignHeader = regexp.MustCompile(`(?m)^[ \t]*\[[^\]\n]*\.[ \t]*runtimes[ \t]*\.[ \t]*["']?([A-Za-z0-9_-]+)["']?[ \t]*[\].]`)

// readForeign reads the files and directories in the order of paths. Missing ones count as empty.
func readForeign(kind imports.Kind, paths []string) *foreignFiles {
	f := &foreignFiles{}
	var files []string
	for _, path := range paths {
		if !hostfiles.IsDir(path) {
			files = append(files, path)
			continue
		}
		files = append(files, f.directory(kind, path)...)
	}
	seen := map[string]bool{}
	for i := range files {
		files[i] = filepath.Clean(files[i])
	}
	files = slices.DeleteFunc(files, func(file string) bool {
		twice := seen[file]
		seen[file] = true
		return twice || !filepath.IsAbs(file)
	})
	f.docs = append(f.docs, readEach(files, nil, parseForeign)...)
	return f
}

func parseForeign(file string, text []byte) *document {
	return &document{Document: tomlfile.Parse(file, text), handlers: handlerNames(foreignHeader, text, nil)}
}

// directory lists the files that the other daemon would read: *.toml for containerd, and every file
// for CRI-O (Kata's installer writes 99-kata-deploy). Leftovers of editors and package managers,
// which CRI-O would also read, are noted and skipped.
func (f *foreignFiles) directory(kind imports.Kind, dir string) []string {
	names, problem := hostfiles.List(dir, func(e fs.DirEntry) bool {
		if kind == imports.Containerd {
			return isDropIn(e)
		}
		if why := passedOver(e); why != "" {
			f.notes = append(f.notes, ImportNote{Origin: Origin{File: filepath.Join(dir, e.Name())}, Why: why})
			return false
		}
		return true
	})
	if problem != "" {
		f.docs = append(f.docs, unread(dir, problem))
	}
	for i, name := range names {
		names[i] = filepath.Join(dir, name)
	}
	return names
}

// leftovers are file name endings of unused configurations.
var leftovers = []string{"~", ".bak", ".backup", ".old", ".orig", ".save", ".swp", ".swo", ".tmp", ".rpmsave", ".rpmnew", ".rpmorig"}

func passedOver(e fs.DirEntry) string {
	name := e.Name()
	if e.IsDir() {
		return "is a directory; unlike CRI-O, berth does not read subdirectories; list it too if it is needed"
	}
	leftover := slices.ContainsFunc(leftovers, func(end string) bool { return strings.HasSuffix(name, end) })
	if leftover || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "#") || strings.Contains(name, ".dpkg-") {
		return "looks like a backup file, which berth does not read, unlike CRI-O; remove it, or list it too if it is needed"
	}
	return ""
}

// parsed returns the files without mistakes. A file with a mistake is ignored as a whole: its
// meaning is unknown.
func (f *foreignFiles) parsed() []*tomlfile.Document {
	var files []*tomlfile.Document
	for _, d := range f.docs {
		if len(d.Problems) == 0 {
			files = append(files, d.Document)
		}
	}
	return files
}

// translate returns the handlers that can be served, and adds them to own, the origins of handlers.
// Notes cover everything else. Programs are looked up in dirs, not in the PATH of containerd or
// CRI-O.
func (f *foreignFiles) translate(kind imports.Kind, dirs []string, own map[string]string) ([]imports.Handler, []ImportNote) {
	find := func(program string) string { return hostfiles.FindIn(dirs, program) }
	handlers, notes := imports.Translate(kind, f.parsed(), find)
	notes = append(notes, f.notes...)
	handlers = slices.DeleteFunc(handlers, func(h imports.Handler) bool {
		reason := unservable(h.Name, own)
		if reason == "" {
			own[h.Name] = h.At.String()
			return false
		}
		notes = append(notes, ImportNote{Origin: h.At, Key: h.Key, Handler: h.Name, Why: reason})
		return true
	})
	return handlers, notes
}

func unservable(name string, own map[string]string) string {
	if first, taken := own[name]; taken {
		return fmt.Sprintf("is not imported: handler %q is already configured at %s", name, first)
	}
	if handler.ValidName(name) != nil {
		return fmt.Sprintf("is not imported: handler name %q is not a DNS-1123 label, so a RuntimeClass cannot use it", name)
	}
	return ""
}

// foreignDocument returns a document for a translated handler, with the origins in the source
// files.
func foreignDocument(h imports.Handler) *document {
	prefix := tomlfile.Under("runtimes", h.Name)
	origins := map[string]Origin{prefix: h.At}
	for key, origin := range h.From {
		origins[prefix+"."+key] = origin
	}
	return &document{Document: &tomlfile.Document{File: h.At.File, Origins: origins}, handlers: []string{h.Name}}
}

// Watched returns the files and directories that determine the result of Load, including those that
// do not exist yet.
func (c *Config) Watched() []string { return c.watched }
