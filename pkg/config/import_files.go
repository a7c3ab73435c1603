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

// foreignHeader finds handlers in files that cannot be parsed, as handlerHeader
// does in berth's own.
var foreignHeader = regexp.MustCompile(`(?m)^[ \t]*\[[^\]\n]*\.[ \t]*runtimes[ \t]*\.[ \t]*["']?([A-Za-z0-9_-]+)["']?[ \t]*[\].]`)

// readForeign reads files and directories in this order. What does not exist
// has nothing.
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

// directory lists what the other daemon would read. containerd is told *.toml;
// CRI-O takes every file, under any name (Kata's installer writes
// 99-kata-deploy), but it also takes what editors and package managers leave.
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

// leftovers are endings of files that are not configurations in use.
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

// parsed are the files that could be read. One with a mistake counts for
// nothing: what it says is not known.
func (f *foreignFiles) parsed() []*tomlfile.Document {
	var files []*tomlfile.Document
	for _, d := range f.docs {
		if len(d.Problems) == 0 {
			files = append(files, d.Document)
		}
	}
	return files
}

// translate adds the handlers that can be served to own, which has where each is
// configured. Notes are about everything else. Programs are looked for in dirs, as
// containerd and CRI-O do by PATH.
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

// foreignDocument is a translated handler as a file of berth's that has the lines of
// the files that it is from.
func foreignDocument(h imports.Handler) *document {
	prefix := tomlfile.Under("runtimes", h.Name)
	origins := map[string]Origin{prefix: h.At}
	for key, origin := range h.From {
		origins[prefix+"."+key] = origin
	}
	return &document{Document: &tomlfile.Document{File: h.At.File, Origins: origins}, handlers: []string{h.Name}}
}

// Watched are the directories and files whose changes can change what Load
// returns, whether they exist yet or not.
func (c *Config) Watched() []string { return c.watched }
